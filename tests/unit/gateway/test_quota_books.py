"""A tenant's books: what counts for how long, what is granted, and that nothing leaks or is counted twice."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.quota.books import EXPIRED_A_CALL, MINUTE_MS, QuotaBooks
from gateway.core.quota.calls import Reserve, Settlement, Standing, Verdict
from gateway.core.quota.policy import Bound, Kind
from tests.support.quota_operations import REMEMBER_MS, STARTS_MS, Step, steps

NOW = STARTS_MS[0] // 1000 * 1000
LEASE_MS = 600_000
RPM = Bound("t", Kind.REQUESTS_PER_MINUTE, 2)
TPM = Bound("t", Kind.TOKENS_PER_MINUTE, 100)
PAR = Bound("t", Kind.PARALLEL_REQUESTS, 1)
TPD = Bound("t", Kind.TOKENS_PER_DAY, 100)
TPMO = Bound("t", Kind.TOKENS_PER_MONTH, 100)


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def ask(
    books: QuotaBooks, name: str, *bounds: Bound, now_ms: int = NOW, units: int = 10, shadow: bool = False
) -> Verdict:
    return books.reserve(Reserve(name, bounds, units, LEASE_MS, shadow), now_ms=now_ms)


def used(books: QuotaBooks, *bounds: Bound, now_ms: int = NOW) -> list[int]:
    return [standing.used for standing in books.standings(bounds, now_ms=now_ms)]


def test_a_request_counts_from_its_admission_to_a_minute_after_its_end() -> None:
    """Three tokens and one request: held, then used, then forgotten."""
    books = QuotaBooks()
    assert ask(books, "a", RPM, TPM, PAR) == Verdict(
        True, [Standing(1, MINUTE_MS), Standing(10, MINUTE_MS), Standing(1, 1000)]
    )
    assert used(books, RPM, TPM, PAR, now_ms=NOW + 30_000) == [1, 10, 1]
    assert books.settle(Settlement("a", (RPM, TPM, PAR), 3), now_ms=NOW + 30_000)
    assert used(books, RPM, TPM, PAR, now_ms=NOW + 89_999) == [1, 3, 0]
    assert used(books, RPM, TPM, PAR, now_ms=NOW + 90_000) == [0, 0, 0]


def test_what_comes_late_does_not_bring_back_what_is_gone() -> None:
    """Also where both are of one second, of which the first half has just ceased to count."""
    books = QuotaBooks()
    ask(books, "a", RPM)
    late = Settlement("b", (RPM,), 0, age_ms=MINUTE_MS - 1)
    assert books.settle(late, now_ms=NOW + MINUTE_MS)
    assert used(books, RPM, now_ms=NOW + MINUTE_MS) == [1]


def test_a_long_request_counts_for_a_minute_from_its_admission() -> None:
    """Its tokens count while it runs and for a minute after; as a request it is not counted a second time."""
    books = QuotaBooks()
    ask(books, "a", RPM, TPM)
    assert used(books, RPM, TPM, now_ms=NOW + 60_000) == [0, 10]
    books.settle(Settlement("a", (RPM, TPM), 7), now_ms=NOW + 200_000)
    assert used(books, RPM, TPM, now_ms=NOW + 259_999) == [0, 7]


def test_all_or_nothing() -> None:
    """A bound without room leaves the others as they were, and the longest wait is told."""
    books = QuotaBooks()
    ask(books, "a", RPM, PAR)
    refused = ask(books, "b", RPM, TPM, PAR, now_ms=NOW + 1)
    assert refused == Verdict(False, [Standing(1, 59_999), Standing(0, 0), Standing(1, 1000)], 2, 1000)
    ask(books, "c", RPM)
    assert ask(books, "d", PAR, RPM, now_ms=NOW + 1) == Verdict(
        False, [Standing(1, 1000), Standing(2, 59_999)], 1, 59_999
    )


def test_shadow_counts_and_refuses_nothing() -> None:
    """The verdict still names what would have refused."""
    books = QuotaBooks()
    ask(books, "a", PAR)
    assert ask(books, "b", PAR, shadow=True) == Verdict(True, [Standing(2, 1000)], 0, 1000)


def test_the_last_request_may_pass_a_bound_of_tokens() -> None:
    """There is room while anything is left, so a request larger than the bound is granted when nothing else counts."""
    books = QuotaBooks()
    assert ask(books, "a", TPM, units=1000).is_granted
    assert not ask(books, "b", TPM, units=1).is_granted
    books.settle(Settlement("a", (TPM,), 99), now_ms=NOW)
    assert ask(books, "c", TPM, units=1000).is_granted


@pytest.mark.parametrize(
    ("ages_ms", "wait_ms"),
    [
        pytest.param([50_000, 30_000], 10_000, id="until the older of the two is gone"),
        pytest.param([29_900, 29_600], 30_400, id="of one second both go with the younger"),
        pytest.param([50_000, 30_000, 20_000], 30_000, id="of one too many the second must go as well"),
        pytest.param([59_999, 0], 1, id="at least a millisecond"),
    ],
)
def test_how_long_to_wait_for_a_request(ages_ms: list[int], wait_ms: int) -> None:
    """Until enough of what counts has passed: then, and not before, there is room."""
    books = QuotaBooks()
    for number, age_ms in enumerate(ages_ms):
        books.settle(Settlement(str(number), (RPM,), 0, age_ms=age_ms), now_ms=NOW)
    assert ask(books, "c", RPM).wait_ms == wait_ms
    assert not ask(books, "d", RPM, now_ms=NOW + wait_ms - 1).is_granted
    assert ask(books, "e", RPM, now_ms=NOW + wait_ms).is_granted


def test_how_long_to_wait_for_what_is_held() -> None:
    """A second, when only others that run stand in the way; of a budget too, since it comes back with them."""
    books = QuotaBooks()
    ask(books, "a", TPM, TPD, PAR, units=100)
    for bound in (TPM, TPD, PAR):
        assert ask(books, "b", bound).wait_ms == 1000
    books.settle(Settlement("c", (TPM,), 5), now_ms=NOW)
    assert ask(books, "b", TPM).wait_ms == MINUTE_MS


@pytest.mark.parametrize(
    ("bound", "now", "later"),
    [
        (TPD, "2026-11-30T23:59:00", "2026-12-01T00:00:00"),
        (TPMO, "2026-12-15T12:00:00", "2027-01-01T00:00:00"),
        (TPMO, "2028-02-28T12:00:00", "2028-03-01T00:00:00"),
        (TPMO, "2100-02-28T23:59:59", "2100-03-01T00:00:00"),
    ],
)
def test_budgets_begin_anew_with_the_day_and_the_month(bound: Bound, now: str, later: str) -> None:
    """In UTC; what is told late is booked only if its day or month is still the present one."""
    books = QuotaBooks()
    books.settle(Settlement("a", (bound,), 100), now_ms=at(now))
    refused = ask(books, "b", bound, now_ms=at(now))
    assert not refused.is_granted
    assert refused.wait_ms == refused.standings[0].reset_ms == at(later) - at(now)
    books.settle(Settlement("c", (bound,), 100, age_ms=1), now_ms=at(later))
    assert used(books, bound, now_ms=at(later)) == [0]
    assert ask(books, "d", bound, now_ms=at(later)).is_granted


def test_what_reached_no_worker_counts_as_no_request() -> None:
    """It is as if it had never come."""
    books = QuotaBooks()
    ask(books, "a", RPM, TPM)
    books.settle(Settlement("a", (RPM, TPM), 0, is_request=False), now_ms=NOW + 5_000)
    assert used(books, RPM, TPM, now_ms=NOW + 5_000) == [0, 0]


def test_a_settlement_is_booked_once() -> None:
    """However often it is told, also in parts after the whole or the whole after parts."""
    books = QuotaBooks()
    whole = Settlement("a", (RPM, TPM), 5)
    assert [books.settle(whole, now_ms=NOW) for _ in range(3)] == [True, False, False]
    assert not books.settle(replace(whole, part="one"), now_ms=NOW)
    parts = [Settlement("b", (RPM, TPM), 5, part=part) for part in ("one", "two", "one")]
    assert [books.settle(part, now_ms=NOW) for part in parts] == [True, True, False]
    assert not books.settle(Settlement("b", (RPM, TPM), 5), now_ms=NOW)
    assert used(books, RPM, TPM) == [2, 15]


def test_parts_are_one_request() -> None:
    """Also where the first of them had not reached its worker."""
    books = QuotaBooks()
    ask(books, "a", RPM, TPM, PAR)
    for part, is_request in (("one", False), ("two", True), ("three", True)):
        books.settle(Settlement("a", (RPM, TPM, PAR), 2, is_request, part=part), now_ms=NOW + 1)
    assert used(books, RPM, TPM, PAR) == [1, 6, 0]


def test_settled_ids_are_forgotten_after_a_while() -> None:
    """So the books stay bounded."""
    books = QuotaBooks(remember_ms=1000)
    assert books.settle(Settlement("a", (TPM,), 1), now_ms=NOW)
    assert not books.settle(Settlement("a", (TPM,), 1), now_ms=NOW + 999)
    assert books.settle(Settlement("a", (TPM,), 1), now_ms=NOW + 1000)


def test_a_lease_that_ran_out_is_let_go() -> None:
    """Place and tokens are free again, nothing is booked for it; what is told of it later is."""
    books = QuotaBooks()
    ask(books, "a", RPM, TPM, PAR)
    gone = NOW + LEASE_MS
    assert used(books, RPM, TPM, PAR, now_ms=gone - 1) == [0, 10, 1]
    assert used(books, RPM, TPM, PAR, now_ms=gone) == [0, 0, 0]
    assert books.num_leases == 0
    books.settle(Settlement("a", (RPM, TPM, PAR), 4), now_ms=gone)
    assert used(books, RPM, TPM, PAR, now_ms=gone) == [1, 4, 0]


def test_one_call_lets_go_a_few_leases() -> None:
    """A gateway that died with a thousand requests does not hold up the next call."""
    books = QuotaBooks()
    many = replace(PAR, most=1000)
    for number in range(EXPIRED_A_CALL + 5):
        ask(books, str(number), many)
    assert books.expire(now_ms=NOW + LEASE_MS) == EXPIRED_A_CALL
    assert books.expire(now_ms=NOW + LEASE_MS) == 5
    assert books.is_idle(now_ms=NOW + LEASE_MS)


def test_asked_twice_with_one_id_is_held_once() -> None:
    """An answer that was lost and a call that was made again leave nothing behind."""
    books = QuotaBooks()
    for _ in range(2):
        assert ask(books, "a", TPM).is_granted
    assert used(books, TPM) == [10]
    books.settle(Settlement("a", (TPM,), 0), now_ms=NOW)
    assert used(books, TPM) == [0]


def test_what_is_open_can_be_held_elsewhere() -> None:
    """The calls that are neither settled nor run out, as they were made."""
    books = QuotaBooks()
    for name in "abc":
        ask(books, name, TPM)
    books.settle(Settlement("b", (TPM,), 0), now_ms=NOW)
    assert books.open_calls() == [Reserve(name, (TPM,), 10, LEASE_MS) for name in "ac"]


@dataclass
class _Booked:
    slot: int
    at_ms: int
    amount: int


@dataclass
class Brute:
    """The same rules over a list of everything that ever happened."""

    leases: dict[str, tuple[Reserve, int]] = field(default_factory=dict)
    booked: dict[str, list[_Booked]] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)

    @staticmethod
    def _period(kind: Kind, at_ms: int) -> int:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
        if kind is Kind.TOKENS_PER_DAY:
            return moment.toordinal()
        return moment.year * 12 + moment.month

    def _counts(self, bound: Bound, slot: int, now_ms: int) -> bool:
        if bound.kind.is_budget:
            return slot == self._period(bound.kind, now_ms)
        return max(b.at_ms for b in self.booked[bound.name] if b.slot == slot) + MINUTE_MS > now_ms

    def _add(self, bound: Bound, amount: int, at_ms: int, now_ms: int) -> None:
        if amount == 0 or (not bound.kind.is_budget and at_ms + MINUTE_MS <= now_ms):
            return
        slot = self._period(bound.kind, at_ms) if bound.kind.is_budget else at_ms // 1000
        booked = self.booked.setdefault(bound.name, [])
        if any(b.slot == slot for b in booked) and not self._counts(bound, slot, now_ms):
            booked[:] = [b for b in booked if b.slot != slot]  # what comes late does not bring back what is gone
        booked.append(_Booked(slot, at_ms, amount))

    def used(self, bound: Bound, now_ms: int) -> int:
        held = 0
        for call, _ in self.leases.values():
            if bound.name in {each.name for each in call.bounds}:
                held += 1 if bound.kind is Kind.PARALLEL_REQUESTS else call.units if bound.kind.counts_tokens else 0
        booked = self.booked.get(bound.name, [])
        return held + sum(b.amount for b in booked if self._counts(bound, b.slot, now_ms))

    def expire(self, now_ms: int) -> None:
        due = sorted((at + call.lease_ms, name) for name, (call, at) in self.leases.items())
        for expires_ms, name in due[:EXPIRED_A_CALL]:
            if expires_ms <= now_ms:
                del self.leases[name]

    def reserve(self, call: Reserve, now_ms: int) -> bool:
        self.expire(now_ms)
        has_room = all(self.used(bound, now_ms) < bound.most for bound in call.bounds)
        settled_ms = self.settled.get(call.reservation_id)
        is_known = call.reservation_id in self.leases or (settled_ms is not None and settled_ms > now_ms - REMEMBER_MS)
        if (has_room or call.is_shadow) and not is_known:
            self.leases[call.reservation_id] = (call, now_ms)
            for bound in call.bounds:
                if bound.kind is Kind.REQUESTS_PER_MINUTE:
                    self._add(bound, 1, now_ms, now_ms)
        return has_room or call.is_shadow

    def settle(self, told: Settlement, now_ms: int) -> bool:
        name = told.reservation_id
        known = {each for each, at in self.settled.items() if at > now_ms - REMEMBER_MS}
        mine = {name, f"{name}/{told.part}"} if told.part else {name, f"{name}~"}
        if mine & known:
            return False
        is_request = told.is_request and (not told.part or f"{name}~r" not in known)
        marks = [name] if not told.part else [f"{name}/{told.part}", f"{name}~", *([f"{name}~r"] if is_request else [])]
        self.settled |= dict.fromkeys(marks, now_ms)
        call, admitted_ms = self.leases.pop(name, (None, 0))
        too_late = set()
        for bound in call.bounds if call else ():
            if bound.kind is Kind.REQUESTS_PER_MINUTE:
                slot = admitted_ms // 1000
                there = [b for b in self.booked.get(bound.name, []) if b.slot == slot]
                if there and sum(b.amount for b in there) and self._counts(bound, slot, now_ms):
                    self.booked[bound.name].append(_Booked(slot, admitted_ms, -1))
                    if sum(b.amount for b in self.booked[bound.name] if b.slot == slot) == 0:
                        self.booked[bound.name] = [b for b in self.booked[bound.name] if b.slot != slot]
                else:
                    too_late.add(bound.name)
        for bound in told.bounds:
            if bound.kind.counts_tokens:
                self._add(bound, told.units, now_ms - told.age_ms, now_ms)
            elif bound.kind is Kind.REQUESTS_PER_MINUTE and is_request and bound.name not in too_late:
                self._add(bound, 1, now_ms - told.age_ms, now_ms)
        return True


@settings(max_examples=40)
@given(st.sampled_from(STARTS_MS), steps())
def test_the_books_agree_with_a_list_of_everything(start_ms: int, sequence: Sequence[Step]) -> None:
    """Verdicts, what is used under each bound and what is left of leases, after every call."""
    books, brute, now_ms = QuotaBooks(remember_ms=REMEMBER_MS), Brute(), start_ms
    every = {bound for step in sequence for bound in getattr(step.call, "bounds", step.call)}
    for step in sequence:
        now_ms += step.after_ms
        match step.call:
            case Reserve() as call:
                assert books.reserve(call, now_ms=now_ms).is_granted == brute.reserve(call, now_ms)
            case Settlement() as told:
                assert books.settle(told, now_ms=now_ms) == brute.settle(told, now_ms)
        standings = books.standings(list(every), now_ms=now_ms)
        brute.expire(now_ms)
        assert [standing.used for standing in standings] == [brute.used(bound, now_ms) for bound in every]
        assert min((standing.used for standing in standings), default=0) >= 0
        assert books.num_leases == len(brute.leases)
    books.expire(now_ms=now_ms + 10**9)
    while books.expire(now_ms=now_ms + 10**9):
        pass
    assert books.num_leases == 0
    assert all(standing == Standing(0, 0) for standing in books.standings(list(every), now_ms=now_ms + 10**10))


@dataclass(frozen=True, order=True)
class Served:
    number: int
    admitted_ms: int
    settled_ms: int
    units: int


def served(
    rng: random.Random, bounds: Sequence[Bound], *, seconds: int, a_second: float, longest_ms: int
) -> list[Served]:
    """Those that were let in of callers that ask at random times, whatever they are told."""
    books, now_ms, number = QuotaBooks(), NOW, 0
    done: list[Served] = []
    running: list[tuple[int, Served]] = []
    while now_ms < NOW + seconds * 1000:
        now_ms += max(1, round(rng.expovariate(a_second) * 1000))
        while running and running[0][0] <= now_ms:
            ended_ms, each = heapq.heappop(running)
            books.settle(Settlement(str(each.number), bounds, each.units), now_ms=ended_ms)
        number += 1
        units = rng.randrange(1, 40)
        reserved = units + rng.choice((0, 0, rng.randrange(60)))
        if books.reserve(Reserve(str(number), bounds, reserved, LEASE_MS), now_ms=now_ms).is_granted:
            done.append(Served(number, now_ms, now_ms + rng.randrange(longest_ms), units))
            heapq.heappush(running, (done[-1].settled_ms, done[-1]))
    return done


@pytest.mark.parametrize("seed", range(6))
def test_no_sliding_minute_holds_more_than_the_bound_and_one_request(seed: int) -> None:
    """By times of admission and by times of settlement, for requests shorter than a minute."""
    rng = random.Random(seed)
    requests, tokens = rng.choice((5, 30, 200)), rng.choice((300, 2000))
    bounds = (replace(RPM, most=requests), replace(TPM, most=tokens))
    longest_ms = rng.choice((2_000, 20_000, 55_000))
    done = served(rng, bounds, seconds=200, a_second=rng.choice((2, 10)), longest_ms=longest_ms)
    assert len(done) > requests
    for time_of in (lambda each: each.admitted_ms, lambda each: each.settled_ms):
        minute: deque[Served] = deque()
        for last in sorted(done, key=time_of):
            minute.append(last)
            while time_of(minute[0]) <= time_of(last) - MINUTE_MS:
                minute.popleft()
            assert len(minute) <= requests + 1
            newest = max(minute, key=lambda each: each.number)
            assert sum(each.units for each in minute) - newest.units < tokens


@pytest.mark.parametrize(("bound", "of"), [(replace(RPM, most=300), "requests"), (replace(TPM, most=3_000), "tokens")])
def test_nearly_all_of_a_bound_is_granted_while_more_is_asked_for(bound: Bound, of: str) -> None:
    """What seconds that are counted as one and the time between an end and the next admission cost is below 5 %."""
    done = served(random.Random(1), (bound,), seconds=300, a_second=20, longest_ms=1_000)
    assert sum(1 if of == "requests" else each.units for each in done) >= 0.95 * 5 * bound.most
