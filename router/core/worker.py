"""One worker as the dispatcher sees it: what it is, what it last reported, what it owes."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from .books import Books, Lease
from .fleet import Reading
from .health import TRUSTING, Breaker, BreakerState, HealthRules, SlowStart
from .messages import Report, WorkerInfo, WorkerStatus

# Requests handed to a worker beyond its batch, as a share of the batch and at least one: the next request is already
# there when a slot falls free, and the rest still waits where priority orders it.
_QUEUED_SHARE = 1 / 8
# A request grows to its length over its life, so on average half of it is not there yet.
_GROWING_SHARE = 0.5
# Prompt tokens a second, until a worker of the model has said what it can do.
DEFAULT_PREFILL_RATE = 4_000.0
_MS = 1_000.0
# Share of a new measurement in the moving means of leases.
_MEAN_WEIGHT = 0.1


class Worker:
    """Public attributes are read by policies and snapshots; only the dispatcher calls what changes them."""

    def __init__(self, info: WorkerInfo, rules: HealthRules = TRUSTING) -> None:
        self.worker_id = info.worker_id
        self.info = info
        self.breaker = Breaker(rules)
        self.slow_start = SlowStart(rules)
        # By model, how warm the warmest worker is that takes what a slow start keeps from this one, and how fast those
        # are on average that have measured it; 0.0: none has.
        self._warmest: dict[str, int] = {}
        self._peer_rates: dict[str, float] = {}
        self.report = Report(info.instance_id)
        self.books = Books()
        self.status = WorkerStatus.READY
        # Prompt tokens a second: as it has said itself, 0.0 before; and what to reckon with.
        self.measured_rate = 0.0
        self.prefill_rate = DEFAULT_PREFILL_RATE
        self.slots = 0
        self.kv_total_tokens: int | None = None
        # Seconds from dispatch to release, a moving mean; 0.0 before the first release.
        self.mean_lease_s = 0.0
        # Completion tokens produced, as a share of those that were expected, a moving mean: gateways expect the most
        # where a caller sets no limit.
        self.mean_length_share = 1.0
        self.is_withdrawn = False
        self.is_drained = False
        # As one that was lost: whoever has just come begins slowly.
        self._is_lost = True
        # Share of the cached tokens that were predicted which it had in truth, a moving mean.
        self.trust = 1.0
        # Its place in the fleet's table.
        self.row = -1
        self._next_event_seq: int | None = None
        self.describe(info)

    def describe(self, info: WorkerInfo) -> None:
        """The worker is there (again)."""
        self.info = info
        if self._is_lost:
            self.slow_start.begin()
        self._is_lost = False
        self.slots = info.max_running + min(info.max_waiting, max(1, int(info.max_running * _QUEUED_SHARE)))
        self._derive()

    def take_report(self, report: Report) -> bool:
        """Returns whether KV events before those of the report were lost."""
        self.report = report
        self._derive()
        if not report.kv_events:
            return False
        lost = self._next_event_seq not in (None, report.kv_event_seq)
        self._next_event_seq = report.kv_event_seq + len(report.kv_events)
        return lost

    def lose(self) -> None:
        self._is_lost = True
        self._derive()

    def withdraw(self, withdrawn: bool) -> None:
        """Nothing new for it, because its address has gone."""
        self.is_withdrawn = withdrawn
        self._derive()

    def drain(self, drained: bool) -> None:
        """Nothing new for it, by the operator's will."""
        self.is_drained = drained
        self._derive()

    def take_peers(self, model: str, *, warmest: int, rate: float) -> bool:
        """What the workers of a model are like, this one among them; returns whether that is news to it."""
        is_new = self._warmest.get(model) != warmest
        self._warmest[model] = warmest
        if self._peer_rates.get(model) != rate:
            self._peer_rates[model] = rate
            is_new |= not self.measured_rate
            self._derive()
        return is_new

    def forget_peers(self, model: str) -> None:
        """It no longer serves the model."""
        self._warmest.pop(model, None)
        self._peer_rates.pop(model, None)
        self._derive()

    def note_finished(self, seconds: float, *, completion_tokens: int, expected_tokens: int) -> None:
        """A lease has come to its end as it should."""
        weight = _MEAN_WEIGHT if self.mean_lease_s else 1.0
        self.mean_lease_s += weight * (seconds - self.mean_lease_s)
        length_share = min(1.0, completion_tokens / expected_tokens)
        self.mean_length_share += _MEAN_WEIGHT * (length_share - self.mean_length_share)

    def note_cached(self, *, predicted: int, actual: int) -> None:
        """What the index said of a prompt's cached tokens, and what the engine found."""
        if predicted > 0:
            self.trust += _MEAN_WEIGHT * (min(1.0, actual / predicted) - self.trust)

    @property
    def is_ready(self) -> bool:
        return self.status is WorkerStatus.READY and self.breaker.state is not BreakerState.OPEN

    @property
    def warmth(self) -> int:
        """How far it can take what others cannot; 0 for one that is away or on trial."""
        is_in_service = self.status is WorkerStatus.READY and self.breaker.state is BreakerState.CLOSED
        return self.slow_start.warmth if is_in_service else 0

    @property
    def slots_now(self) -> int:
        """Requests that it has at most, as far along as its slow start is; its breaker may let none or one through."""
        if not self.slow_start.is_cold:
            return self.slots
        return self.slow_start.slots(self.slots, warmest=max(self._warmest.values(), default=0))

    @property
    def next_health_deadline(self) -> float | None:
        """When `advance` has something to do."""
        deadlines = (self.breaker.next_deadline, self.slow_start.next_deadline)
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    def advance(self, *, now: float) -> bool:
        """Let time pass for its health; returns whether the breaker has changed its state."""
        self.slow_start.advance(now=now)
        return self.breaker.advance(now=now)

    def open_lease(self, lease: Lease) -> None:
        self.books.open(lease)
        self.breaker.dispatched(lease.lease_id)

    def could_ever_take(self, num_choices: int) -> bool:
        return num_choices <= self.info.max_running + self.info.max_waiting

    def reading(self) -> Reading[float]:
        """An idle worker takes whatever it could ever take: what is too large for its slots or its KV cache would
        otherwise wait for a room that never comes, and the engine knows best.
        """
        books, info = self.books, self.info
        is_open = self.status is WorkerStatus.READY and self.breaker.admits
        load, max_running = books.load, info.max_running
        growth_share = self.mean_length_share * _GROWING_SHARE
        promised = self.report.kv_used_tokens + books.uncached_tokens + books.expected_completion_tokens * growth_share
        kv_total = self.kv_total_tokens or inf
        if not is_open:
            room = 0
        elif load:
            room = self.slots_now - load
        else:
            room = max_running + info.max_waiting
        # By place, in the order of Reading: by name it takes twice as long.
        return Reading(
            is_open,
            load if is_open else 0,
            self.prefill_rate if is_open else 0.0,
            load,
            room,
            max_running - load,
            kv_total - promised if load else inf,
            promised,
            promised / kv_total,
            growth_share,
            books.pending_tokens,
            _MS / self.prefill_rate,
            load / max_running if load < max_running else 1.0,
            _MS * self.mean_lease_s / max_running,
            self.trust,
        )

    def _derive(self) -> None:
        report, info = self.report, self.info
        if self._is_lost:
            self.status = WorkerStatus.LOST
        elif self.is_withdrawn or self.is_drained or report.draining:
            self.status = WorkerStatus.DRAINING
        else:
            self.status = WorkerStatus.READY
        self.measured_rate = report.prefill_tokens_per_s or info.prefill_tokens_per_s or 0.0
        self.prefill_rate = self.measured_rate or mean_rate(self._peer_rates.values()) or DEFAULT_PREFILL_RATE
        self.kv_total_tokens = report.kv_total_tokens or info.kv_total_tokens


def mean_rate(rates: Iterable[float]) -> float:
    """Of those that are known; 0.0 where none is."""
    known = [rate for rate in rates if rate]
    return sum(known) / len(known) if known else 0.0
