"""The real dispatcher before one worker that computes in virtual time: what would take hours is done in a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from random import Random

from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, ReleaseOutcome, Request, Ticket, WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import Ageing, QueueLimits


@dataclass(frozen=True, slots=True)
class Job:
    at: float
    prompt_tokens: int
    completion_tokens: int = 1
    tenant_id: str = "t"
    priority: int = 5
    weight: float = 1.0
    # What is said of the completion beforehand; None: the truth.
    expected_tokens: int | None = None
    timeout_s: float = 1e6

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class Run:
    """`dispatched_at` and `finished_at` are infinite for a job that was rejected, or that the end came before."""

    job: Job
    dispatched_at: float = inf
    finished_at: float = inf
    is_rejected: bool = False

    @property
    def wait_s(self) -> float:
        return self.dispatched_at - self.job.at


def play(
    jobs: Iterable[Job],
    *,
    slots: int,
    seconds: Callable[[Job], float],
    until: float,
    limits: QueueLimits = QueueLimits(),  # noqa: B008 - an immutable tuple
    ageing: Ageing = Ageing(),  # noqa: B008 - an immutable tuple
) -> list[Run]:
    """What became of each job, in the order of arrival. A slot serves a job in `seconds` of it, beside the others."""
    machine = Dispatcher(routing=routing_of("default"), rng=Random(1), first_lease_id=1, limits=limits, ageing=ageing)
    machine.worker_up(WorkerInfo("a", "1", "a:1", {"m": 64}, slots, 0))
    runs = [Run(job) for job in sorted(jobs, key=lambda job: job.at)]
    arrived = 0
    finishing: list[tuple[float, int, int]] = []
    while True:
        next_arrival = runs[arrived].job.at if arrived < len(runs) else inf
        next_finish = finishing[0][0] if finishing else inf
        now = min(next_arrival, next_finish, machine.next_deadline() or inf)
        if now > until:
            return runs
        while finishing and finishing[0][0] <= now:
            _, lease_id, number = heappop(finishing)
            run = runs[number]
            run.finished_at = now
            machine.first_token(lease_id, 0, now=now)
            machine.release(lease_id, ReleaseOutcome.OK, completion_tokens=run.job.completion_tokens, now=now)
        while arrived < len(runs) and runs[arrived].job.at <= now:
            machine.submit(_request(arrived, runs[arrived].job), now=now)
            arrived += 1
        for action in machine.tick(now=now):
            number = action.request.ticket.number
            run = runs[number]
            if isinstance(action, Dispatch):
                run.dispatched_at = now
                heappush(finishing, (now + seconds(run.job), action.lease_id, number))
            else:
                run.is_rejected = True


def _request(number: int, job: Job) -> Request:
    return Request(
        ticket=Ticket(1, number),
        request_id=str(number),
        model="m",
        tenant_id=job.tenant_id,
        priority=job.priority,
        prompt_tokens=job.prompt_tokens,
        expected_tokens=job.expected_tokens or job.completion_tokens,
        block_hashes=(),
        queued_at=job.at,
        deadline=job.at + job.timeout_s,
        tenant_weight=job.weight,
    )
