"""Runs the dispatcher: gives it the time, wakes it at its deadlines, and hands each action to the stream it belongs to.

Everything happens on one event loop and no method awaits, so the machine needs no lock. Decisions are taken before
the method that made them possible returns.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from inferway import logs

from .core.dispatcher import Dispatcher
from .core.health import BreakerState
from .core.messages import Action, Dispatch, ReleaseOutcome, Report, Request, Ticket, WorkerInfo, WorkerStatus
from .core.records import Records
from .core.worker import Worker
from .metrics import DISPATCHED, RouterMetrics
from .tracing import DecisionTraces

log = logging.getLogger(__name__)

# A timer may fire a little before its time; asking again sooner than this would spin.
_LEAST_WAIT_S = 0.001


class KnownWorker(NamedTuple):
    """`worker` None: it has not described itself, or is gone."""

    worker: Worker | None
    status: WorkerStatus


class Driver:
    def __init__(
        self, dispatcher: Dispatcher, metrics: RouterMetrics, records: Records, traces: DecisionTraces | None = None
    ) -> None:
        self._traces = traces
        self.dispatcher = dispatcher
        self.records = records
        # Set whenever an address comes, answers or goes, or a worker changes its status.
        self.watchers: set[asyncio.Event] = set()
        self._metrics = metrics
        self._streams: dict[int, Callable[[Action], None]] = {}
        self._owners = count(1)
        # Set while the queues are empty.
        self.nobody_waits = asyncio.Event()
        self.nobody_waits.set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None

    # For Dispatch streams.

    def attach(self, deliver: Callable[[Action], None]) -> int:
        """A stream has opened; returns the owner of its tickets. `deliver` gets its actions and must not block."""
        owner = next(self._owners)
        self._streams[owner] = deliver
        return owner

    def detach(self, owner: int) -> None:
        """The stream has ended: its waiting requests leave and its leases end."""
        del self._streams[owner]
        for model, requests in self.dispatcher.drop_owner(owner, now=time.monotonic()).items():
            self._metrics.cancelled(model, requests)
        self.settle()

    def submit(self, request: Request) -> None:
        """Queue a request; `settle` is to follow."""
        self.dispatcher.submit(request, now=time.monotonic())

    def first_token(self, lease_id: int, cached_tokens: int) -> None:
        """The prompt of a lease is computed; `settle` is to follow."""
        now = time.monotonic()
        lease = self.dispatcher.first_token(lease_id, cached_tokens, now=now)
        if lease is not None:
            self.records.first_token(lease_id, cached_tokens, now=now)
            self._metrics.computed(lease.model, predicted=lease.predicted_cached_tokens, actual=cached_tokens)

    def release(self, lease_id: int, outcome: ReleaseOutcome, completion_tokens: int, *, died: bool) -> None:
        """End a lease; `settle` is to follow."""
        now = time.monotonic()
        lease = self.dispatcher.release(lease_id, outcome, completion_tokens=completion_tokens, died=died, now=now)
        if lease is not None:
            self.records.released(lease_id, outcome, completion_tokens, now=now)
            self._metrics.released(lease.worker_id, outcome.value)

    def cancel(self, ticket: Ticket) -> None:
        """Take a waiting request out; `settle` is to follow."""
        request = self.dispatcher.cancel(ticket)
        if request is not None:
            now = time.monotonic()
            self.records.cancelled(request, now=now)
            self._metrics.cancelled(request.model)
            if self._traces is not None:
                self._traces.decided(request, None, now=now)

    def settle(self) -> None:
        """Take the decisions that are possible now and deliver what came of them."""
        now = time.monotonic()
        for action in self.dispatcher.tick(now=now):
            self._metrics.decided(action)
            _log_decision(action)
            deliver = self._streams.get(action.request.ticket.owner)
            if deliver is not None:
                deliver(action)
            self.records.decided(action, now=now)
            if self._traces is not None:
                self._traces.decided(action.request, action, now=now)
        for lease_id in self.dispatcher.take_abandoned():
            self.records.abandoned(lease_id, now=now)
        self._tell_of_breakers()
        if self.dispatcher.num_waiting:
            self.nobody_waits.clear()
        else:
            self.nobody_waits.set()
        self._set_timer(now)

    def begin(self) -> None:
        """The workers are met; see the dispatcher."""
        self.dispatcher.begin(now=time.monotonic())
        self.settle()

    # For the worker pool.

    def worker_up(self, info: WorkerInfo, report: Report | None) -> None:
        self.dispatcher.worker_up(info)
        if report is not None:
            self.dispatcher.worker_report(info.worker_id, report, now=time.monotonic())
        self.settle()
        self.membership_changed()

    def worker_report(self, worker_id: str, report: Report) -> None:
        before = self.known(worker_id).status
        self.dispatcher.worker_report(worker_id, report, now=time.monotonic())
        self.settle()
        if self.known(worker_id).status is not before:
            self.membership_changed()

    def worker_lost(self, worker_id: str) -> None:
        self.dispatcher.worker_lost(worker_id)
        self.settle()
        self.membership_changed()

    def worker_down(self, worker_id: str) -> None:
        self.dispatcher.worker_down(worker_id)
        self._tell_of_breakers()  # or what is told later would make series for who is gone
        self._metrics.worker_down(worker_id)
        self.settle()
        self.membership_changed()

    def withdraw(self, worker_id: str, withdrawn: bool) -> None:
        self.dispatcher.withdraw(worker_id, withdrawn)
        self.settle()
        self.membership_changed()

    def drain(self, worker_id: str, drained: bool) -> None:
        """By an operator's will; see the dispatcher."""
        if self.dispatcher.is_drained(worker_id) != drained:
            logs.event(log, "worker_drained" if drained else "worker_taken_back", worker_id=worker_id)
        self.dispatcher.drain(worker_id, drained)
        self.settle()
        self.membership_changed()

    def is_drained(self, worker_id: str) -> bool:
        return self.dispatcher.is_drained(worker_id)

    def has_leases(self, worker_id: str) -> bool:
        worker = self.known(worker_id).worker
        return worker is not None and bool(worker.books.leases)

    def membership_changed(self) -> None:
        for watcher in self.watchers:
            watcher.set()

    def known(self, worker_id: str | None) -> KnownWorker:
        """The worker of a member of the pool; None is one that has not told its name."""
        worker = self.dispatcher.worker(worker_id) if worker_id is not None else None
        return KnownWorker(worker, worker.status if worker is not None else WorkerStatus.CONNECTING)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell_of_breakers(self) -> None:
        turned = self.dispatcher.take_turned()
        for worker_id, state in turned:
            self._metrics.breaker_turned(worker_id, state.value)
            level = logging.INFO if state is BreakerState.CLOSED else logging.WARNING
            logs.event(log, "breaker_turned", level=level, worker_id=worker_id, state=state.value)
        if turned:
            self.membership_changed()

    def _set_timer(self, now: float) -> None:
        deadline = self.dispatcher.next_deadline()
        if deadline == self._timer_at:
            return
        self.close()
        self._timer_at = deadline
        if deadline is not None:
            wait = max(_LEAST_WAIT_S, deadline - now)
            self._timer = asyncio.get_running_loop().call_later(wait, self._on_timer)

    def _on_timer(self) -> None:
        self._timer_at = None
        self.settle()


def _log_decision(action: Action) -> None:
    if not log.isEnabledFor(logging.DEBUG):
        return
    request = action.request
    logs.event(
        log,
        "decided",
        level=logging.DEBUG,
        request_id=request.request_id,
        model=request.model,
        outcome=DISPATCHED if isinstance(action, Dispatch) else action.error.reason.label,
        worker_id=action.worker_id if isinstance(action, Dispatch) else None,
        lease_id=action.lease_id if isinstance(action, Dispatch) else None,
    )
