"""The engine `llamacpp`: SmolLM2-135M-Instruct, or another GGUF file, on the CPU.

One thread owns model and context and computes step after step; it sleeps when there is nothing to do. The loop's side
and the thread share the scheduler under one lock, which nobody holds while something is computed or waited for. Each
step comes back as one call on the loop; a step that only moved a prompt on is one without outputs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from inferway import logs
from inferway.errors import ApiError, Reason, invalid

from ...engine import Engine, EngineInfo, GenerateRequest, Load, ModelInfo, Output, Step, TokenLogprob
from .abi import VERSION, Library
from .gguf import read_metadata
from .grammar import KINDS, STACK_BYTES, Compiler, Grammar, GrammarFailed
from .grammars import Grammars, start_thread
from .llama import Context, Model
from .model import Source, describe, sampling_defaults, source
from .pace import Pace
from .sampler import Defaults, Ids, Sampler
from .scheduler import SCORED_ROWS, Plan, Scheduler, Truncate
from .scores import score
from .slots import Choice
from .tokenizer import first_difference

T = TypeVar("T")

_log = logging.getLogger(__name__)

# Half of what the bundled model was trained for: 72 MB of cache a slot.
_CONTEXT_LENGTH = 4096
# More cores bring little for models that one would serve on a CPU, and the rest of the mesh wants some.
_MAX_THREADS = 4
# Rows of a batch; larger ones are no faster and their buffers cost memory.
_MAX_ROWS = 128
_WARM_UP_TOKENS = 32
_SEED_MASK = (1 << 64) - 1


@dataclass(slots=True)
class _Served:
    """What the thread works on."""

    model: Model
    context: Context
    pace: Pace
    defaults: Defaults
    end_tokens: Ids
    samplers: dict[int, Sampler]


class LlamaCppEngine(Engine):
    """Serves one GGUF model to `max_running` requests at once; `max_waiting` more are held, by priority.

    `context_length` None is 4096, or what the model was trained for if that is less. Memory: the model, and for
    each slot context_length times what a token's keys and values take (18 KB with the bundled model). `threads` None
    is the number of cores, at most 4.
    """

    def __init__(
        self,
        *,
        model_path: str | None = None,
        model_name: str | None = None,
        tool_parser: str = "",
        reasoning_parser: str = "",
        max_running: int = 8,
        max_waiting: int = 64,
        context_length: int | None = None,
        threads: int | None = None,
    ) -> None:
        self._model_path = model_path
        self._model_name = model_name
        self._formats = (tool_parser, reasoning_parser)
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._context_length = context_length
        self._threads = threads or min(_MAX_THREADS, _cores())
        self._changed = threading.Condition()
        self._closing = False
        self._failed = False
        self._scheduler: Scheduler | None = None
        self._grammars: Grammars[Grammar] | None = None
        self._prefill_tokens_per_s = 0.0
        self._thread: threading.Thread | None = None
        self._ended: asyncio.Future[None]
        self._failure: asyncio.Future[str]
        self._loop: asyncio.AbstractEventLoop
        self._on_step: Callable[[Step], None]

    async def start(self, on_step: Callable[[Step], None]) -> EngineInfo:
        assert self._thread is None, "started once"
        self._loop = asyncio.get_running_loop()
        self._on_step = on_step
        self._ended = self._loop.create_future()
        self._failure = self._loop.create_future()
        started: asyncio.Future[EngineInfo] = self._loop.create_future()
        self._thread = start_thread(partial(self._run, started), "llamacpp", STACK_BYTES)
        return await started

    def generate(self, request: GenerateRequest) -> None:
        constraint = request.constraint
        with self._changed:
            if self._closing:
                raise ApiError(Reason.SHUTTING_DOWN, "the worker is shutting down")
            if self._failed or self._scheduler is None:
                raise ApiError(Reason.WORKER_FAILED, "the engine does not run")
            grammars = self._grammars
            if constraint is not None and (grammars is None or constraint.kind not in KINDS):
                raise ApiError(Reason.UNSUPPORTED_VALUE, f"The engine has no {constraint.kind}.", "constraint")
            self._scheduler.submit(request, is_blocked=constraint is not None, now=time.monotonic())
            self._changed.notify()
        if constraint is not None and grammars is not None:
            grammars.ask(constraint).add_done_callback(partial(self._compiled, request))

    def abort(self, key: int) -> None:
        with self._changed:
            output = self._scheduler.abort(key) if self._scheduler is not None else None
            self._changed.notify()
        if output is not None:
            self._loop.call_soon(self._on_step, Step([output]))

    def load(self) -> Load:
        with self._changed:
            if self._scheduler is None:
                return Load(0, 0)
            load = self._scheduler.load(self._prefill_tokens_per_s)
        if self._grammars is None:
            return load
        return replace(load, grammar_hits=self._grammars.hits, grammar_misses=self._grammars.misses)

    async def wait_failed(self) -> str | None:
        return await asyncio.shield(self._failure)

    async def close(self) -> None:
        if self._thread is None:
            return
        with self._changed:
            self._closing = True
            self._changed.notify()
        await asyncio.shield(self._ended)
        self._thread.join()  # it has nothing left to do

    def _compiled(self, request: GenerateRequest, done: Future[Grammar]) -> None:
        """The grammar of a blocked choice is there, or cannot be; on the loop or on the thread that compiles."""
        error = done.exception()
        if error is not None and not isinstance(error, ApiError):
            logs.event(_log, "grammar_failed", level=logging.ERROR, request_id=request.request_id, error=repr(error))
            error = ApiError(Reason.INTERNAL_ERROR, "An internal error occurred.")
        with self._changed:
            assert self._scheduler is not None
            if error is None:
                self._scheduler.release(request.key, done.result())
                output = None
            else:
                output = self._scheduler.refuse(request.key, error)
            self._changed.notify()
        if output is not None:
            self._loop.call_soon_threadsafe(self._on_step, Step([output]))

    # From here on: the thread.

    def _run(self, started: asyncio.Future[EngineInfo]) -> None:
        try:
            self._serve(started)
        finally:
            if self._grammars is not None:
                self._grammars.close()
            self._loop.call_soon_threadsafe(_resolve, self._ended, None)

    def _serve(self, started: asyncio.Future[EngineInfo]) -> None:
        try:
            served, info = self._open()
        except Exception as error:
            self._loop.call_soon_threadsafe(_reject, started, error)
            return
        self._loop.call_soon_threadsafe(_resolve, started, info)
        try:
            self._compute(served)
            self._end_all(None)
        except Exception as error:
            _log.exception("engine_thread_failed")
            self._end_all(_engine_failed)
            sentence = f"{type(error).__name__}: {error}"
            self._loop.call_soon_threadsafe(_resolve, self._failure, sentence)
        finally:
            served.context.close()
            served.model.close()

    def _open(self) -> tuple[_Served, EngineInfo]:
        """Load everything and learn the machine's pace; 0.8 s with the bundled model."""
        origin = source(self._model_path, self._model_name)
        metadata = read_metadata(origin.path)
        library = Library()
        model = Model(library, origin.path)
        length = self._length(origin, model)
        info = describe(origin, metadata, context_length=length, vocab_size=model.vocab_size, formats=self._formats)
        end_tokens = model.end_tokens()
        compiler: Future[Compiler] = Future()
        # Beside what llama.cpp does meanwhile.
        reader = start_thread(partial(_read_tokenizer, info, end_tokens, compiler), "llamacpp-tokenizer", 0)
        if origin.defaults is None and (text := first_difference(info.tokenizer_json, model.tokenize)) is not None:
            raise OSError(f"the tokenizer of {origin.path} cannot be exported exactly: ids of {text!r} differ")
        max_rows = max(_MAX_ROWS, 2 * self._max_running)
        context = Context(
            model,
            sequences=self._max_running,
            length=length,
            max_rows=max_rows,
            max_outputs=self._max_running + SCORED_ROWS,
            threads=self._threads,
        )
        pace = Pace(tokens_per_s=_warm_up(context), max_tokens=max_rows - self._max_running)
        self._prefill_tokens_per_s = pace.tokens_per_s
        reader.join()
        if (unreadable := compiler.exception()) is None:
            info = replace(info, capabilities=(*info.capabilities, *(f"constraint.{kind}" for kind in KINDS)))
            self._grammars = Grammars(compiler.result().compile, stack_bytes=STACK_BYTES)
        else:
            logs.event(_log, "no_grammars", level=logging.WARNING, error=str(unreadable))
        with self._changed:
            self._scheduler = Scheduler(
                max_running=self._max_running,
                max_waiting=self._max_waiting,
                context_length=length,
                end_tokens=end_tokens,
            )
        served = _Served(
            model=model,
            context=context,
            pace=pace,
            defaults=origin.defaults or sampling_defaults(metadata),
            end_tokens=np.array(end_tokens, np.int64),
            samplers={},
        )
        return served, EngineInfo(
            name=f"llamacpp {VERSION}",
            models=(info,),
            max_running=self._max_running,
            max_waiting=self._max_waiting,
            kv_total_tokens=self._max_running * length,
            prefill_tokens_per_s=pace.tokens_per_s,
        )

    def _length(self, origin: Source, model: Model) -> int:
        if not model.generates_text():
            raise OSError(f"{origin.path} is not a plain decoder; other kinds of models are not supported")
        if self._context_length is None:
            return min(_CONTEXT_LENGTH, model.trained_context)
        if not 2 <= self._context_length <= model.trained_context:
            raise invalid(
                "context_length", f"context_length is {self._context_length}; 2 to {model.trained_context} is possible"
            )
        return self._context_length

    def _compute(self, served: _Served) -> None:
        scheduler = self._scheduler
        assert scheduler is not None
        while True:
            with self._changed:
                while not self._closing and not scheduler.has_work():
                    self._changed.wait()
                if self._closing:
                    return
                plan = scheduler.begin(served.pace.budget, now=time.monotonic())
            results = _step(served, plan)
            with self._changed:
                self._prefill_tokens_per_s = served.pace.tokens_per_s
                if results is None:
                    done = scheduler.fail(plan, _step_failed)
                else:
                    done = scheduler.finish(
                        plan, results.chosen, results.scores, over=results.over, failed=results.failed
                    )
            if results is None:
                logs.event(_log, "step_failed", level=logging.ERROR, rows=len(plan.tokens))
                for index in sorted(set(plan.slots)):
                    served.context.truncate(index, 0)
            self._emit(served.samplers, plan.outputs + done)

    def _emit(self, samplers: dict[int, Sampler], outputs: list[Output]) -> None:
        for output in outputs:
            if output.finish_reason is not None or output.error is not None:
                samplers.pop(output.key, None)
        self._loop.call_soon_threadsafe(self._on_step, Step(outputs))

    def _end_all(self, error: Callable[[], ApiError] | None) -> None:
        with self._changed:
            self._failed = error is not None
            outputs = self._scheduler.end_all(error) if self._scheduler is not None else []
        if outputs:
            self._loop.call_soon_threadsafe(self._on_step, Step(outputs))


class _Results(NamedTuple):
    """Of a computed plan, by row: the tokens that were chosen, log-probabilities, and what grammars ended."""

    chosen: dict[int, int]
    scores: dict[int, TokenLogprob]
    over: set[int]
    failed: dict[int, ApiError]


def _step(served: _Served, plan: Plan) -> _Results | None:
    """Compute a plan and choose a token for each of its sampled rows; None when it could not be computed."""
    context = served.context
    for move in plan.moves:
        if isinstance(move, Truncate):
            context.truncate(move.slot, move.length)
        else:
            context.copy(move.source, move.target, move.length)
    results = _Results({}, {}, set(), {})
    if not plan.tokens:
        return results
    began = time.monotonic()
    if not context.decode(plan.tokens, plan.positions, plan.slots, plan.wanted):
        return None
    for row, choice in plan.scored.items():
        following = choice.prompt[plan.positions[row] + 1]
        results.scores[row] = score(context.logits(row), following, choice.request.logprobs or 0)
    seconds = time.monotonic() - began
    served.pace.record(rows=len(plan.tokens), prompt_tokens=plan.prompt_tokens, seconds=seconds)
    for row, choice in plan.sampled.items():
        sampler, top = _sampler(served, choice), choice.request.logprobs
        try:
            if top is None:
                results.chosen[row] = sampler.choose(context.logits(row))
            else:
                results.scores[row] = chosen = sampler.choose_scored(context.logits(row), top)
                results.chosen[row] = chosen.token_id
        except GrammarFailed as failure:
            cause = str(failure.__cause__)
            logs.event(_log, "grammar_failed", request_id=choice.request.request_id, error=cause)
            results.failed[row] = failure.error
        else:
            if sampler.is_over:
                results.over.add(row)
    return results


def _sampler(served: _Served, choice: Choice) -> Sampler:
    request = choice.request
    sampler = served.samplers.get(request.key)
    if sampler is None:
        seed = request.sampling.seed
        # The choices of one request differ although they have its seed.
        entropy = None if seed is None else [seed & _SEED_MASK, request.choice_index]
        sampler = served.samplers[request.key] = Sampler(
            request.sampling,
            served.defaults,
            prompt=request.prompt_token_ids,
            vocab_size=served.model.vocab_size,
            end_tokens=served.end_tokens,
            rng=np.random.default_rng(entropy),
            matcher=choice.grammar.matcher() if choice.grammar is not None else None,
        )
    return sampler


def _read_tokenizer(info: ModelInfo, end_tokens: Sequence[int], done: Future[Compiler]) -> None:
    try:
        done.set_result(Compiler(info.tokenizer_json, vocab_size=info.vocab_size, end_tokens=end_tokens))
    except BaseException as error:  # a panic inside llguidance is no Exception
        done.set_exception(error)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _warm_up(context: Context) -> float:
    """Compute a short prompt twice, for the first one also reads the weights in; return tokens a second."""
    began = 0.0
    for _ in range(2):
        began = time.monotonic()
        count = _WARM_UP_TOKENS
        if not context.decode(range(count), range(count), [0] * count, [i == count - 1 for i in range(count)]):
            raise OSError("llama.cpp loads this model but cannot compute with it")
        context.truncate(0, 0)
    return _WARM_UP_TOKENS / (time.monotonic() - began)


def _step_failed() -> ApiError:
    return ApiError(Reason.WORKER_FAILED, "the engine could not compute this request")


def _engine_failed() -> ApiError:
    return ApiError(Reason.WORKER_FAILED, "the engine failed while it served this request")


def _resolve(future: asyncio.Future[T], value: T) -> None:
    if not future.done():
        future.set_result(value)


def _reject(future: asyncio.Future[T], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
