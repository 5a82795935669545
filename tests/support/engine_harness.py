"""One engine behind its seam (worker/engine.py), driven by a test: what it says, and rules that hold for all of it."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tokenizers import Tokenizer

from worker.engine import (
    Constraint,
    Engine,
    EngineInfo,
    FinishReason,
    GenerateRequest,
    Output,
    Sampling,
    Step,
    TokenLogprob,
)

# What engines under test are made with.
MAX_RUNNING, MAX_WAITING = 4, 12
# Longer than anything takes on a busy machine.
PATIENCE_S = 60.0


class Harness:
    """One started engine: submits, collects by key, and checks at every step what holds for all of them."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.submitted: set[int] = set()
        self.outputs: dict[int, list[Output]] = {}
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        self.ends: dict[int, Output] = {}
        self.end_order: list[int] = []
        self.cached: dict[int, int | None] = {}
        self.faults: list[str] = []
        self.info: EngineInfo
        self.tokenizer: Tokenizer
        self._keys = itertools.count(1)
        self._submitting = False
        self._moved = asyncio.Event()
        self._loop_thread = threading.get_ident()

    async def start(self) -> None:
        self.info = await self.engine.start(self.on_step)
        self.tokenizer = Tokenizer.from_buffer(self.info.models[0].tokenizer_json)

    def on_step(self, step: Step) -> None:
        if self._submitting:
            self.faults.append("on_step was called before generate returned")
        if threading.get_ident() != self._loop_thread:
            self.faults.append("on_step was called off the loop")
        seen: set[int] = set()
        for output in step.outputs:
            key = output.key
            if key in seen:
                self.faults.append(f"two outputs of {key} in one step")
            seen.add(key)
            if key in self.ends:
                self.faults.append(f"an output of {key} after its end")
            if key not in self.cached and (output.token_ids or output.finish_reason is not FinishReason.ABORTED):
                self.cached[key] = output.cached_tokens
            elif output.cached_tokens is not None:
                self.faults.append(f"cached_tokens of {key} twice")
            self.outputs.setdefault(key, []).append(output)
            self.tokens.setdefault(key, []).extend(output.token_ids)
            self.logprobs.setdefault(key, []).extend(output.logprobs)
            if output.prompt_logprobs is not None:
                self.prompt_logprobs[key] = list(output.prompt_logprobs)
            if output.finish_reason is not None or output.error is not None:
                self.ends[key] = output
                self.end_order.append(key)
        load = self.engine.load()
        if not (0 <= load.num_requests_running <= MAX_RUNNING and 0 <= load.num_requests_waiting <= MAX_WAITING):
            self.faults.append(f"load out of range: {load}")
        if not 0 <= load.kv_used_tokens <= load.kv_total_tokens:
            self.faults.append(f"cache out of range: {load}")
        self._moved.set()

    def has(self, capability: str) -> None:
        """Skip the test unless the engine honours this request field."""
        if capability not in self.info.models[0].capabilities:
            pytest.skip(f"{self.info.name} does not honour {capability}")

    def prompt(self, message: str) -> list[int]:
        text = f"<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n{message}<|im_end|>\n"
        return list(self.tokenizer.encode(text + "<|im_start|>assistant\n", add_special_tokens=False).ids)

    def long_prompt(self, subject: str, tokens: int) -> list[int]:
        lines: list[str] = []
        while len(prompt := self.prompt("\n".join(lines))) < tokens:
            lines += [f"{subject}: line {len(lines) + i}" for i in range(20)]
        return prompt

    def submit(
        self,
        prompt: str | list[int],
        *,
        priority: int = 0,
        cache_salt: bytes = b"",
        choice_index: int = 0,
        constraint: Constraint | None = None,
        logprobs: int | None = None,
        prompt_logprobs: bool = False,
        adapter: str = "",
        **sampling: Any,
    ) -> int:
        key = next(self._keys)
        self._submitting = True
        try:
            self.engine.generate(
                GenerateRequest(
                    key=key,
                    request_id=f"conformance-{key}",
                    model=self.info.models[0].name,
                    prompt_token_ids=self.prompt(prompt) if isinstance(prompt, str) else prompt,
                    sampling=replace(Sampling(temperature=0.0), **sampling),
                    priority=priority,
                    cache_salt=cache_salt,
                    choice_index=choice_index,
                    constraint=constraint,
                    logprobs=logprobs,
                    prompt_logprobs=prompt_logprobs,
                    adapter=adapter,
                )
            )
        finally:
            self._submitting = False
        self.submitted.add(key)
        return key

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition():
                    self._moved.clear()
                    with contextlib.suppress(TimeoutError):
                        # Load changes without a step too, so look again now and then.
                        await asyncio.wait_for(self._moved.wait(), 0.05)
        except TimeoutError:
            pytest.fail(f"waited {PATIENCE_S} s for {what}; load {self.engine.load()}")

    async def ended(self, *keys: int) -> list[Output]:
        await self.until(lambda: all(key in self.ends for key in keys), f"the end of {keys}")
        return [self.ends[key] for key in keys]

    async def run(self, prompt: str | list[int], **options: Any) -> int:
        key = self.submit(prompt, **options)
        await self.ended(key)
        return key

    async def idle(self) -> None:
        """Abort whatever is left and wait until nothing runs."""
        for key in self.submitted - self.ends.keys():
            self.engine.abort(key)
        await self.until(self.is_idle, "an idle engine")

    def is_idle(self) -> bool:
        load = self.engine.load()
        return load.num_requests_running == 0 and load.num_requests_waiting == 0

    async def fill(self) -> list[int]:
        """Occupy every slot with a choice that goes on until it is aborted."""
        keys = [self.submit(f"Count from {n}.", ignore_eos=True, max_tokens=1800) for n in range(MAX_RUNNING)]
        await self.until(lambda: all(self.tokens.get(key) for key in keys), "a token of each")
        return keys
