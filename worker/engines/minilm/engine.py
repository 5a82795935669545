"""The engine `minilm`: all-MiniLM-L6-v2, or another BERT made for sentences, on the CPU.

A few threads compute, each a pass at a time; numpy releases the interpreter's lock while it does. What waits, and for
whom, is known to the loop alone, so nothing is locked. A text that nobody waits for any more is not computed, unless
its pass has begun: that ends within a fraction of a second, and its vector is thrown away.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import NamedTuple

from inferway.errors import ApiError, Reason

from ...engine import EmbedRequest, Engine, EngineInfo, GenerateRequest, Load, Step
from .bert import Bert
from .model import context_length, describe, load, source
from .passes import SMALL_PASS_TOKENS, Passes

# As for the CPU engine of chat models: the rest of the mesh wants some cores, too.
_MAX_THREADS = 4
# Weight of the newest pass in the reported rate.
_NEWEST = 0.25


@dataclass(frozen=True, slots=True)
class _Text:
    token_ids: Sequence[int]
    vector: asyncio.Future[list[float]]


class _Computed(NamedTuple):
    vectors: list[list[float]]
    tokens_per_s: float


class MiniLmEngine(Engine):
    """Embeds `max_running` texts beside each other, several in a pass. Takes the memory of the model's file.

    `context_length` None is what the model was made for, 256 tokens with the bundled one. `threads` None is the number
    of cores, at most 4; numpy itself should have one (OPENBLAS_NUM_THREADS).
    """

    def __init__(
        self,
        *,
        model_path: str | None = None,
        model_name: str | None = None,
        max_running: int = 32,
        max_waiting: int = 1024,
        context_length: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._model_path = model_path
        self._model_name = model_name
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._context_length = context_length
        self._threads = threads or min(_MAX_THREADS, _cores())
        self._pool: ThreadPoolExecutor | None = None
        self._bert: Bert | None = None
        self._closing = False
        # Texts that somebody waits for; those that no pass has taken yet are also in `_waiting`.
        self._texts: dict[int, _Text] = {}
        self._waiting = Passes()
        self._passes: set[asyncio.Future[_Computed]] = set()
        self._is_dispatching = False
        self._last_key = 0
        self._tokens_per_s = 0.0
        self._loop: asyncio.AbstractEventLoop

    async def start(self, on_step: Callable[[Step], None]) -> EngineInfo:
        """`on_step` is never called: no choice moves."""
        assert self._pool is None, "started once"
        self._loop = asyncio.get_running_loop()
        self._pool = ThreadPoolExecutor(self._threads, "minilm")
        self._bert, info = await self._loop.run_in_executor(self._pool, self._open)
        return info

    def generate(self, request: GenerateRequest) -> None:
        raise ApiError(Reason.UNSUPPORTED_VALUE, f"'{request.model}' is an embedding model.", "model")

    def abort(self, key: int) -> None:
        """There are no choices."""

    async def embed(self, request: EmbedRequest) -> Sequence[float]:
        if self._closing:
            raise ApiError(Reason.SHUTTING_DOWN, "the worker is shutting down")
        if self._bert is None:
            raise ApiError(Reason.WORKER_FAILED, "the engine does not run")
        self._last_key += 1
        key, text = self._last_key, _Text(request.prompt_token_ids, self._loop.create_future())
        self._texts[key] = text
        self._waiting.add(key, len(text.token_ids), request.priority)
        self._dispatch_soon()
        try:
            return await text.vector
        finally:
            del self._texts[key]
            self._waiting.discard(key)

    def load(self) -> Load:
        return Load(
            num_requests_running=len(self._texts) - len(self._waiting),
            num_requests_waiting=len(self._waiting),
            uncached_tokens_in_flight=sum(len(text.token_ids) for text in self._texts.values()),
            prefill_tokens_per_s=self._tokens_per_s,
        )

    async def close(self) -> None:
        self._closing = True
        for text in self._texts.values():
            if not text.vector.done():
                text.vector.set_exception(ApiError(Reason.SHUTTING_DOWN, "the worker is shutting down"))
        if self._passes:
            await asyncio.wait(self._passes)
        if self._pool is not None:
            self._pool.shutdown()  # its threads have nothing left to do

    def _open(self) -> tuple[Bert, EngineInfo]:
        """Load everything and learn the machine's pace; some tenths of a second. Raises OSError or ApiError."""
        origin = source(self._model_path, self._model_name)
        try:
            bert = load(origin.folder)
            length = context_length(origin.folder, bert, self._context_length)
            info = describe(origin, bert, length)
            for _ in range(2):  # the first one also reads the weights in
                warm = _compute(bert, [range(min(SMALL_PASS_TOKENS, length, bert.vocab_size))])
        except ValueError as error:
            raise OSError(f"the weights in {origin.folder} do not fit together: {error}") from error
        self._tokens_per_s = warm.tokens_per_s * self._threads
        return bert, EngineInfo(
            name=f"minilm (numpy {version('numpy')})",
            models=(info,),
            max_running=self._max_running,
            max_waiting=self._max_waiting,
            prefill_tokens_per_s=self._tokens_per_s,
        )

    def _dispatch_soon(self) -> None:
        """After the other texts that came in the same turn of the loop: they may share a pass."""
        if not self._is_dispatching:
            self._is_dispatching = True
            self._loop.call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._is_dispatching = False
        assert self._pool is not None
        assert self._bert is not None
        while not self._closing and len(self._passes) < self._threads:
            keys = self._waiting.take(self._threads - len(self._passes))
            if not keys:
                return
            texts = [self._texts[key].token_ids for key in keys]
            running = self._loop.run_in_executor(self._pool, _compute, self._bert, texts)
            self._passes.add(running)
            running.add_done_callback(partial(self._computed, keys))

    def _computed(self, keys: Sequence[int], done: asyncio.Future[_Computed]) -> None:
        self._passes.discard(done)
        error = done.exception()
        if error is None:
            rate = done.result().tokens_per_s * self._threads
            self._tokens_per_s += _NEWEST * (rate - self._tokens_per_s)
        for place, key in enumerate(keys):
            text = self._texts.get(key)
            if text is None or text.vector.done():
                continue
            if error is None:
                text.vector.set_result(done.result().vectors[place])
            else:
                text.vector.set_exception(error)
        self._dispatch_soon()


def _compute(bert: Bert, texts: Sequence[Sequence[int]]) -> _Computed:
    began = time.monotonic()
    vectors = bert.embed(texts).tolist()
    return _Computed(vectors, sum(map(len, texts)) / (time.monotonic() - began))


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
