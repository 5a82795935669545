"""Drives one engine through its seam: submits requests and keeps what comes back, by key."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from worker.core.watch import CacheContents
from worker.engine import EngineInfo, GenerateRequest, Output, Sampling, Step
from worker.engines.sglang import SglangEngine

MODELS = Path(__file__).resolve().parents[2] / ".cache" / "sglang"
# Longer than anything here takes on a busy machine.
PATIENCE_S = 120.0


class Driver:
    def __init__(self, engine: SglangEngine) -> None:
        self.engine = engine
        self.tokens: dict[int, list[int]] = {}
        self.cached: dict[int, int] = {}
        self.ends: dict[int, Output] = {}
        self.contents = CacheContents()
        self.cleared_at = 0.0
        self.info: EngineInfo
        self._keys = itertools.count(1)
        self._submitted: set[int] = set()
        self._moved = asyncio.Event()

    async def start(self) -> None:
        try:
            self.info = await self.engine.start(self._on_step)
        except BaseException:
            await self.engine.close()
            raise

    @property
    def held(self) -> set[int]:
        """Hashes of the blocks in the cache, as the events tell."""
        model = self.info.models[0].name
        return {one for event in self.contents.describe([model]) for one in getattr(event, "block_hashes", ())}

    def submit(self, prompt: list[int], *, adapter: str = "", cache_salt: bytes = b"", **sampling: Any) -> int:
        key = next(self._keys)
        constraint = sampling.pop("constraint", None)
        request = GenerateRequest(
            key=key,
            request_id=f"request-{key}",
            model=self.info.models[0].name,
            prompt_token_ids=prompt,
            sampling=replace(Sampling(temperature=0.0, ignore_eos=True), **sampling),
            cache_salt=cache_salt,
            adapter=adapter,
            constraint=constraint,
        )
        self.engine.generate(request)
        self._submitted.add(key)
        return key

    async def run(self, prompt: list[int], **options: Any) -> int:
        key = self.submit(prompt, **options)
        await self.until(lambda: key in self.ends, f"the end of {key}")
        return key

    async def idle(self) -> None:
        """Abort what a test left behind."""
        left = self._submitted - self.ends.keys()
        for key in left:
            self.engine.abort(key)
        await self.until(lambda: left <= self.ends.keys(), "an idle engine")

    async def until(self, condition: Callable[[], bool], what: str, limit_s: float = PATIENCE_S) -> float:
        """Wait for it; returns the seconds that it took."""
        began = time.monotonic()
        while not condition():
            assert time.monotonic() - began < limit_s, f"waited {limit_s} s for {what}; load {self.engine.load()}"
            self._moved.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._moved.wait(), 0.02)
        return time.monotonic() - began

    def _on_step(self, step: Step) -> None:
        for output in step.outputs:
            self.tokens.setdefault(output.key, []).extend(output.token_ids)
            if output.cached_tokens is not None:
                self.cached[output.key] = output.cached_tokens
            if output.finish_reason is not None or output.error is not None:
                assert output.key not in self.ends
                self.ends[output.key] = output
        self.contents.apply(step.kv_events)
        self._moved.set()


def child(name: str) -> psutil.Process:
    """The process of SGLang that calls itself so."""
    (process,) = [one for one in psutil.Process().children() if name in " ".join(one.cmdline())]
    return process


def children() -> list[psutil.Process]:
    """All but Python's own helper, which lives until this process ends."""
    return [one for one in psutil.Process().children() if "resource_tracker" not in " ".join(one.cmdline())]
