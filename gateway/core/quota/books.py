"""One tenant's books: what it holds and has used under each bound, by the same arithmetic as `gateway/quota/*.lua`.

A bound has a number that is held, and entries of an amount and a stamp, in order. Of a minute the stamp is the time of
the entry's last addition, of a day or a month its number; the amounts of one second share an entry. What is reserved is
held; what is settled is an entry. docs/design/quota.md has the theory.

Reserve and settle cost O(bounds), apart from settlements of the past, which find their second from the end.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

from .calls import Reserve, Settlement, Standing, Verdict
from .plan import Row, plan_of
from .policy import Bound, Kind

MINUTE_MS = 60_000
SLOT_MS = 1_000
DAY_MS = 86_400_000
# After which a caller may look again where only what others hold stands in the way.
HELD_WAIT_MS = 1_000
# Settlements are replayed after outages and told again after lost answers: for this long a second one is known as such.
REMEMBER_MS = 2 * 3600 * 1000
# Leases that have expired, and settled ids that are to be forgotten, which one call looks after: it stays short.
EXPIRED_A_CALL = 20

_EPOCH = date(1970, 1, 1).toordinal()
_UNUSED = Standing(0, 0)


class _Book:
    """One bound's state. `held` and `spent`, the sum of the entries, are never below 0."""

    __slots__ = ("_is_budget", "amounts", "held", "kind", "spent", "stamps")

    def __init__(self, kind: Kind) -> None:
        self.kind, self._is_budget = kind, kind.is_budget
        self.held = self.spent = 0
        # The entries, in order of their stamps.
        self.amounts: list[int] = []
        self.stamps: list[int] = []

    def prune(self, now_ms: int) -> None:
        """Let go the entries that no longer count."""
        stamps = self.stamps
        if not stamps:
            return
        if self._is_budget:
            gone = 0 if stamps[0] == period(self.kind, now_ms) else len(stamps)
        elif stamps[0] + MINUTE_MS > now_ms:
            return
        else:
            gone = next((place for place, stamp in enumerate(stamps) if stamp + MINUTE_MS > now_ms), len(stamps))
        if gone:
            self.spent -= sum(self.amounts[:gone])
            del stamps[:gone], self.amounts[:gone]

    def add(self, amount: int, at_ms: int, now_ms: int) -> None:
        """Book it at that time, if that still counts now."""
        if amount == 0:
            return
        if self._is_budget:
            number = period(self.kind, at_ms)
            if number != period(self.kind, now_ms):
                return
            self._add(0, len(self.stamps) == 1, amount, number)
        elif at_ms + MINUTE_MS > now_ms:
            place = self._find(at_ms)
            self._add(place, place < len(self.stamps) and self._is_in_slot(place, at_ms), amount, at_ms)

    def take_back(self, admitted_ms: int) -> bool:
        """Take one from the second of that time; False where it no longer counts."""
        place = self._find(admitted_ms)
        if place == len(self.stamps) or not self._is_in_slot(place, admitted_ms):
            return False
        self.amounts[place] -= 1
        self.spent -= 1
        if self.amounts[place] == 0:
            del self.amounts[place], self.stamps[place]
        return True

    def wait_ms(self, most: int, now_ms: int) -> int:
        """Until there is room if nothing comes and nothing that is held ends; there is none now."""
        if self.kind is Kind.PARALLEL_REQUESTS:
            return HELD_WAIT_MS
        if self._is_budget:
            return HELD_WAIT_MS if self.spent < most else _period_end_ms(self.kind, now_ms) - now_ms
        left, until_ms = self.held + self.spent, 0
        for amount, stamp in zip(self.amounts, self.stamps, strict=True):
            left -= amount
            until_ms = stamp + MINUTE_MS - now_ms
            if left < most:
                return until_ms
        return max(HELD_WAIT_MS, until_ms)

    def standing(self, now_ms: int) -> Standing:
        used = self.held + self.spent
        if used == 0:
            return _UNUSED
        if self.kind is Kind.PARALLEL_REQUESTS:
            return Standing(used, HELD_WAIT_MS)
        if self._is_budget:
            return Standing(used, _period_end_ms(self.kind, now_ms) - now_ms)
        # What is held counts for a minute from its end on, so at least as long.
        return Standing(used, MINUTE_MS if self.held else self.stamps[-1] + MINUTE_MS - now_ms)

    def _find(self, at_ms: int) -> int:
        """Place of the first entry that is not of an earlier second."""
        start_ms = at_ms - at_ms % SLOT_MS
        if self.stamps and self.stamps[-1] < start_ms:
            return len(self.stamps)
        return bisect_left(self.stamps, start_ms)

    def _is_in_slot(self, place: int, at_ms: int) -> bool:
        return self.stamps[place] // SLOT_MS == at_ms // SLOT_MS

    def _add(self, place: int, is_there: bool, amount: int, stamp: int) -> None:
        if is_there:
            self.amounts[place] += amount
            self.stamps[place] = max(self.stamps[place], stamp)
        else:
            self.amounts.insert(place, amount)
            self.stamps.insert(place, stamp)
        self.spent += amount


@dataclass(frozen=True, slots=True)
class _Lease:
    call: Reserve
    rows: Sequence[Row]
    admitted_ms: int

    @property
    def expires_ms(self) -> int:
        return self.admitted_ms + self.call.lease_ms


class QuotaBooks:
    """Grants while there is room, and books what was used. Times are whole milliseconds since 1970 and may stand still.

    A bound that is not named in a call is not looked at; one whose amount has changed goes on with what was used.
    """

    def __init__(self, *, remember_ms: int = REMEMBER_MS) -> None:
        self._remember_ms = remember_ms
        self._books: dict[str, _Book] = {}
        self._leases: dict[str, _Lease] = {}
        # By expiry; those that were settled before are skipped.
        self._expiries: list[tuple[int, str]] = []
        # Times of settlements, oldest first.
        self._settled: dict[str, int] = {}

    @property
    def num_leases(self) -> int:
        return len(self._leases)

    def reserve(self, call: Reserve, *, now_ms: int) -> Verdict:
        """Hold the request's place under all its bounds or, where one has no room, under none.

        Asked twice with one id it is held once, and not at all where it has been settled: a call may come late.
        """
        self.expire(now_ms=now_ms)
        rows = plan_of(call.bounds).rows
        books = [self._book(row, now_ms) for row in rows]
        failed, wait_ms = None, 0
        for place, (row, book) in enumerate(zip(rows, books, strict=True)):
            if book.held + book.spent >= row.most and (wait := book.wait_ms(row.most, now_ms)) > wait_ms:
                failed, wait_ms = place, wait
        is_granted = failed is None or call.is_shadow
        is_known = call.reservation_id in self._leases or self._is_marked(call.reservation_id, now_ms)
        if is_granted and not is_known:
            for row, book in zip(rows, books, strict=True):
                if row.counts_requests:
                    book.add(1, now_ms, now_ms)
                else:
                    book.held += 1 if row.is_parallel else call.units
            lease = _Lease(call, rows, now_ms)
            self._leases[call.reservation_id] = lease
            heapq.heappush(self._expiries, (lease.expires_ms, call.reservation_id))
        return Verdict(is_granted, [book.standing(now_ms) for book in books], failed, wait_ms)

    def settle(self, settlement: Settlement, *, now_ms: int) -> bool:
        """Release what was held and book what was used; False, and nothing changes, where that was done before."""
        is_request = self._mark(settlement, now_ms)
        if is_request is None:
            return False
        at_ms = now_ms - settlement.age_ms
        lease = self._leases.pop(settlement.reservation_id, None)
        too_late = () if lease is None else self._release(lease, now_ms)
        for row in plan_of(settlement.bounds).rows:
            if row.counts_tokens:
                self._book(row, now_ms).add(settlement.units, at_ms, now_ms)
            elif row.counts_requests and is_request and row.name not in too_late:
                self._book(row, now_ms).add(1, at_ms, now_ms)
        return True

    def expire(self, *, now_ms: int) -> int:
        """Let go leases that ran out, a few a call; how many. Nothing is booked for them."""
        gone = 0
        while gone < EXPIRED_A_CALL and self._expiries and self._expiries[0][0] <= now_ms:
            expires_ms, reservation_id = heapq.heappop(self._expiries)
            lease = self._leases.get(reservation_id)
            if lease is None or lease.expires_ms != expires_ms:
                continue
            del self._leases[reservation_id]
            self._let_go(lease, now_ms)
            gone += 1
        return gone

    def standings(self, bounds: Sequence[Bound], *, now_ms: int) -> list[Standing]:
        self.expire(now_ms=now_ms)
        return [self._book(row, now_ms).standing(now_ms) for row in plan_of(bounds).rows]

    def open_calls(self) -> list[Reserve]:
        """Those that were granted and have neither been settled nor run out: to be held elsewhere as well."""
        return [lease.call for lease in self._leases.values()]

    def is_idle(self, *, now_ms: int) -> bool:
        """Nothing counts any more: new books would say the same, but for settlements that are told again."""
        for book in self._books.values():
            book.prune(now_ms)
        return not self._leases and all(book.held + book.spent == 0 for book in self._books.values())

    def _book(self, row: Row, now_ms: int) -> _Book:
        book = self._books.get(row.name)
        if book is None:
            book = self._books[row.name] = _Book(row.kind)
        else:
            book.prune(now_ms)
        return book

    def _let_go(self, lease: _Lease, now_ms: int) -> None:
        for row in lease.rows:
            if not row.counts_requests:
                book = self._book(row, now_ms)
                book.held = max(0, book.held - (1 if row.is_parallel else lease.call.units))

    def _release(self, lease: _Lease, now_ms: int) -> Sequence[str]:
        """Names of the bounds under which the request's admission no longer counts."""
        self._let_go(lease, now_ms)
        return [
            row.name
            for row in lease.rows
            if row.counts_requests and not self._book(row, now_ms).take_back(lease.admitted_ms)
        ]

    def _mark(self, settlement: Settlement, now_ms: int) -> bool | None:
        """Whether it counts as a request; None where it was settled before."""
        for _ in range(EXPIRED_A_CALL):
            oldest = next(iter(self._settled), None)
            if oldest is None or self._settled[oldest] > now_ms - self._remember_ms:
                break
            del self._settled[oldest]
        whole = settlement.reservation_id
        if not settlement.part:
            if self._is_marked(whole, now_ms) or self._is_marked(f"{whole}~", now_ms):
                return None
            self._settled[whole] = now_ms
            return settlement.is_request
        part = f"{whole}/{settlement.part}"
        if self._is_marked(whole, now_ms) or self._is_marked(part, now_ms):
            return None
        is_request = settlement.is_request and not self._is_marked(f"{whole}~r", now_ms)
        for name in (part, f"{whole}~", *((f"{whole}~r",) if is_request else ())):
            self._settled.pop(name, None)
            self._settled[name] = now_ms
        return is_request

    def _is_marked(self, name: str, now_ms: int) -> bool:
        at_ms = self._settled.get(name)
        return at_ms is not None and at_ms > now_ms - self._remember_ms


def period(kind: Kind, at_ms: int) -> int:
    """The number of the day or the month of a budget."""
    day = at_ms // DAY_MS
    if kind is Kind.TOKENS_PER_DAY:
        return day
    at = date.fromordinal(_EPOCH + day)
    return at.year * 12 + at.month


def _period_end_ms(kind: Kind, now_ms: int) -> int:
    day = now_ms // DAY_MS
    if kind is Kind.TOKENS_PER_DAY:
        return (day + 1) * DAY_MS
    at = date.fromordinal(_EPOCH + day)
    after = date(at.year + at.month // 12, at.month % 12 + 1, 1)
    return (after.toordinal() - _EPOCH) * DAY_MS
