"""The waiting requests of one model: bands by priority, first come first served inside a band.

Inside a band there is one lane for each set of excluded workers, because only requests that exclude workers can be
passed by others (see `heads`). Lanes are linked maps, so that adding, cancelling and taking the first or the newest
cost O(1) in the requests that wait; the walk over lanes is bounded by the distinct exclusion sets, of which there is
one (the empty one) until workers fail. Deadlines are a heap with stale entries, which is rebuilt once they outnumber
the live ones: O(log n) a request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from .messages import PRIORITIES, Request, Ticket

# Stale heap entries that are tolerated however few requests wait; below it a rebuild is not worth its bookkeeping.
_HEAP_SLACK = 64


class QueueLimits(NamedTuple):
    """Bounds for each model."""

    requests: int = 10_000
    prompt_tokens: int = 50_000_000


class Pushed(NamedTuple):
    """`refused` holds those that must leave: requests shed for the newcomer, or the newcomer. `limit` says why."""

    refused: list[Request]
    limit: str


@dataclass(slots=True)
class _Entry:
    request: Request
    order: int


_Lane = OrderedDict[Ticket, _Entry]


@dataclass(slots=True)
class _Band:
    lanes: dict[frozenset[str], _Lane]
    requests: int = 0
    tokens: int = 0


class WaitingQueue:
    def __init__(self, limits: QueueLimits = QueueLimits()) -> None:  # noqa: B008 - an immutable tuple
        self._limits = limits
        self._bands = [_Band({}) for _ in range(PRIORITIES)]
        self._entries: dict[Ticket, _Entry] = {}
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

        When a bound would be passed, the newest requests of the lowest bands below the newcomer's are shed; where
        those would not make room, the newcomer is refused and nobody is shed.
        """
        assert request.ticket not in self._entries
        shed: list[Request] = []
        limit = self._passed_limit(request)
        if limit is not None:
            if not self._outranks_enough(request):
                return Pushed([request], limit)
            while self._passed_limit(request) is not None:
                shed.append(self._shed_newest_of_lowest())
        entry = _Entry(request, self._order)
        self._order += 1
        band = self._bands[request.priority]
        lane = band.lanes.get(request.excluded)
        if lane is None:
            lane = band.lanes[request.excluded] = OrderedDict()
        lane[request.ticket] = entry
        band.requests += 1
        band.tokens += request.prompt_tokens
        self._entries[request.ticket] = entry
        self._tokens += request.prompt_tokens
        heappush(self._deadlines, (request.deadline, entry.order, request.ticket))
        return Pushed(shed, limit or "")

    def remove(self, ticket: Ticket) -> Request | None:
        """Take a request out; None when it does not wait here."""
        entry = self._entries.pop(ticket, None)
        if entry is None:
            return None
        request = entry.request
        band = self._bands[request.priority]
        lane = band.lanes[request.excluded]
        del lane[ticket]
        if not lane:
            del band.lanes[request.excluded]
        band.requests -= 1
        band.tokens -= request.prompt_tokens
        self._tokens -= request.prompt_tokens
        if len(self._deadlines) > 2 * len(self._entries) + _HEAP_SLACK:
            self._deadlines = [(e.request.deadline, e.order, t) for t, e in self._entries.items()]
            heapify(self._deadlines)
        return request

    def heads(self) -> Iterator[Request]:
        """The first of each lane, highest band first, oldest first inside a band.

        Nobody else can be next: whoever stands behind in a lane can use exactly the workers that its first can use.
        The queue must not change during the walk.
        """
        for band in reversed(self._bands):
            if not band.requests:
                continue
            if len(band.lanes) == 1:
                (lane,) = band.lanes.values()
                yield next(iter(lane.values())).request
            else:
                firsts = [next(iter(lane.values())) for lane in band.lanes.values()]
                firsts.sort(key=lambda entry: entry.order)
                for entry in firsts:
                    yield entry.request

    def expire(self, *, now: float) -> list[Request]:
        """Take out all whose deadline has come, earliest first."""
        expired = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            request = self.remove(self._deadlines[0][2])
            assert request is not None
            expired.append(request)
        return expired

    def next_deadline(self) -> float | None:
        while self._deadlines:
            deadline, order, ticket = self._deadlines[0]
            entry = self._entries.get(ticket)
            if entry is not None and entry.order == order:
                return deadline
            heappop(self._deadlines)
        return None

    def oldest_at(self) -> float | None:
        """When the longest waiting request was queued; O(lanes)."""
        firsts = (next(iter(lane.values())) for band in self._bands for lane in band.lanes.values())
        return min((entry.request.queued_at for entry in firsts), default=None)

    def _passed_limit(self, newcomer: Request) -> str | None:
        if len(self._entries) >= self._limits.requests:
            return f"{len(self._entries)} requests wait, the limit is {self._limits.requests}"
        tokens = self._tokens + newcomer.prompt_tokens
        if tokens > self._limits.prompt_tokens:
            return f"{tokens} prompt tokens would wait, the limit is {self._limits.prompt_tokens}"
        return None

    def _outranks_enough(self, newcomer: Request) -> bool:
        """Whether shedding everybody below the newcomer's band would make room for it."""
        kept = self._bands[newcomer.priority :]
        requests = sum(band.requests for band in kept)
        tokens = sum(band.tokens for band in kept)
        return requests < self._limits.requests and tokens + newcomer.prompt_tokens <= self._limits.prompt_tokens

    def _shed_newest_of_lowest(self) -> Request:
        band = next(band for band in self._bands if band.requests)
        lasts = (next(reversed(lane.values())) for lane in band.lanes.values())
        newest = max(lasts, key=lambda entry: entry.order)
        self.remove(newest.request.ticket)
        return newest.request
