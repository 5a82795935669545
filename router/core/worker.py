"""One worker as the dispatcher sees it: what it is, what it last reported, what it owes."""

from __future__ import annotations

from .books import Books
from .messages import Report, Request, WorkerInfo, WorkerStatus

# Requests handed to a worker beyond its batch, as a share of the batch and at least one: the next request is already
# there when a slot falls free, and the rest still waits where priority orders it.
_QUEUED_SHARE = 1 / 8
# A request grows to its length over its life, so on average half of it is not there yet.
_GROWING_SHARE = 0.5
# Prompt tokens a second, until a worker has said what it can do.
DEFAULT_PREFILL_RATE = 4_000.0
# Share of a new measurement in the moving means of leases.
_MEAN_WEIGHT = 0.1


class Worker:
    """Public attributes are read by policies and snapshots; only the dispatcher calls what changes them."""

    def __init__(self, info: WorkerInfo) -> None:
        self.worker_id = info.worker_id
        self.info = info
        self.report = Report(info.instance_id)
        self.books = Books()
        self.status = WorkerStatus.READY
        self.prefill_rate = DEFAULT_PREFILL_RATE
        self.slots = 0
        self.kv_total_tokens: int | None = None
        # Seconds from dispatch to release, a moving mean; 0.0 before the first release.
        self.mean_lease_s = 0.0
        # Completion tokens produced, as a share of those that were expected, a moving mean: gateways expect the most
        # where a caller sets no limit.
        self.mean_length_share = 1.0
        self.is_withdrawn = False
        self._is_lost = False
        self._next_event_seq: int | None = None
        self.describe(info)

    def describe(self, info: WorkerInfo) -> None:
        """The worker is there (again)."""
        self.info = info
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
        """Nothing new for it, by the operator's or the resolver's will."""
        self.is_withdrawn = withdrawn
        self._derive()

    def note_finished(self, seconds: float, *, completion_tokens: int, expected_tokens: int) -> None:
        """A lease has come to its end as it should."""
        weight = _MEAN_WEIGHT if self.mean_lease_s else 1.0
        self.mean_lease_s += weight * (seconds - self.mean_lease_s)
        length_share = min(1.0, completion_tokens / expected_tokens)
        self.mean_length_share += _MEAN_WEIGHT * (length_share - self.mean_length_share)

    @property
    def is_ready(self) -> bool:
        return self.status is WorkerStatus.READY

    def could_ever_take(self, num_choices: int) -> bool:
        return num_choices <= self.info.max_running + self.info.max_waiting

    def has_room(self, request: Request) -> bool:
        """Whether the request may be sent now.

        An idle worker takes whatever it could ever take: what is too large for its slots or its KV cache would
        otherwise wait for a room that never comes, and the engine knows best.
        """
        if self.status is not WorkerStatus.READY:
            return False
        load = self.books.load
        if load == 0:
            return self.could_ever_take(request.num_choices)
        if load + request.num_choices > self.slots:
            return False
        total = self.kv_total_tokens
        if total is None:
            return True
        prompts = self.books.uncached_tokens + request.prompt_tokens
        lengths = self.books.expected_completion_tokens + request.expected_tokens * request.num_choices
        growth = lengths * self.mean_length_share * _GROWING_SHARE
        return self.report.kv_used_tokens + prompts + growth <= total

    def _derive(self) -> None:
        report, info = self.report, self.info
        if self._is_lost:
            self.status = WorkerStatus.LOST
        elif self.is_withdrawn or report.draining:
            self.status = WorkerStatus.DRAINING
        else:
            self.status = WorkerStatus.READY
        self.prefill_rate = report.prefill_tokens_per_s or info.prefill_tokens_per_s or DEFAULT_PREFILL_RATE
        self.kv_total_tokens = report.kv_total_tokens or info.kv_total_tokens
