"""What one worker owes: the leases it has been given, and how its reports correct that.

A lease enters by `open` and leaves exactly once: by `close` (released, or its gateway is gone) or by `reconcile` (the
worker does not know it). Between two reports the books alone tell the load; each report is laid under them:

    requests    = leases in flight + requests in the report that no lease of ours stands for (other routers, fallback)
    uncached    = what the report says is left to prefill + uncached tokens of the leases that it did not know yet

Cost: open, first_token, close O(1); reconcile O(leases), in C except for what changed.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass

from .messages import Report, Ticket
from .queue import Debit

# Time in which a lease may be unknown to the worker: the gateway has yet to send the request.
_RECONCILE_AFTER_S = 5.0
# Reports without the lease, one after the other, after which it is taken for over.
_MISSES_TO_RELEASE = 2
# A report on its way may still show a lease that was released before it arrived.
_RELEASED_MEMORY_S = 2.0


@dataclass(slots=True)
class Lease:
    lease_id: int
    worker_id: str
    ticket: Ticket
    model: str
    num_choices: int
    # Prompt tokens to be computed, after the prediction.
    uncached_tokens: int
    predicted_cached_tokens: int
    # Completion tokens of all choices together.
    expected_tokens: int
    dispatched_at: float
    # Request.prompt_hash
    prompt_hash: int = 0
    # What its tenant has been charged.
    debit: Debit | None = None
    has_first_token: bool = False

    def settle(self, *, is_computed: bool, completion_tokens: int) -> None:
        """Charge the tenant for what its request has cost in the end: the prompt if it was computed, and the answer."""
        if self.debit is not None:
            self.debit.settle((self.uncached_tokens if is_computed else 0) + completion_tokens)


class Books:
    """The books of one incarnation of one worker."""

    def __init__(self) -> None:
        self.leases: dict[int, Lease] = {}
        # Choices dispatched and not released.
        self.requests_in_flight = 0
        # Uncached prompt tokens dispatched whose first token has not come.
        self.uncached_tokens = 0
        # Leases by model name.
        self._models: Counter[str] = Counter()
        # Completion tokens that the leases are expected to have in the end.
        self.expected_completion_tokens = 0
        self._foreign_requests = 0
        # Leases that no report has shown yet, with their uncached tokens.
        self._unseen: dict[int, int] = {}
        self._unseen_tokens = 0
        self._reported_uncached = 0
        # An engine that never reports uncached tokens does not count them.
        self._report_counts_uncached = False
        self._suspects: dict[int, int] = {}
        # Choices of leases released lately, with the time, oldest first.
        self._released: OrderedDict[int, tuple[float, int]] = OrderedDict()

    @property
    def load(self) -> int:
        """Requests that the worker holds or is about to get, from whomever."""
        return self.requests_in_flight + self._foreign_requests

    @property
    def pending_tokens(self) -> int:
        """Prompt tokens that the worker has to compute before it comes to a new request."""
        if self._report_counts_uncached:
            return self._reported_uncached + self._unseen_tokens
        return self.uncached_tokens

    def runs(self, model: str) -> bool:
        """Whether a lease of a model, or of an adapter under its name, is open."""
        return self._models[model] > 0

    def open(self, lease: Lease) -> None:
        assert lease.lease_id not in self.leases
        self.leases[lease.lease_id] = lease
        self.requests_in_flight += lease.num_choices
        self._models[lease.model] += 1
        self.uncached_tokens += lease.uncached_tokens
        self.expected_completion_tokens += lease.expected_tokens
        self._unseen[lease.lease_id] = lease.uncached_tokens
        self._unseen_tokens += lease.uncached_tokens

    def first_token(self, lease_id: int) -> Lease | None:
        """The prompt is computed: reports show it as used. None when the lease is unknown or said so before."""
        lease = self.leases.get(lease_id)
        if lease is None or lease.has_first_token:
            return None
        lease.has_first_token = True
        self.uncached_tokens -= lease.uncached_tokens
        self._see(lease_id)
        return lease

    def close(self, lease_id: int, *, now: float, finished: bool = True) -> Lease | None:
        """Take a lease out; None when it is not (any more) in the books.

        `finished` says that the worker is done with it or was told to stop; otherwise (the gateway is gone) it may
        run on, and reports that show it count as foreign load.
        """
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return None
        self.requests_in_flight -= lease.num_choices
        self._models[lease.model] -= 1
        self.expected_completion_tokens -= lease.expected_tokens
        if not lease.has_first_token:
            self.uncached_tokens -= lease.uncached_tokens
        self._see(lease_id)
        self._suspects.pop(lease_id, None)
        if finished:
            self._released[lease_id] = (now, lease.num_choices)
            self._forget_released(now)
        return lease

    def reconcile(self, report: Report, *, now: float) -> list[Lease]:
        """Lay a report under the books; returns the leases that it has ended."""
        reported = set(report.lease_ids)
        missing = self.leases.keys() - reported
        suspects: dict[int, int] = {}
        ended: list[Lease] = []
        known_choices = self.requests_in_flight
        for lease_id in missing:
            lease = self.leases[lease_id]
            known_choices -= lease.num_choices
            if now - lease.dispatched_at < _RECONCILE_AFTER_S:
                continue
            misses = self._suspects.get(lease_id, 0) + 1
            if misses >= _MISSES_TO_RELEASE:
                ended.append(lease)
            else:
                suspects[lease_id] = misses
        self._suspects = suspects
        for lease in ended:
            self.close(lease.lease_id, now=now)
        for lease_id in self._unseen.keys() & reported:
            self._see(lease_id)

        self._forget_released(now)
        leaving = sum(self._released[lease_id][1] for lease_id in self._released.keys() & reported)
        held = report.num_requests_running + report.num_requests_waiting
        self._foreign_requests = max(0, held - known_choices - leaving)
        self._reported_uncached = report.uncached_tokens_in_flight
        self._report_counts_uncached |= report.uncached_tokens_in_flight > 0
        return ended

    def _see(self, lease_id: int) -> None:
        self._unseen_tokens -= self._unseen.pop(lease_id, 0)

    def _forget_released(self, now: float) -> None:
        while self._released:
            lease_id, (at, _) = next(iter(self._released.items()))
            if now - at < _RELEASED_MEMORY_S:
                return
            del self._released[lease_id]
