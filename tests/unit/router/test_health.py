"""The breaker and the slow start: tables with right values, and that no order of events wedges a breaker."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from router.core.health import TRUSTING, WARM, Breaker, BreakerState, HealthRules, SlowStart
from router.core.messages import ReleaseOutcome

CLOSED, OPEN, HALF_OPEN = BreakerState.CLOSED, BreakerState.OPEN, BreakerState.HALF_OPEN
OK, FAILED = ReleaseOutcome.OK, ReleaseOutcome.FAILED
REFUSED, CANCELLED = ReleaseOutcome.REFUSED, ReleaseOutcome.CANCELLED
OUTCOMES = {"+": OK, "x": FAILED, "r": REFUSED, "c": CANCELLED}
RULES = HealthRules(failures_to_open=3, open_s=2.0, open_max_s=10.0, successes_to_close=2)


class Caller:
    """Sends requests through a breaker, with a clock that the test moves."""

    def __init__(self, rules: HealthRules = RULES) -> None:
        self.breaker = Breaker(rules)
        self.now = 100.0
        self._next = 1
        self._sent: dict[int, float] = {}

    def send(self) -> int:
        assert self.breaker.admits
        lease_id = self._next
        self._next += 1
        self._sent[lease_id] = self.now
        self.breaker.dispatched(lease_id)
        return lease_id

    def end(self, lease_id: int, outcome: ReleaseOutcome) -> None:
        self.breaker.released(lease_id, outcome, dispatched_at=self._sent.pop(lease_id), now=self.now)

    def first_token(self, lease_id: int) -> None:
        self.breaker.first_token(lease_id, dispatched_at=self._sent[lease_id], now=self.now)

    def play(self, outcomes: str) -> None:
        """One request after the other, 10 ms each, as long as they are admitted."""
        for letter in outcomes:
            lease_id = self.send()
            self.now += 0.01
            self.end(lease_id, OUTCOMES[letter])

    def wait(self, seconds: float) -> BreakerState:
        self.now += seconds
        self.breaker.advance(now=self.now)
        return self.breaker.state

    def open(self) -> None:
        self.play("xxx")
        assert self.breaker.state is OPEN


@pytest.mark.parametrize(
    ("outcomes", "state", "why"),
    [
        ("xx", CLOSED, "fewer than the row"),
        ("xxx", OPEN, "the row"),
        ("xx+xx", CLOSED, "an answer ends a row"),
        ("xxrx", OPEN, "a refusal does not end it"),
        ("xxcx", OPEN, "nor does a cancel"),
        ("r" * 50, CLOSED, "refusals count for nothing"),
        ("c" * 50, CLOSED, "cancels count for nothing"),
        ("x+x+x+x+x+", CLOSED, "5 failures of the last 12 results"),
        ("x+x+x+x+x+x", OPEN, "6 failures of the last 12 results"),
        ("x+x+x+x+x+" + "+" * 8 + "x", CLOSED, "those before the last 12 results are forgotten"),
    ],
)
def test_what_opens_it(outcomes: str, state: BreakerState, why: str) -> None:
    caller = Caller()
    caller.play(outcomes)
    assert caller.breaker.state is state, why


def test_a_first_token_ends_a_row() -> None:
    """A worker that begins to answer works; failures in the middle of answers still count as results."""
    caller = Caller()
    for _ in range(5):
        lease_id = caller.send()
        caller.first_token(lease_id)
        caller.end(lease_id, FAILED)
    assert caller.breaker.state is CLOSED
    lease_id = caller.send()
    caller.first_token(lease_id)
    caller.end(lease_id, FAILED)
    assert caller.breaker.state is OPEN, "6 of the last 12 results"


def test_open_to_half_open_to_closed() -> None:
    """Nothing for its period, then one at a time, and in service after the set number of first tokens."""
    caller = Caller()
    caller.open()
    assert not caller.breaker.admits
    assert caller.breaker.next_deadline == caller.now + 2.0
    assert caller.wait(1.999) is OPEN
    assert caller.wait(0.001) is HALF_OPEN
    assert caller.breaker.next_deadline is None
    first = caller.send()
    assert not caller.breaker.admits
    caller.first_token(first)
    assert caller.breaker.state is HALF_OPEN
    second = caller.send()
    caller.end(first, OK)
    assert caller.breaker.state is HALF_OPEN, "one probe, one success"
    assert not caller.breaker.admits
    caller.end(second, OK)
    assert caller.breaker.state is CLOSED
    caller.play("xx")
    assert caller.breaker.state is CLOSED, "it begins anew"


@pytest.mark.parametrize("outcome", [REFUSED, CANCELLED, None])
def test_a_probe_that_says_nothing_gives_its_place_back(outcome: ReleaseOutcome | None) -> None:
    """Refused, cancelled or forgotten: the next one is let through, and the successes so far stand."""
    caller = Caller()
    caller.open()
    caller.wait(2.0)
    caller.play("+")
    for _ in range(20):
        lease_id = caller.send()
        if outcome is None:
            caller.breaker.abandoned(lease_id)
        else:
            caller.end(lease_id, outcome)
        assert caller.breaker.state is HALF_OPEN
    caller.play("+")
    assert caller.breaker.state is CLOSED


def test_a_failed_probe_doubles_the_period_up_to_its_cap() -> None:
    caller = Caller()
    caller.open()
    periods = [2.0]
    for _ in range(4):
        caller.wait(periods[-1])
        caller.play("x")
        assert caller.breaker.state is OPEN
        assert caller.breaker.next_deadline is not None
        periods.append(round(caller.breaker.next_deadline - caller.now, 6))
    assert periods == [2.0, 4.0, 8.0, 10.0, 10.0]


@pytest.mark.parametrize(("closed_for", "period"), [(9.0, 4.0), (11.0, 2.0)])
def test_one_that_closed_too_soon_opens_for_longer(closed_for: float, period: float) -> None:
    """Failing again within the longest period goes on where it was; after it, a worker has a clean slate."""
    caller = Caller()
    caller.open()
    caller.wait(2.0)
    caller.play("++")
    assert caller.breaker.state is CLOSED
    caller.wait(closed_for)
    caller.open()
    assert caller.breaker.next_deadline == pytest.approx(caller.now + period)


def test_what_was_sent_before_it_opened_has_no_say() -> None:
    """Fifty that fail together open it once; those that succeed late do not close it."""
    caller = Caller()
    running = [caller.send() for _ in range(50)]
    caller.now += 1.0
    for lease_id in running[:20]:
        caller.end(lease_id, FAILED)
    deadline = caller.breaker.next_deadline
    assert deadline == caller.now + 2.0
    caller.now += 0.5
    for lease_id in running[20:30]:
        caller.end(lease_id, FAILED)
    assert caller.breaker.next_deadline == deadline
    for lease_id in running[30:34]:
        caller.first_token(lease_id)
        caller.end(lease_id, OK)
    assert caller.breaker.state is OPEN
    caller.wait(2.0)
    for lease_id in running[34:40]:
        caller.end(lease_id, OK)
    assert caller.breaker.state is HALF_OPEN
    for lease_id in running[40:45]:
        caller.end(lease_id, FAILED)
    assert caller.breaker.state is HALF_OPEN
    caller.play("++")
    for lease_id in running[45:]:
        caller.end(lease_id, FAILED)
    assert caller.breaker.state is CLOSED


def test_a_probe_that_fails_after_its_first_token_opens_it_again() -> None:
    caller = Caller()
    caller.open()
    caller.wait(2.0)
    probe = caller.send()
    caller.first_token(probe)
    caller.now += 5.0
    caller.end(probe, FAILED)
    assert caller.breaker.state is OPEN
    assert caller.breaker.next_deadline == caller.now + 4.0


def test_trusting_rules_never_open_it() -> None:
    caller = Caller(TRUSTING)
    caller.play("x" * 100)
    assert caller.breaker.state is CLOSED


class BreakerMachine(RuleBasedStateMachine):
    """Whatever happens in whatever order: at most one probe is out, and a breaker always comes back."""

    @initialize(row=st.integers(1, 4), successes=st.integers(1, 3))
    def start(self, row: int, successes: int) -> None:
        self.rules = replace(RULES, failures_to_open=row, successes_to_close=successes)
        self.breaker = Breaker(self.rules)
        self.now = 0.0
        self.count = 0
        self.sent: dict[int, float] = {}
        # Sent in the present HALF_OPEN, without a first token yet.
        self.probes: set[int] = set()

    def _told(self, turned: bool, before: BreakerState) -> None:
        assert turned is (self.breaker.state is not before)
        if self.breaker.state is not HALF_OPEN:
            self.probes.clear()

    @precondition(lambda self: self.breaker.admits)
    @rule()
    def send(self) -> None:
        self.count += 1
        self.sent[self.count] = self.now
        self.breaker.dispatched(self.count)
        if self.breaker.state is HALF_OPEN:
            self.probes.add(self.count)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), outcome=st.sampled_from(ReleaseOutcome))
    def end(self, data: st.DataObject, outcome: ReleaseOutcome) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.sent)))
        self.probes.discard(lease_id)
        before = self.breaker.state
        turned = self.breaker.released(lease_id, outcome, dispatched_at=self.sent.pop(lease_id), now=self.now)
        self._told(turned, before)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def first_token(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.sent)))
        self.probes.discard(lease_id)
        before = self.breaker.state
        self._told(self.breaker.first_token(lease_id, dispatched_at=self.sent[lease_id], now=self.now), before)

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(sorted(self.sent)))
        del self.sent[lease_id]
        self.probes.discard(lease_id)
        self.breaker.abandoned(lease_id)

    @rule(seconds=st.sampled_from([0.001, 1.0, 2.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        before = self.breaker.state
        self._told(self.breaker.advance(now=self.now), before)

    @invariant()
    def at_most_one_probe(self) -> None:
        if not hasattr(self, "breaker"):
            return
        assert len(self.probes) <= 1
        match self.breaker.state:
            case BreakerState.CLOSED:
                assert self.breaker.admits
            case BreakerState.OPEN:
                assert not self.breaker.admits
                deadline = self.breaker.next_deadline
                assert deadline is not None
                assert deadline - self.now <= self.rules.open_max_s, "it is tried again"
            case BreakerState.HALF_OPEN:
                assert self.breaker.admits is not bool(self.probes), "a place is free unless a probe is out"

    def teardown(self) -> None:
        """From wherever it is, good answers bring it back into service."""
        if not hasattr(self, "breaker"):
            return
        for lease_id in sorted(self.sent):
            self.breaker.released(lease_id, CANCELLED, dispatched_at=self.sent[lease_id], now=self.now)
        self.now += self.rules.open_max_s
        self.breaker.advance(now=self.now)
        for number in range(self.rules.successes_to_close):
            if self.breaker.state is CLOSED:
                break
            self.breaker.dispatched(1_000 + number)
            self.breaker.first_token(1_000 + number, dispatched_at=self.now, now=self.now)
        assert self.breaker.state is CLOSED


BreakerMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)
TestBreakerMachine = BreakerMachine.TestCase


@pytest.mark.parametrize(
    ("age", "slots"),
    [(0.0, 10), (0.49, 10), (0.5, 14), (1.0, 19), (2.5, 32), (5.0, 55), (9.5, 95), (10.0, 100), (99.0, 100)],
)
def test_slots_grow_from_a_tenth_to_all(age: float, slots: int) -> None:
    """Of a hundred slots beside a warm worker, over ten seconds, in twenty steps."""
    start = SlowStart(HealthRules(slow_start_s=10.0))
    start.begin()
    assert start.slots(100, warmest=WARM) == 10
    start.advance(now=50.0)
    start.advance(now=50.0 + age)
    assert start.slots(100, warmest=WARM) == slots
    assert start.is_cold is (slots < 100)
    assert (start.next_deadline is None) is (slots == 100)


@pytest.mark.parametrize(("warmest", "slots"), [(0, 100), (2, 100), (3, 80), (10, 34), (20, 19)])
def test_it_is_in_relation_to_the_warmest(warmest: int, slots: int) -> None:
    """After two of twenty steps: all of them beside others as cold, 38 parts of those of the warmest beside it."""
    start = SlowStart(HealthRules(slow_start_s=10.0))
    start.begin(now=0.0)
    start.advance(now=1.0)
    assert start.warmth == 2
    assert start.slots(100, warmest=warmest) == slots


def test_a_small_worker_gets_at_least_one() -> None:
    start = SlowStart(HealthRules(slow_start_s=10.0))
    start.begin()
    assert [start.slots(of, warmest=WARM) for of in (1, 2, 9, 20)] == [1, 1, 1, 2]


def test_without_a_time_there_is_no_slow_start() -> None:
    start = SlowStart(TRUSTING)
    start.begin()
    assert not start.is_cold
    assert start.slots(8, warmest=WARM) == 8


@given(duration=st.floats(0.01, 1_000.0), begun=st.floats(0.0, 1e6), of=st.integers(1, 2_000))
def test_waking_at_each_deadline_ends_it(duration: float, begun: float, of: int) -> None:
    """Each deadline brings a step, whatever the rounding, and the share never falls."""
    start = SlowStart(HealthRules(slow_start_s=duration))
    start.begin()
    start.advance(now=begun)
    seen = [start.slots(of, warmest=WARM)]
    for _ in range(20):
        deadline = start.next_deadline
        if deadline is None:
            break
        assert start.advance(now=deadline)
        seen.append(start.slots(of, warmest=WARM))
    assert not start.is_cold
    assert seen[-1] == of
    assert all(before <= after for before, after in pairwise(seen))
