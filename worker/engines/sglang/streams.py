"""The choices that SGLang works on: each one request to it, with a stream that one task reads.

The outputs of one scheduler step reach these tasks in one turn of the loop and leave as one `Step` in the next. A
choice leaves the table with its last output; what SGLang still says about it reaches nobody.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

from inferway import logs
from inferway.blocks import KvEvent, block_hashes
from inferway.errors import ApiError, Reason

from ...engine import FinishReason, GenerateRequest, ModelInfo, Output, Step
from . import mapping
from .books import Books, Reading, total
from .kv_events import KvMirror
from .launch import Sglang
from .model import takes_seed

log = logging.getLogger(__name__)

_OVERLOADED_RETRY_S = 1.0


class Streams:
    """Lives on one loop. `own` runs a coroutine as a task that somebody awaits; `mirror` None: no KV events."""

    def __init__(
        self,
        sglang: Sglang,
        model: ModelInfo,
        books: Books,
        mirror: KvMirror | None,
        *,
        on_step: Callable[[Step], None],
        own: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._sglang = sglang
        self._model = model
        self._books = books
        self._mirror = mirror
        self._on_step = on_step
        self._own = own
        self._defaults: dict[str, Any] = sglang.manager.model_config.get_default_sampling_params()
        self._takes_seed = takes_seed(sglang.settings)
        self._choices: dict[int, _Choice] = {}
        self._outputs: list[Output] = []
        self._kv_events: list[KvEvent] = []
        self._is_flushing = False
        # Since the start.
        self.num_outputs = 0

    def open(self, request: GenerateRequest) -> None:
        """Send a request that has been checked. Raises OVERLOADED when too many are held."""
        if self._books.is_full:
            raise ApiError(
                Reason.OVERLOADED,
                f"This engine takes {len(self._books)} requests at a time and has as many.",
                retry_after_s=_OVERLOADED_RETRY_S,
            )
        prompt = len(request.prompt_token_ids)
        self._books.admit(request.key, prompt_tokens=prompt, cached_tokens=self._expected_cached(request))
        room = self._model.context_length - prompt
        params = mapping.sampling_params(request, self._defaults, room=room, takes_seed=self._takes_seed)
        choice = self._choices[request.key] = _Choice(request)
        trace = self._sglang.settings["enable_trace"]
        choice.task = self._own(
            self._run(choice, mapping.request_fields(request, choice.request_id, params, trace=trace))
        )

    def abort(self, key: int) -> None:
        choice = self._choices.get(key)
        if choice is None:
            return
        manager = self._sglang.manager
        state = manager.rid_to_state.get(choice.request_id)
        if state is not None and state.dispatched:
            manager.abort_request(choice.request_id)  # the scheduler answers with the last output
        else:
            # It has not left this process, where SGLang would not find it.
            self._end(choice, Output(key, finish_reason=FinishReason.ABORTED))

    def end_all(self, error: Callable[[], ApiError] | None) -> None:
        """End what is held, in `error` or, without one, as aborted; nothing waits for SGLang."""
        reason = FinishReason.ABORTED if error is None else None
        for key, choice in list(self._choices.items()):
            self._end(choice, Output(key, finish_reason=reason, error=error() if error else None))

    def tell_events(self, events: list[KvEvent]) -> None:
        self._kv_events += events
        self._flush_soon()

    def read_load(self) -> None:
        """Take the scheduler's newest numbers; 10 microseconds."""
        self._books.read(
            total(
                Reading(
                    running=load.num_running_reqs,
                    waiting=load.num_waiting_reqs,
                    waiting_uncached_tokens=load.num_waiting_uncached_tokens,
                    kv_used_tokens=load.num_used_tokens,
                    kv_total_tokens=load.max_total_num_tokens,
                    prefilled_tokens=load.total_prefill_uncached_tokens,
                    prefill_us=load.total_prefill_busy_us,
                )
                for load in self._sglang.loads()
            )
        )

    def _expected_cached(self, request: GenerateRequest) -> int:
        """Prompt tokens that the cache holds, as far as the KV events tell."""
        if self._mirror is None or request.adapter or request.prompt_logprobs:
            return 0
        size = self._model.block_size
        # The last token is always computed.
        hashes = block_hashes(request.prompt_token_ids[:-1], size, request.cache_salt)
        return self._mirror.cached_blocks(hashes) * size

    async def _run(self, choice: _Choice, fields: dict[str, Any]) -> None:
        """Read the stream of one choice to its end, and put every chunk into the present step."""
        from sglang.srt.managers.io_struct import GenerateReqInput

        request = choice.request
        try:
            async for chunk in self._sglang.manager.generate_request(GenerateReqInput(**fields)):
                self._put(choice, mapping.output(request, chunk, is_first=not choice.has_output))
            # For a stream without a last chunk.
            self._put(choice, Output(request.key, error=mapping.refusal(request, 500)))
        except ValueError as error:  # how SGLang refuses a request
            logs.event(log, "refused_by_sglang", request_id=request.request_id, error=str(error))
            self._put(choice, Output(request.key, error=mapping.refusal(request, 400, str(error))))
        except Exception:
            log.exception("request_failed")
            self._put(choice, Output(request.key, error=mapping.refusal(request, 500)))

    def _end(self, choice: _Choice, output: Output) -> None:
        if choice.task is not None:
            choice.task.cancel()
        self._put(choice, output)

    def _put(self, choice: _Choice, output: Output) -> None:
        """Add an output to the step; those after a choice's end are dropped."""
        key = output.key
        if self._choices.get(key) is not choice:
            return
        choice.has_output = True
        if output.cached_tokens is not None:
            self._books.answered(key)
        if output.finish_reason is not None or output.error is not None:
            del self._choices[key]
            self._books.end(key)
        self._outputs.append(output)
        self.num_outputs += 1
        self._flush_soon()

    def _flush_soon(self) -> None:
        """All tasks that the present message of the scheduler woke run before this does."""
        if not self._is_flushing:
            self._is_flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        self.read_load()
        step = Step(self._outputs, self._kv_events)
        self._outputs, self._kv_events = [], []
        self._on_step(step)


class _Choice:
    """A choice from its admission to its last output."""

    __slots__ = ("has_output", "request", "request_id", "task")

    def __init__(self, request: GenerateRequest) -> None:
        self.request = request
        # SGLang aborts whatever begins with an id: all are of one length, and none is another's beginning.
        self.request_id = uuid.uuid4().hex
        self.task: asyncio.Task[None] | None = None
        self.has_output = False
