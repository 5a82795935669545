"""What the ends of leases, and time, say of the health of all workers: breakers that turn, slow starts that go on, and
prompts that are held. The rules are those of health.py and quarantine.py; the dispatcher says what happens.

Cost: O(1) an input; O(workers that recover) once for each time that the health of one of them changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .books import Lease
from .health import BreakerState, HealthRules
from .messages import ReleaseOutcome
from .quarantine import PromptKey, Quarantine
from .worker import Worker


class BreakerTurned(NamedTuple):
    """The breaker of a worker has come into a state."""

    worker_id: str
    state: BreakerState


class Recovery:
    """Where it says that the breaker of a worker has turned, `note` is to follow."""

    def __init__(self, rules: HealthRules) -> None:
        self.quarantine = Quarantine(rules.quarantine_s)
        # Those whose health changes with time alone, and when the first of them does; None: it has to be looked for.
        self._recovering: dict[str, Worker] = {}
        self._next: float | None = None
        self._turned: list[BreakerTurned] = []

    @property
    def next_deadline(self) -> float | None:
        """When `advance` has something to do."""
        if self._next is None and self._recovering:
            deadlines = (worker.next_health_deadline for worker in self._recovering.values())
            self._next = min((deadline for deadline in deadlines if deadline is not None), default=None)
        return self._next

    def note(self, worker: Worker) -> None:
        """The health of a worker, or what it waits for, may have changed."""
        self._next = None
        if worker.next_health_deadline is None:
            self._recovering.pop(worker.worker_id, None)
        else:
            self._recovering[worker.worker_id] = worker

    def forget(self, worker_id: str) -> None:
        """The worker is gone."""
        self._next = None
        self._recovering.pop(worker_id, None)

    def first_token(self, worker: Worker, lease: Lease, *, now: float) -> bool:
        """A lease has its first token; returns whether the worker's breaker has turned."""
        turned = worker.breaker.first_token(lease.lease_id, dispatched_at=lease.dispatched_at, now=now)
        if turned:
            self._breaker_turned(worker, now)
        return turned

    def released(self, worker: Worker, lease: Lease, outcome: ReleaseOutcome, *, died: bool, now: float) -> bool:
        """A lease is over: what that says of its worker and its prompt; returns whether the breaker has turned."""
        if outcome is ReleaseOutcome.FAILED and worker.report.draining:
            outcome = ReleaseOutcome.CANCELLED  # it goes as it has said, and what it cannot finish goes with it
        if lease.prompt_hash:
            key, instance_id = PromptKey(lease.model, lease.prompt_hash), worker.info.instance_id
            if outcome is ReleaseOutcome.OK:
                self.quarantine.finished(key, now=now)
            elif outcome is ReleaseOutcome.FAILED:
                if self.quarantine.is_suspect(key, instance_id, now=now):
                    outcome = ReleaseOutcome.CANCELLED  # it fails everywhere: not this worker's fault
                self.quarantine.failed(key, instance_id, died=died, now=now)
        turned = worker.breaker.released(lease.lease_id, outcome, dispatched_at=lease.dispatched_at, now=now)
        if turned:
            self._breaker_turned(worker, now)
        return turned

    def advance(self, *, now: float) -> Iterator[Worker]:
        """Let time pass; gives those whose health has changed, each to be noted before the next."""
        due = self.next_deadline
        if due is None or now < due:
            return
        for worker in list(self._recovering.values()):
            deadline = worker.next_health_deadline
            if deadline is not None and deadline <= now:
                if worker.advance(now=now):
                    self._breaker_turned(worker, now)
                yield worker

    def take_turned(self) -> list[BreakerTurned]:
        """What has become of breakers since the last call, in order."""
        turned, self._turned = self._turned, []
        return turned

    def _breaker_turned(self, worker: Worker, now: float) -> None:
        state = worker.breaker.state
        self._turned.append(BreakerTurned(worker.worker_id, state))
        if state is BreakerState.CLOSED:
            worker.slow_start.begin(now=now)
