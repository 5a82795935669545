"""The waiting requests of one model: who is next, who must leave.

Bands by priority, the highest first. Inside a band tenants share (band.py, fairness.py). Waiting lifts a request one
band each interval, so that low bands do not starve: when the first request of a band has been lifted to the highest
band that waits, it may go ahead of that, but only as a given share of all dispatches. Several bands whose first has
come so far go by band and then by arrival. Counters, bounds and shedding always go by the band that was asked for.

Cost: push, remove, dispatch, settle O(log waiting) amortised; heads and position O(bands), plus the lanes of a band
where workers are excluded. Deadlines are a heap with stale entries, which is rebuilt once they outnumber the live
ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from math import ceil
from typing import NamedTuple

from .band import HEAP_SLACK, Band, Entry
from .fairness import Charge
from .messages import PRIORITIES, BandView, Request, TenantView, Ticket


class QueueLimits(NamedTuple):
    """Bounds for each model: over all bands, and for each band."""

    requests: int = 10_000
    prompt_tokens: int = 50_000_000
    band_requests: int = 10_000
    band_prompt_tokens: int = 50_000_000


class Ageing(NamedTuple):
    """A request that waits is lifted one band each `interval_s`; `share` of the dispatches may go to lifted ones."""

    interval_s: float = 1.0
    # In (0, 1].
    share: float = 0.1


class Pushed(NamedTuple):
    """`refused` holds those that must leave: requests shed for the newcomer, or the newcomer. `limit` says why."""

    refused: list[Request]
    limit: str


class Expired(NamedTuple):
    request: Request
    # `WaitingQueue.position` as it left.
    position: int


class Debit(NamedTuple):
    """What a dispatch has been charged, and where."""

    band: Band
    charge: Charge

    def settle(self, tokens: int) -> None:
        """The request is over and has cost `tokens`; to be called once."""
        self.band.settle(self.charge, tokens)


class WaitingQueue:
    def __init__(self, limits: QueueLimits = QueueLimits(), ageing: Ageing = Ageing()) -> None:  # noqa: B008 - immutable
        self._limits = limits
        self._ageing_s = ageing.interval_s
        # Of so many dispatches one may go to a lifted request.
        self._aged_every = ceil(1.0 / ageing.share)
        self._since_aged = 0
        self._bands = [Band() for _ in range(PRIORITIES)]
        # Priorities at which somebody waits, the highest first.
        self._occupied: list[int] = []
        self._entries: dict[Ticket, Entry] = {}
        self._tokens = 0
        self._order = 0
        self._deadlines: list[tuple[float, int, Ticket]] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket in self._entries

    @property
    def tokens(self) -> int:
        """Prompt tokens of all that wait."""
        return self._tokens

    def push(self, request: Request) -> Pushed:
        """Add a request whose ticket does not wait yet.

        When a bound would be passed, the newest requests of the lowest bands below the newcomer's are shed, and then,
        as in a band that is full itself, the newest of the tenant that holds most of the band, as long as that is more
        than the newcomer's own tenant would hold, each by its weight. Where those would not make room, the newcomer is
        refused and nobody is shed.
        """
        assert request.ticket not in self._entries
        limit = self._passed_limit(request)
        shed: list[Request] = []
        if limit is not None:
            victims = self._victims(request)
            if victims is None:
                return Pushed([request], limit)
            for victim in victims:
                shed.append(victim)
                self.remove(victim.ticket)
        band = self._bands[request.priority]
        if not band:
            self._occupied.append(request.priority)
            self._occupied.sort(reverse=True)
        entry = band.push(request, self._order)
        self._order += 1
        self._entries[request.ticket] = entry
        self._tokens += request.prompt_tokens
        heappush(self._deadlines, (request.deadline, entry.order, request.ticket))
        return Pushed(shed, limit or "")

    def remove(self, ticket: Ticket) -> Request | None:
        """Take a request out that will not be dispatched; None when it does not wait here."""
        entry = self._entries.get(ticket)
        if entry is None:
            return None
        self._bands[entry.request.priority].remove(entry)
        self._forget(entry)
        return entry.request

    def dispatch(self, ticket: Ticket, tokens: int, *, now: float) -> Debit:
        """Take out one of `heads`, whose tenant is charged what it is expected to cost."""
        entry = self._entries[ticket]
        priority = entry.request.priority
        is_lifted = priority < self._occupied[0] and entry is self._lifted_head(now)
        self._since_aged = 0 if is_lifted else self._since_aged + 1
        band = self._bands[priority]
        charge = band.serve(entry, tokens)
        self._forget(entry)
        return Debit(band, charge)

    def heads(self, *, now: float) -> Iterator[Request]:
        """Who is next, and who where that one cannot use a free worker: the first of each lane, band by band.

        One that was lifted may stand before them. The queue must not change during the walk.
        """
        lifted = self._lifted_head(now)
        if lifted is not None:
            yield lifted.request
        for priority in self._occupied:
            for entry in self._bands[priority].heads():
                if entry is not lifted:
                    yield entry.request

    def urgency(self, *, now: float) -> tuple[int, float]:
        """Of queues that compete for a worker, the one with the largest goes first."""
        if not self._occupied:
            return -1, 0.0
        top = self._occupied[0]
        head = self._lifted_head(now) or self._bands[top].head()
        return top, -head.request.queued_at

    def position(self, ticket: Ticket) -> int | None:
        """About how many go before a request that waits, if nobody else comes; ageing is not reckoned with."""
        entry = self._entries.get(ticket)
        if entry is None:
            return None
        priority = entry.request.priority
        return self.num_from(priority + 1) + self._bands[priority].num_before(entry)

    def num_from(self, priority: int) -> int:
        """How many wait at a priority and above."""
        return sum(map(len, self._bands[priority:]))

    def expire(self, *, now: float) -> list[Expired]:
        """Take out all whose deadline has come, earliest first."""
        expired = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            ticket = self._deadlines[0][2]
            position = self.position(ticket)
            request = self.remove(ticket)
            assert request is not None
            assert position is not None
            expired.append(Expired(request, position))
        return expired

    def next_deadline(self) -> float | None:
        while self._deadlines:
            deadline, order, ticket = self._deadlines[0]
            entry = self._entries.get(ticket)
            if entry is not None and entry.order == order:
                return deadline
            heappop(self._deadlines)
        return None

    def bands(self) -> list[BandView]:
        """The bands that have somebody, the highest first."""
        return [BandView(p, len(self._bands[p]), self._bands[p].tokens) for p in self._occupied]

    def tenants(self) -> list[TenantView]:
        """Whoever waits, most requests first; O(tenants)."""
        found: dict[str, TenantView] = {}
        for priority in self._occupied:
            for account in self._bands[priority].tenants():
                _, requests, tokens = found.get(account.tenant_id, TenantView("", 0, 0))
                found[account.tenant_id] = TenantView(
                    account.tenant_id, requests + account.waiting, tokens + account.waiting_cost
                )
        return sorted(found.values(), key=lambda tenant: (-tenant.requests, tenant.tenant_id))

    def requests(self) -> list[Request]:
        """All that wait, in order of arrival; O(waiting)."""
        return [entry.request for entry in self._entries.values()]

    def find(self, request_id: str) -> list[Request]:
        """The waiting requests of this id, in order of arrival; O(waiting)."""
        return [request for request in self.requests() if request.request_id == request_id]

    def oldest_at(self) -> float | None:
        """When the longest waiting request was queued."""
        oldest = (self._bands[priority].oldest() for priority in self._occupied)
        return min((entry.request.queued_at for entry in oldest), default=None)

    def _forget(self, entry: Entry) -> None:
        request = entry.request
        del self._entries[request.ticket]
        self._tokens -= request.prompt_tokens
        if not self._bands[request.priority]:
            self._occupied.remove(request.priority)
        if len(self._deadlines) > 2 * len(self._entries) + HEAP_SLACK:
            self._deadlines = [(e.request.deadline, e.order, t) for t, e in self._entries.items()]
            heapify(self._deadlines)

    def _lifted_head(self, now: float) -> Entry | None:
        """The request that goes ahead of the highest band, because it has been lifted so far and a turn is due."""
        if self._since_aged + 1 < self._aged_every:
            return None
        best, best_key = None, (0, 0)
        for priority in self._occupied[1:]:
            head = self._bands[priority].head()
            lifted = min(PRIORITIES - 1, priority + int((now - head.request.queued_at) / self._ageing_s))
            key = lifted, -head.order
            if lifted >= self._occupied[0] and (best is None or key > best_key):
                best, best_key = head, key
        return best

    def _passed_limit(self, newcomer: Request) -> str | None:
        band, limits = self._bands[newcomer.priority], self._limits
        at = newcomer.priority
        if len(band) >= limits.band_requests:
            return f"{len(band)} requests wait at priority {at}, the limit is {limits.band_requests}"
        tokens = band.tokens + newcomer.prompt_tokens
        if tokens > limits.band_prompt_tokens:
            return f"{tokens} prompt tokens would wait at priority {at}, the limit is {limits.band_prompt_tokens}"
        if len(self._entries) >= limits.requests:
            return f"{len(self._entries)} requests wait, the limit is {limits.requests}"
        tokens = self._tokens + newcomer.prompt_tokens
        if tokens > limits.prompt_tokens:
            return f"{tokens} prompt tokens would wait, the limit is {limits.prompt_tokens}"
        return None

    def _victims(self, newcomer: Request) -> list[Request] | None:
        """Who is shed for a newcomer that finds no room; None where nobody is, because that would not be enough."""
        limits = self._limits
        own = self._bands[newcomer.priority]
        excess = _Excess(
            len(own) + 1 - limits.band_requests, own.tokens + newcomer.prompt_tokens - limits.band_prompt_tokens
        )
        in_all = _Excess(len(self) + 1 - limits.requests, self._tokens + newcomer.prompt_tokens - limits.prompt_tokens)
        victims: list[Request] = []
        below = (entry for band in self._bands[: newcomer.priority] for entry in band.newest_first())
        for entry in below:
            if not in_all.remains:
                break
            in_all = in_all.without(entry.request)
            victims.append(entry.request)
        holder = own.largest_holder()
        if holder is not None and holder.tenant_id != newcomer.tenant_id:
            held, share = holder.waiting_cost, own.holding_after(newcomer)
            for entry in own.newest_first_of(holder):
                if not (excess.remains or in_all.remains) or held / holder.weight <= share:
                    break
                held -= entry.cost
                excess, in_all = excess.without(entry.request), in_all.without(entry.request)
                victims.append(entry.request)
        return None if excess.remains or in_all.remains else victims


class _Excess(NamedTuple):
    """What has to leave for a bound to hold; nothing has where both are 0 or below."""

    requests: int
    tokens: int

    @property
    def remains(self) -> bool:
        return self.requests > 0 or self.tokens > 0

    def without(self, request: Request) -> _Excess:
        return _Excess(self.requests - 1, self.tokens - request.prompt_tokens)
