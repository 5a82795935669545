"""One request on its way through the mesh: asked for, granted, generated, given back.

States: WAITING (a ticket is out, or will be after a pause), RUNNING (its choices run on one worker), ENDED. A
Generation is moved by calls from the router stream, the worker session and the clock; it starts no task. Whatever it
holds (queue place, keys on a worker, lease) is given back exactly once, in `_let_go`, however it ends. What it has
produced is known a little later where it was stopped: `counted`.

Until its first output a request may move to another worker: core/moves.py.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from inferway.errors import ApiError, Reason

from .choices import Choice, Sink, sum_usage
from .core.constraints import Constraint
from .core.generation_fields import Sampling
from .core.moves import Moves, Park, Pause
from .core.sse import Usage
from .core.trace import Attempt, RequestTrace
from .metrics import Metrics
from .router_client import Ask, Grant, ReleaseOutcome, Ticket, outcome_of
from .routing import Routing
from .worker_messages import ModelDescription, RequestSpec
from .worker_sessions import WorkerSession, WorkerSessions

log = logging.getLogger(__name__)

# How often `tick` is called: what is due before the next call is done in this one.
TICK_S = 0.25


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything that is decided about a request before a worker is asked. Times are monotonic seconds."""

    ask: Ask
    # What the prompt was made for; a worker that describes the model otherwise does not get it.
    description: ModelDescription
    prompt_token_ids: Sequence[int]
    sampling: Sampling
    cache_salt: bytes
    traceparent: str
    logprobs: int | None
    prompt_logprobs: bool
    received: float
    deadline: float
    stall_s: float
    heartbeat_s: float
    # See RequestSpec.
    prompt_wire: bytes = b""
    constraint: Constraint | None = None
    # See RequestSpec; differs between the prompts of one request.
    settlement: bytes = b""
    # None where traces are off; `traceparent` then goes on as it came.
    trace: RequestTrace | None = None


@dataclass(slots=True)
class Timing:
    """Stage times of one request, monotonic seconds; 0 = not reached."""

    queued: float = 0.0
    dispatched: float = 0.0
    first_token: float = 0.0


class _State(Enum):
    WAITING = auto()
    RUNNING = auto()
    ENDED = auto()


@dataclass(slots=True)
class _Run:
    """What a request holds on one worker."""

    grant: Grant
    session: WorkerSession
    choices: list[Choice] = field(default_factory=list)
    keys: Sequence[int] = ()
    open_choices: int = 0


class Generation:
    """Start it, await `started` and `ended`, and always `close` it."""

    def __init__(self, plan: Plan, sink: Sink, routing: Routing, sessions: WorkerSessions, metrics: Metrics) -> None:
        loop = asyncio.get_running_loop()
        self._plan = plan
        self._sink = sink
        self._routing = routing
        self._sessions = sessions
        self._metrics = metrics
        self._state = _State.WAITING
        self._ticket: Ticket | None = None
        # The present one, where the request is traced.
        self._attempt: Attempt | None = None
        self._run: _Run | None = None
        # The one that the request ended on, and how many of its choices have yet to tell their final count.
        self._last_run: _Run | None = None
        self._uncounted = 0
        self._moves = Moves(plan.ask.queue_deadline)
        # When a pause is over; of interest while neither a ticket nor a run is there.
        self._asks_again_at = 0.0
        self._has_output = False
        # When the caller last got something, or was last told that there is nothing yet.
        self.spoke_at = plan.received
        self.timing = Timing()
        self.worker_id = ""
        self.usage: Usage | None = None
        # Resolves with True at the first output, with False when a heartbeat is due before it.
        self.started: asyncio.Future[bool] = loop.create_future()
        # Resolves when every choice has finished.
        self.ended: asyncio.Future[None] = loop.create_future()
        # Resolves when the request has ended and all that was produced for it is known: at once where nothing runs,
        # with the engine's answer where it was stopped. If that stays away, only a broken session ends the waiting.
        # Runs from which the request had to move count nothing, nor does one that the worker did not take.
        self.counted: asyncio.Future[Usage] = loop.create_future()

    # Driven by the handler.

    def start(self) -> None:
        self.timing.queued = time.monotonic()
        self._submit()

    def close(self) -> None:
        """Give everything back: what runs is aborted, what waits is cancelled. Idempotent."""
        if self._state is not _State.ENDED:
            self._state = _State.ENDED
            self._attempt_over()
            self._let_go(ReleaseOutcome.CANCELLED)
        for future in (self.started, self.ended):
            if future.done() and not future.cancelled():
                future.exception()  # seen, whether or not the handler was still waiting
            else:
                future.cancel()

    def settled(self) -> None:
        """What it has produced is booked, or never will be: its worker may forget it."""
        if self._last_run is not None and self._plan.settlement:
            self._last_run.session.settled(self._last_run.keys)

    def fail(self, error: ApiError) -> None:
        """End the request with an error that no worker is to blame for, unless it has ended."""
        self._end(error, ReleaseOutcome.CANCELLED)

    def _end(self, error: ApiError, outcome: ReleaseOutcome, *, died: bool = False) -> None:
        if self._state is _State.ENDED:
            return
        self._state = _State.ENDED
        self._attempt_over(error.reason)
        self._let_go(outcome, error.reason, died=died)
        for future in (self.started, self.ended):
            if not future.done():
                future.set_exception(error)

    def tick(self, now: float) -> None:
        """A few times a second: deadlines, stalls and heartbeats."""
        if self._state is _State.ENDED:
            return
        if now >= self._plan.deadline:
            self.fail(ApiError(Reason.UPSTREAM_TIMEOUT, "The request took longer than its deadline."))
        elif self._ticket is not None:
            self._routing.expire(self._ticket, now)
        elif self._run is None:
            if now >= self._asks_again_at:
                self._submit()
        elif now >= self._stalls_at(self._run):
            self._worker_stalled(self._run)
        self._sink.on_tick()
        if now + TICK_S > self.spoke_at + self._plan.heartbeat_s:
            self.spoke_at = now
            if not self.started.done():
                self.started.set_result(False)
            self._sink.on_silence()

    def usage_so_far(self) -> Usage:
        """Of the present run, or the final counts."""
        if self._run is None and self.usage is not None:
            return self.usage
        return sum_usage(self._run.choices if self._run else (), len(self._plan.prompt_token_ids))

    # Driven by the choices.

    def first_output(self, cached_tokens: int) -> None:
        """Some choice has its first output; further calls do nothing."""
        if self._has_output or self._run is None:
            return
        self._has_output = True
        self.timing.first_token = time.monotonic()
        if self._attempt is not None:
            self._attempt.first_token_at = self.timing.first_token
        grant = self._run.grant
        if grant.router is not None:
            grant.router.first_token(grant.lease_id, cached_tokens)
        if not self.started.done():
            self.started.set_result(True)

    def choice_finished(self, choice: Choice) -> None:
        run = self._run
        if run is None or not choice.key:
            return  # its last text was one too many for a slow reader, which has ended the request
        choice.key = 0
        run.open_choices -= 1
        if not run.open_choices:
            self._state = _State.ENDED
            self._attempt_over()
            if not self.ended.done():  # its handler may have been cancelled just now
                self.ended.set_result(None)
            self._let_go(ReleaseOutcome.OK)

    def choice_failed(
        self, choice: Choice, error: ApiError, *, session_broke: bool = False, stalled: bool = False
    ) -> None:
        """One choice failed, and with it the request, unless nothing has come of it and it may move."""
        run = self._run
        if run is None or not choice.key:
            return  # of a run that has been given back already
        choice.key = 0
        if error.param == "constraint" and self._plan.constraint is not None:
            error.param = self._plan.constraint.param  # the caller's own name for it
        died = session_broke or stalled
        if self._has_output or not self._moves.may_follow(error):
            self._end(self._moves.final(error), outcome_of(error), died=died)
            return
        self._attempt_over(error.reason)
        self._metrics.retries.labels(error.reason.label).inc()
        self._moves.failed(run.grant.worker_id, error, session_broke=session_broke)
        self._let_go(outcome_of(error), error.reason, died=died)
        self._submit()

    def choice_counted(self) -> None:
        self._uncounted -= 1
        self._tell_counted()

    # Waiting.

    def _submit(self) -> None:
        self._routing.submit(self._new_ticket())

    def _new_ticket(self) -> Ticket:
        self._state = _State.WAITING
        self._attempt_over(Reason.MODEL_NOT_READY)  # where it was granted, and not sent
        self._ticket = Ticket(self._plan.ask, self._moves.avoided, self._granted, self._rejected)
        trace = self._plan.trace
        if trace is not None:
            self._attempt = trace.attempt(now=time.monotonic())
            self._ticket.traceparent = trace.told_router(self._attempt)
        return self._ticket

    def _attempt_over(self, reason: Reason | None = None) -> None:
        """The present attempt, unless it is over already."""
        if self._attempt is not None:
            self._attempt.ended(reason.label if reason is not None else "", now=time.monotonic())

    def _traceparent(self, session: WorkerSession, now: float) -> str:
        """What the worker is told: the present attempt, or what the caller has said."""
        trace, attempt = self._plan.trace, self._attempt
        if trace is None or attempt is None:
            return self._plan.traceparent
        attempt.granted(session.worker_id, session.address, now=now)
        return trace.told_worker(attempt)

    def _rejected(self, error: ApiError) -> None:
        self._ticket = None
        self._attempt_over(error.reason)
        match self._moves.after_rejection(error, time.monotonic()):
            case Pause(until):
                self._asks_again_at = until
            case Park():
                self._routing.park(self._new_ticket())
            case ApiError() as answer:
                self.fail(answer)

    def _granted(self, grant: Grant) -> None:
        try:
            self._dispatch(grant)
        except Exception:
            # A fault of ours in one request must not end the streams of all others, which share the caller's task.
            log.exception("dispatch_failed", extra={"fields": {"request_id": self._plan.ask.request_id}})
            self.fail(ApiError(Reason.INTERNAL_ERROR, "An internal error occurred."))

    def _dispatch(self, grant: Grant) -> None:
        session = self._sessions.by_address(grant.worker_address)
        if session is None:
            # The router knows a worker that this gateway has no session with (any more, or yet).
            grant.give_back(ReleaseOutcome.REFUSED)
            self._moves.cannot_reach(grant.worker_id)
            self._submit()
            return
        if session.models.get(self._plan.ask.model) != self._plan.description:
            # Another tokenizer, template or context than the one that this prompt was made for.
            grant.give_back(ReleaseOutcome.REFUSED)
            self._moves.cannot_use(grant.worker_id)
            self._submit()
            return
        self._ticket = None
        now = time.monotonic()
        self.timing.dispatched = now
        self.worker_id = session.worker_id
        self._state = _State.RUNNING
        plan = self._plan
        run = self._run = _Run(grant, session)
        run.open_choices = plan.ask.num_choices
        spec = RequestSpec(
            request_id=plan.ask.request_id,
            model=plan.ask.model,
            prompt_token_ids=plan.prompt_token_ids,
            sampling=plan.sampling,
            priority=plan.ask.priority,
            cache_salt=plan.cache_salt,
            lease_id=grant.lease_id,
            traceparent=self._traceparent(session, now),
            logprobs=plan.logprobs,
            prompt_logprobs=plan.prompt_logprobs,
            prompt_wire=plan.prompt_wire,
            constraint=plan.constraint,
            settlement=plan.settlement,
        )
        run.choices += [
            Choice(self, index, self._sink, self._metrics, now, wants_scores=plan.logprobs is not None)
            for index in range(plan.ask.num_choices)
        ]
        run.keys = session.generate(spec, run.choices)
        for choice, key in zip(run.choices, run.keys, strict=True):
            choice.key = key

    # Running.

    def _stalls_at(self, run: _Run) -> float:
        """When silence means that the engine is stuck; before the first output it may still be computing the prompt.

        Any choice that moves shows that the engine steps: others may be waiting for a slot beside it.
        """
        allowance = 0.0 if self._has_output else 2 * run.grant.predicted_ttft_s
        return max(choice.last_at for choice in run.choices) + self._plan.stall_s + allowance

    def _worker_stalled(self, run: _Run) -> None:
        if self._has_output:
            error = ApiError(Reason.UPSTREAM_TIMEOUT, "The worker stopped in the middle of the answer.")
            self._end(error, ReleaseOutcome.FAILED, died=True)
            return
        choice = next(choice for choice in run.choices if choice.key)
        # Unlike a choice whose failure the session has told, this one is still listened to.
        run.session.abort(choice.key, reason=Reason.WORKER_FAILED)
        error = ApiError(Reason.WORKER_FAILED, "The worker did not begin to answer in time.")
        self.choice_failed(choice, error, stalled=True)

    # Giving back.

    def _let_go(self, outcome: ReleaseOutcome, reason: Reason | None = None, *, died: bool = False) -> None:
        """The queue place, or the choices and the lease; also sums up what was produced.

        `reason`: why choices that still run are stopped; None: the caller has left.
        """
        if self._ticket is not None:
            self._routing.cancel(self._ticket)
            self._ticket = None
        run, self._run = self._run, None
        has_ended = self._state is _State.ENDED
        if run is not None:
            self._stop(run, outcome, reason, died=died, is_last=has_ended)
        if has_ended:
            self._tell_counted()

    def _stop(self, run: _Run, outcome: ReleaseOutcome, reason: Reason | None, *, died: bool, is_last: bool) -> None:
        running = [choice for choice in run.choices if choice.key]
        if is_last:
            self._last_run = run
            self._uncounted = len(running)
        elif self._plan.settlement:
            run.session.settled(run.keys)
        for choice in running:
            key, choice.key = choice.key, 0
            run.session.abort(key, choice.on_counted if is_last else None, reason=reason)
        self.usage = sum_usage(run.choices, len(self._plan.prompt_token_ids))
        run.grant.give_back(outcome, self.usage.completion_tokens, died=died)

    def _tell_counted(self) -> None:
        if self._uncounted or self.counted.done():
            return
        run = self._last_run
        if run is None or all(choice.is_refused for choice in run.choices):
            self.counted.set_result(Usage(0, 0))
        else:
            self.usage = sum_usage(run.choices, len(self._plan.prompt_token_ids))
            self.counted.set_result(self.usage)
