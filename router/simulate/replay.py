"""Plays a trace through the router's own core, with a clock that jumps from one event to the next.

    gateway --submit--> router --lease--> gateway --request--> worker --tokens--> gateway --first token--> router
                                                               worker --report--> router          --release--> router

Each arrow takes `hop_s`. Everything else takes no time, and neither do decisions. A worker reports whenever a request
is admitted, begins its answer or ends, and every `report_s` while it computes: engines report after each step, which
says the same and costs more to play.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import Any

from inferway.errors import Reason

from ..core.dispatcher import Dispatcher
from ..core.messages import Dispatch, ReleaseOutcome, Report, Request, Ticket, WorkerInfo
from ..core.placement.pickers import Rng
from ..core.placement.policies import Policy
from ..core.placement.routing import Routing
from ..core.queue import QueueLimits
from .engine import Engine, EngineSettings, Job
from .trace import TraceRequest

_MODEL = "model"
_OWNER = 1
# Workers are up for so long when the first request comes: nobody is in its slow start any more.
_WARM_S = 3600.0
# Slots of a worker's admission beyond its batch; routers use an eighth of the batch at most.
_MAX_WAITING = 1024


@dataclass(frozen=True, slots=True)
class FleetSettings:
    """`expected_tokens` is what gateways tell routers to expect of an answer."""

    workers: int
    engine: EngineSettings
    expected_tokens: int
    hop_s: float
    report_s: float
    kv_events: bool
    queue_timeout_s: float = inf
    limits: QueueLimits = QueueLimits()  # noqa: RUF009 - an immutable tuple


@dataclass(slots=True, eq=False)
class Outcome:
    """What became of one request. Times are seconds since it came to the gateway."""

    request: TraceRequest
    arrived_at: float
    # Why it never ran; empty: it did.
    error: str = ""
    worker: int = -1
    queue_s: float = 0.0
    ttft_s: float = 0.0
    e2e_s: float = 0.0
    predicted_cached_tokens: int = 0
    cached_tokens: int = 0


@dataclass(slots=True, eq=False)
class _Worker:
    number: int
    info: WorkerInfo
    engine: Engine
    leases: dict[int, Outcome]
    wakes_at: float = inf
    reported_at: float = -inf
    has_timer: bool = False
    next_event_seq: int = 1


def replay(
    requests: Sequence[TraceRequest], *, speed: float, policy: Policy, rng: Rng, settings: FleetSettings
) -> list[Outcome]:
    """What becomes of each request, in the order of the trace, which comes `speed` times as fast as it was recorded."""
    return _Replay(requests, speed, policy, rng, settings).run()


class _Replay:
    def __init__(
        self, requests: Sequence[TraceRequest], speed: float, policy: Policy, rng: Rng, settings: FleetSettings
    ) -> None:
        self._settings = settings
        self._hop_s = settings.hop_s
        self._outcomes = [Outcome(request, _WARM_S + request.at_s / speed) for request in requests]
        self._arrivals = iter(self._outcomes)
        self._dispatcher = Dispatcher(
            routing=Routing(lambda: policy, {}), rng=rng, first_lease_id=1, limits=settings.limits
        )
        self._waiting: dict[int, Outcome] = {}
        self._tickets = count()
        # (time, order, handler, its argument); the order keeps what happens at one time in the order of its causes.
        self._agenda: list[tuple[float, int, Callable[[float, Any], None], Any]] = []
        self._order = count()
        # The last deadline at which the router was woken.
        self._looked_at = -inf
        self._workers: dict[str, _Worker] = {}
        for number in range(settings.workers):
            info = self._info(number)
            self._workers[info.worker_id] = _Worker(
                number, info, Engine(settings.engine, model=_MODEL, number=number), {}
            )

    def run(self) -> list[Outcome]:
        for worker in self._workers.values():
            self._dispatcher.worker_up(worker.info)
            self._take_report(0.0, (worker, self._read(worker, 0.0)))
        self._await_next_arrival()
        agenda = self._agenda
        while True:
            now = agenda[0][0] if agenda else inf
            deadline = self._next_deadline()
            if deadline < now:
                self._looked_at = deadline
                self._settle(deadline)
            elif agenda:
                _, _, handle, argument = heappop(agenda)
                handle(now, argument)
            else:
                break
        assert not self._waiting, "a request waits for a worker that never has room"
        return self._outcomes

    def _next_deadline(self) -> float:
        """When the router wants to be woken for those that wait; infinite where it does not, or just has been."""
        deadline = self._dispatcher.next_deadline() if self._waiting else None
        return inf if deadline is None or deadline <= self._looked_at else deadline

    def _info(self, number: int) -> WorkerInfo:
        engine = self._settings.engine
        return WorkerInfo(
            worker_id=f"w{number:03}",
            instance_id=f"i{number:03}",
            address=f"w{number:03}:50051",
            models={_MODEL: engine.block_size},
            max_running=engine.max_running,
            max_waiting=_MAX_WAITING,
            kv_total_tokens=engine.kv_tokens,
            prefill_tokens_per_s=engine.prefill_tokens_per_s,
            publishes_kv_events=self._settings.kv_events,
        )

    def _at(self, time: float, handle: Callable[[float, Any], None], argument: Any) -> None:
        heappush(self._agenda, (time, next(self._order), handle, argument))

    # The gateway.

    def _await_next_arrival(self) -> None:
        outcome = next(self._arrivals, None)
        if outcome is not None:
            self._at(outcome.arrived_at, self._arrive, outcome)

    def _arrive(self, now: float, outcome: Outcome) -> None:
        self._await_next_arrival()
        request = outcome.request
        engine = next(iter(self._workers.values())).engine
        if engine.could_ever_take(request.prompt_tokens, request.completion_tokens):
            self._at(now + self._hop_s, self._submit, outcome)
        else:
            outcome.error = Reason.CONTEXT_LENGTH_EXCEEDED.label

    def _begin_answer(self, now: float, outcome: Outcome) -> None:
        outcome.ttft_s = now - outcome.arrived_at

    def _end_answer(self, now: float, outcome: Outcome) -> None:
        outcome.e2e_s = now - outcome.arrived_at

    # The router.

    def _submit(self, now: float, outcome: Outcome) -> None:
        request, ticket = outcome.request, next(self._tickets)
        self._waiting[ticket] = outcome
        self._dispatcher.submit(
            Request(
                ticket=Ticket(_OWNER, ticket),
                request_id=str(ticket),
                model=_MODEL,
                tenant_id=request.tenant_id,
                priority=request.priority,
                prompt_tokens=request.prompt_tokens,
                expected_tokens=self._settings.expected_tokens,
                block_hashes=request.block_hashes,
                queued_at=now,
                deadline=now + self._settings.queue_timeout_s,
            ),
            now=now,
        )
        self._settle(now)

    def _settle(self, now: float) -> None:
        for action in self._dispatcher.tick(now=now):
            outcome = self._waiting.pop(action.request.ticket.number)
            if isinstance(action, Dispatch):
                worker = self._workers[action.worker_id]
                outcome.worker = worker.number
                outcome.queue_s = action.queue_time_s
                outcome.predicted_cached_tokens = action.predicted_cached_tokens
                self._at(now + 2 * self._hop_s, self._start, (worker, action.lease_id, outcome))
            else:
                outcome.error = action.error.reason.label

    def _first_token(self, now: float, begun: tuple[int, int]) -> None:
        lease_id, cached_tokens = begun
        self._dispatcher.first_token(lease_id, cached_tokens, now=now)

    def _release(self, now: float, ended: tuple[int, int]) -> None:
        lease_id, completion_tokens = ended
        self._dispatcher.release(lease_id, ReleaseOutcome.OK, completion_tokens=completion_tokens, now=now)
        self._settle(now)

    def _take_report(self, now: float, read: tuple[_Worker, Report]) -> None:
        worker, report = read
        self._dispatcher.worker_report(worker.info.worker_id, report, now=now)
        self._settle(now)

    # Workers.

    def _start(self, now: float, leased: tuple[_Worker, int, Outcome]) -> None:
        worker, lease_id, outcome = leased
        request = outcome.request
        worker.leases[lease_id] = outcome
        worker.engine.submit(
            Job(lease_id, request.prompt_tokens, request.completion_tokens, request.block_hashes, request.priority),
            now=now,
        )
        self._report(now, worker)
        self._wake(worker)
        if not worker.has_timer:
            worker.has_timer = True
            self._at(now + self._settings.report_s, self._on_report_timer, worker)

    def _wake(self, worker: _Worker) -> None:
        at = worker.engine.happens_at()
        if at != worker.wakes_at:
            worker.wakes_at = at
            if at < inf:
                self._at(at, self._step, worker)

    def _step(self, now: float, worker: _Worker) -> None:
        if now != worker.wakes_at:
            return  # planned anew since
        happened = worker.engine.run()
        for job in happened.first_tokens:
            outcome = worker.leases[job.key]
            outcome.cached_tokens = job.cached_tokens
            self._at(now + self._hop_s, self._begin_answer, outcome)
            self._at(now + 2 * self._hop_s, self._first_token, (job.key, job.cached_tokens))
        for job in happened.finished:
            outcome = worker.leases.pop(job.key)
            self._at(now + self._hop_s, self._end_answer, outcome)
            self._at(now + 2 * self._hop_s, self._release, (job.key, job.output_tokens))
        worker.wakes_at = inf
        self._wake(worker)
        self._report(now, worker)

    def _on_report_timer(self, now: float, worker: _Worker) -> None:
        if not worker.leases:
            worker.has_timer = False
            return
        due = worker.reported_at + self._settings.report_s
        if due <= now:
            self._report(now, worker)
            due = now + self._settings.report_s
        self._at(due, self._on_report_timer, worker)

    def _report(self, now: float, worker: _Worker) -> None:
        worker.reported_at = now
        self._at(now + self._hop_s, self._take_report, (worker, self._read(worker, now)))

    def _read(self, worker: _Worker, now: float) -> Report:
        load = worker.engine.load(now=now)
        events = worker.engine.take_kv_events()
        if not self._settings.kv_events:
            events = ()
        first = worker.next_event_seq if events else 0
        worker.next_event_seq += len(events)
        engine = self._settings.engine
        return Report(
            instance_id=worker.info.instance_id,
            num_requests_running=load.running,
            num_requests_waiting=load.waiting,
            uncached_tokens_in_flight=load.todo_tokens,
            kv_used_tokens=load.kv_used_tokens,
            kv_total_tokens=worker.engine.kv_tokens,
            prefill_tokens_per_s=engine.prefill_tokens_per_s,
            lease_ids=list(worker.leases),
            kv_events=events,
            kv_event_seq=first,
        )
