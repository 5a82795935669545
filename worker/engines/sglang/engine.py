"""The engine `sglang`: one SGLang embedded in this process, token ids in, token ids out.

SGLang's TokenizerManager runs on the worker's loop; scheduler and detokenizer are processes of their own.

SGLang's own handling of signals and of its tasks' failures ends the whole process. None of it is used: the loop that
receives its messages is a task of this engine, its processes are watched here, and whatever breaks ends every choice
with WORKER_FAILED and resolves `wait_failed`.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import tempfile
import threading
import uuid
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from inferway import logs
from inferway.errors import ApiError, Reason, invalid

from ...engine import Adapter, EmbedRequest, Engine, EngineInfo, GenerateRequest, Load, ModelInfo, Step
from . import launch, model
from .books import Books, Reading
from .kv_events import KvMirror
from .options import Options
from .schemas import check_schemas
from .stall import StallWatch
from .streams import Streams

log = logging.getLogger(__name__)
T = TypeVar("T")

# The scheduler's load changes without an output too: prompts are computed in parts, caches evicted.
_READ_INTERVAL_S = 0.2
_FLUSH_LIMIT_S = 10.0
_INTERRUPT_INTERVAL_S = 0.5
DEFAULT_STALL_S = 120.0


class SglangEngine(Engine):
    """Serves the model in the folder `model_path`, with SGLang's own command-line `flags`."""

    def __init__(
        self,
        *,
        model_path: str,
        model_name: str | None = None,
        max_running: int = 256,
        max_waiting: int = 1024,
        context_length: int | None = None,
        stall_s: float = DEFAULT_STALL_S,
        flags: Sequence[str] = (),
    ) -> None:
        self._options = Options(model_path, max_running, max_waiting, context_length, tuple(flags))
        self._model_name = model_name
        self._stall_s = stall_s
        self._books = Books(max_running=max_running, max_waiting=max_waiting)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._adapters: dict[str, str] = {}
        self._is_closing = False
        self._failure = ""
        self._launching: asyncio.Future[launch.Sglang] | None = None
        self._streams: Streams | None = None
        self._events_folder = ""
        self._feed: Any = None
        self._sglang: launch.Sglang
        self._model: ModelInfo
        self._loop: asyncio.AbstractEventLoop
        self._failed: asyncio.Future[str | None]

    async def start(self, on_step: Callable[[Step], None]) -> EngineInfo:
        assert self._launching is None, "started once"
        from .kv_feed import KvFeed

        self._loop = asyncio.get_running_loop()
        self._failed = self._loop.create_future()
        if threading.current_thread() is threading.main_thread():
            # SGLang's processes send it when they break; by default it would end this one.
            self._loop.add_signal_handler(signal.SIGQUIT, self._fail, "a process of SGLang reports that it broke")
        self._events_folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="inferway-kv-")
        self._feed = KvFeed(self._events_folder)
        self._launching = asyncio.ensure_future(asyncio.to_thread(launch.launch, self._options, self._events_folder))
        sglang = self._sglang = await asyncio.shield(self._launching)
        if self._is_closing:
            raise ApiError(Reason.SHUTTING_DOWN, "the worker is shutting down")
        self._model = model.describe(sglang, self._model_name)
        self._adapters = {name: ref.lora_path for name, ref in sglang.manager.lora_registry.get_all_adapters().items()}
        sglang.manager.event_loop = self._loop  # so that SGLang installs no signal handlers of its own
        self._own(self._must_go_on("receiving from SGLang", sglang.manager.handle_loop()))
        sglang.children.watch(self._child_ended)
        mirror = KvMirror(self._model.name) if model.publishes_events(sglang) else None
        streams = Streams(sglang, self._model, self._books, mirror, on_step=on_step, own=self._own)
        if mirror is not None:
            self._own(self._must_go_on("following the KV events", self._feed.run(mirror, streams.tell_events)))
        await self._unless_failed(self._warm_up())
        streams.read_load()
        self._streams = streams
        self._own(self._must_go_on("reading the load", self._read_on(streams)))
        load = self._books.load()
        return EngineInfo(
            name=f"sglang {_version()}",
            models=(self._model,),
            max_running=self._books.lower_max_running(sglang.max_running()),
            max_waiting=self._options.max_waiting,
            kv_total_tokens=load.kv_total_tokens,
            prefill_tokens_per_s=load.prefill_tokens_per_s,
            publishes_kv_events=mirror is not None,
        )

    def generate(self, request: GenerateRequest) -> None:
        streams = self._running()
        self._check(request)
        streams.open(request)

    def abort(self, key: int) -> None:
        if self._streams is not None:
            self._streams.abort(key)

    def load(self) -> Load:
        return self._books.load()

    async def wait_failed(self) -> str | None:
        return await asyncio.shield(self._failed)

    @property
    def reading(self) -> Reading:
        """The scheduler's own numbers, at most a fifth of a second old."""
        return self._books.reading

    async def embed(self, request: EmbedRequest) -> Sequence[float]:
        self._running()
        if self._sglang.manager.is_generation:
            return await super().embed(request)
        _check_ids(request.prompt_token_ids, self._model)
        self._check_adapter(request.adapter)
        return await self._unless_failed(self._embed(request))

    def adapters(self) -> Sequence[Adapter]:
        return [Adapter(self._model.name, name) for name in self._adapters]

    async def load_adapter(self, adapter: Adapter, path: str) -> None:
        self._running()
        if not self._sglang.settings["enable_lora"]:
            return await super().load_adapter(adapter, path)
        name = adapter.name
        if name in self._adapters:
            raise invalid("adapter", f"An adapter '{name}' is loaded already.")
        from sglang.srt.managers.io_struct import LoadLoRAAdapterReqInput

        order = LoadLoRAAdapterReqInput(lora_name=name, lora_path=path)
        result = await self._unless_failed(self._sglang.manager.load_lora_adapter(order))
        if not result.success:
            logs.event(log, "adapter_refused", adapter=name, path=path, error=result.error_message)
            raise invalid("path", f"The adapter '{name}' cannot be loaded; the worker's log says why.")
        self._adapters[name] = path

    async def unload_adapter(self, adapter: Adapter) -> None:
        self._running()
        if not self._sglang.settings["enable_lora"]:
            return await super().unload_adapter(adapter)
        name = adapter.name
        self._check_adapter(name)
        from sglang.srt.managers.io_struct import UnloadLoRAAdapterReqInput

        # First, because SGLang loads an adapter again when a request names it.
        path = self._adapters.pop(name)
        order = UnloadLoRAAdapterReqInput(lora_name=name)
        result = await self._unless_failed(self._sglang.manager.unload_lora_adapter(order))
        if not result.success:
            self._adapters[name] = path
            logs.event(log, "adapter_not_unloaded", adapter=name, error=result.error_message)
            raise ApiError(Reason.INTERNAL_ERROR, f"The adapter '{name}' cannot be unloaded.")

    async def flush_cache(self) -> bool:
        """Empty the KV cache; whether it was done: not while anything runs."""
        self._running()
        result = await self._unless_failed(self._sglang.manager.flush_cache(timeout_s=_FLUSH_LIMIT_S))
        return bool(result.success)

    async def close(self) -> None:
        if self._launching is None:
            return
        is_first, self._is_closing = not self._is_closing, True
        while not self._launching.done():
            await asyncio.to_thread(launch.interrupt)
            await asyncio.wait({self._launching}, timeout=_INTERRUPT_INTERVAL_S)
        if not is_first:
            return
        if self._streams is not None:
            self._streams.end_all(None)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if not self._failed.done():
            self._failed.set_result(None)
        self._feed.close()
        if self._launching.exception() is None:
            sglang = self._launching.result()
            sglang.children.unwatch()
            await asyncio.to_thread(sglang.end)
            sglang.close_sockets()
        if threading.current_thread() is threading.main_thread():
            self._loop.remove_signal_handler(signal.SIGQUIT)
        await asyncio.to_thread(launch.remove_folder, self._events_folder)

    def _running(self) -> Streams:
        if self._is_closing:
            raise ApiError(Reason.SHUTTING_DOWN, "This worker is shutting down.", retry_after_s=1.0)
        if self._failure or self._streams is None:
            raise _engine_failed()
        return self._streams

    def _check(self, request: GenerateRequest) -> None:
        """What SGLang would not survive, or would drop in silence."""
        model = self._model
        if not self._sglang.manager.is_generation:
            raise ApiError(Reason.UNSUPPORTED_VALUE, f"'{model.name}' is an embedding model.", "model")
        _check_ids(request.prompt_token_ids, model)
        if any(not 0 <= token < model.vocab_size for token in request.sampling.logit_bias):
            raise invalid("logit_bias", f"logit_bias names a token beyond the vocabulary of {model.vocab_size}.")
        self._check_adapter(request.adapter)
        if request.constraint is not None and f"constraint.{request.constraint.kind}" not in model.capabilities:
            raise ApiError(Reason.UNSUPPORTED_VALUE, f"'{model.name}' is served without grammars.", "constraint")
        # The other backend says itself what it does not enforce.
        says_itself = self._sglang.settings["grammar_backend"] == "llguidance"
        if request.constraint is not None and not says_itself:
            check_schemas(request.constraint)

    def _check_adapter(self, name: str) -> None:
        if name and name not in self._adapters:
            raise ApiError(Reason.MODEL_NOT_FOUND, f"No adapter '{name}' is loaded.", "model")

    async def _warm_up(self) -> None:
        """One request through everything, longer than a page so that the KV events are heard too; then forget it."""
        from sglang.srt.managers.io_struct import EmbeddingReqInput, GenerateReqInput

        manager, model = self._sglang.manager, self._model
        ids = [token % model.vocab_size for token in range(min(2 * model.block_size, model.context_length - 1))]
        order = (
            GenerateReqInput(rid=uuid.uuid4().hex, input_ids=ids, sampling_params={"max_new_tokens": 2}, stream=True)
            if manager.is_generation
            else EmbeddingReqInput(rid=uuid.uuid4().hex, input_ids=ids[:16])
        )
        async for _ in manager.generate_request(order):
            pass
        await manager.flush_cache(timeout_s=_FLUSH_LIMIT_S)

    async def _embed(self, request: EmbedRequest) -> Sequence[float]:
        from sglang.srt.managers.io_struct import EmbeddingReqInput

        order = EmbeddingReqInput(
            rid=uuid.uuid4().hex,
            input_ids=list(request.prompt_token_ids),
            dimensions=request.dimensions,
            priority=request.priority,
            lora_path=request.adapter or None,
        )
        embedding: Sequence[float] = ()
        try:
            async for answer in self._sglang.manager.generate_request(order):
                embedding = answer["embedding"]
        except ValueError as error:
            logs.event(log, "refused_by_sglang", request_id=request.request_id, error=str(error))
            raise ApiError(Reason.INVALID_REQUEST, "The engine does not take this request.") from error
        return embedding

    async def _read_on(self, streams: Streams) -> None:
        watch = StallWatch(self._stall_s, step_tokens=max(0, self._sglang.settings["chunked_prefill_size"] or 0))
        while True:
            await asyncio.sleep(_READ_INTERVAL_S)
            streams.read_load()
            load = self._books.load()
            silent_s = watch.look(
                (streams.num_outputs, self._books.reading),
                is_busy=len(self._books) > 0,
                uncached_tokens=load.uncached_tokens_in_flight,
                tokens_per_s=load.prefill_tokens_per_s,
                now=self._loop.time(),
            )
            if silent_s is not None:
                self._fail(f"SGLang's scheduler has not moved for {silent_s:.0f} s with {len(self._books)} requests")

    def _child_ended(self, pid: int) -> None:
        self._fail(f"the process {pid} of SGLang ended")

    def _fail(self, sentence: str) -> None:
        if self._failure or self._is_closing:
            return
        self._failure = sentence
        logs.event(log, "sglang_failed", level=logging.ERROR, error=sentence)
        if self._streams is not None:
            self._streams.end_all(_engine_failed)
        self._failed.set_result(sentence)

    async def _must_go_on(self, what: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work`, which never ends by itself."""
        try:
            await work
            self._fail(f"{what} came to an end")
        except Exception:
            log.exception("task_failed")
            self._fail(f"{what} failed")

    async def _unless_failed(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`, which is given up when the engine fails. Raises what it raises, or WORKER_FAILED."""
        task = self._own(work)
        either: set[asyncio.Future[Any]] = {task, self._failed}
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not task.done():
                task.cancel()
        if not task.done() or task.cancelled():
            raise _engine_failed()
        return task.result()

    def _own(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _check_ids(token_ids: Sequence[int], model: ModelInfo) -> None:
    """A token beyond the vocabulary ends SGLang's scheduler."""
    if not token_ids:
        raise invalid("prompt_token_ids", "prompt_token_ids must hold at least 1 token, got 0.")
    least, largest = min(token_ids), max(token_ids)
    if least < 0 or largest >= model.vocab_size:
        raise invalid(
            "prompt_token_ids",
            f"prompt_token_ids must be from 0 to {model.vocab_size - 1}, got {least if least < 0 else largest}.",
        )
    if len(token_ids) >= model.context_length:
        raise ApiError(
            Reason.CONTEXT_LENGTH_EXCEEDED,
            f"The prompt has {len(token_ids)} tokens; this model takes fewer than {model.context_length}.",
            "prompt_token_ids",
        )


def _engine_failed() -> ApiError:
    return ApiError(Reason.WORKER_FAILED, "The engine failed while it served this request.")


def _version() -> str:
    from importlib.metadata import version

    return version("sglang")
