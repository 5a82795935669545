"""Health as the dispatcher acts on it: who gets what when workers fail, come back, and die of prompts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inferway.errors import Reason
from router.core.dispatcher import Dispatcher
from router.core.health import BreakerState, HealthRules
from router.core.messages import (
    Action,
    AllBut,
    Dispatch,
    Reject,
    ReleaseOutcome,
    Report,
    Request,
    Ticket,
    WorkerInfo,
)
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from router.core.recovery import BreakerTurned

OK, FAILED, CANCELLED, REFUSED = (
    ReleaseOutcome.OK,
    ReleaseOutcome.FAILED,
    ReleaseOutcome.CANCELLED,
    ReleaseOutcome.REFUSED,
)
RULES = HealthRules(failures_to_open=3, open_s=2.0, open_max_s=60.0, successes_to_close=2, slow_start_s=10.0)
NO_SLOW_START = replace(RULES, slow_start_s=0.0)


class Router:
    """A dispatcher with a clock that the test moves, and every action that has come out."""

    def __init__(self, rules: HealthRules = NO_SLOW_START) -> None:
        limits = QueueLimits()
        self.machine = Dispatcher(
            routing=routing_of("default"), rng=Random(1), first_lease_id=1, limits=limits, health=rules
        )
        self.now = 100.0
        self._tickets = 0

    def up(self, name: str = "a", *, instance: str = "1", max_running: int = 100, models: str = "m") -> None:
        info = WorkerInfo(name, f"{name}{instance}", f"{name}:1", dict.fromkeys(models, 4), max_running, 0)
        self.machine.worker_up(info)
        self.machine.tick(now=self.now)

    def submit(
        self,
        *,
        prompt: int = 0,
        excluded: tuple[str, ...] = (),
        only: str = "",
        model: str = "m",
        timeout: float = 1e6,
        owner: int = 1,
    ) -> Request:
        self._tickets += 1
        others = frozenset(excluded)
        request = Request(
            ticket=Ticket(owner, self._tickets),
            request_id="r",
            model=model,
            tenant_id="t",
            priority=5,
            prompt_tokens=8,
            expected_tokens=4,
            block_hashes=(),
            queued_at=self.now,
            deadline=self.now + timeout,
            excluded=AllBut(only, others) if only else others,
            prompt_hash=prompt,
        )
        self.machine.submit(request, now=self.now)
        return request

    def tick(self) -> list[Action]:
        return self.machine.tick(now=self.now)

    def ask(self, *, prompt: int = 0, excluded: tuple[str, ...] = (), only: str = "") -> Dispatch:
        """A request that goes at once."""
        self.submit(prompt=prompt, excluded=excluded, only=only)
        (action,) = self.tick()
        assert isinstance(action, Dispatch)
        return action

    def end(self, dispatch: Dispatch, outcome: ReleaseOutcome, *, died: bool = False) -> None:
        self.now += 0.001
        self.machine.release(dispatch.lease_id, outcome, died=died, now=self.now)

    def fail(self, worker_id: str, times: int) -> None:
        for _ in range(times):
            self.end(self.ask(only=worker_id), FAILED)

    def wait(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self.tick()

    def state(self, worker_id: str) -> BreakerState:
        worker = self.machine.worker(worker_id)
        assert worker is not None
        return worker.breaker.state

    def fill(self, number: int) -> dict[str, int]:
        """Submit so many at once; returns how many went where, those that wait under ""."""
        for _ in range(number):
            self.submit()
        actions = self.tick()
        assert all(isinstance(action, Dispatch) for action in actions)
        places = [action.worker_id for action in actions if isinstance(action, Dispatch)]
        waiting = {"": number - len(places)} if len(places) < number else {}
        return {name: places.count(name) for name in sorted(set(places))} | waiting


def test_a_failing_worker_gets_the_threshold_and_its_probes() -> None:
    """A fails everything, B is fine: of fifty requests that may go to either, A sees the row and one a period."""
    router = Router()
    router.up("a")
    router.up("b")
    touched = 0
    for _ in range(50):
        dispatch = router.ask()
        if dispatch.worker_id == "a":
            touched += 1
            router.end(dispatch, FAILED)
            retry = router.ask(excluded=("a",))
            router.end(retry, OK)
        else:
            router.end(dispatch, OK)
        router.now += 0.1
    assert router.state("a") is not BreakerState.CLOSED
    assert 3 < touched <= 3 + 2, "the row, and probes after 2 and 4 s"


def test_it_comes_back_and_is_told_of() -> None:
    """Open, half-open, closed; each turn is told once; afterwards it takes its share."""
    router = Router()
    router.up("a")
    router.fail("a", 3)
    assert not router.machine.worker("a").is_ready  # type: ignore[union-attr]
    waiting = [router.submit(), router.submit()]
    assert router.tick() == []
    assert router.machine.next_deadline() == router.now + 2.0
    (probe,) = router.wait(2.0)
    assert isinstance(probe, Dispatch)
    assert probe.request is waiting[0]
    assert router.machine.first_token(probe.lease_id, 0, now=router.now) is not None
    (second,) = router.tick()
    assert isinstance(second, Dispatch)
    assert second.request is waiting[1]
    router.end(second, OK)
    assert router.machine.take_turned() == [
        BreakerTurned("a", BreakerState.OPEN),
        BreakerTurned("a", BreakerState.HALF_OPEN),
        BreakerTurned("a", BreakerState.CLOSED),
    ]
    assert router.machine.take_turned() == []
    assert router.fill(99) == {"a": 99}


@pytest.mark.parametrize("outcome", [REFUSED, CANCELLED])
def test_what_is_not_its_fault_opens_nothing(outcome: ReleaseOutcome) -> None:
    router = Router()
    router.up("a")
    for _ in range(50):
        router.end(router.ask(), outcome)
    assert router.state("a") is BreakerState.CLOSED


@pytest.mark.parametrize("how", ["cancelled", "gateway gone", "unknown to the worker"])
def test_a_probe_that_vanishes_frees_its_place(how: str) -> None:
    """However a lease leaves the books, the next request is tried."""
    router = Router()
    router.up("a")
    router.fail("a", 3)
    router.wait(2.0)
    router.submit(owner=2)
    (probe,) = router.tick()
    assert isinstance(probe, Dispatch)
    waiting = router.submit()
    assert router.tick() == []
    match how:
        case "cancelled":
            router.end(probe, CANCELLED)
        case "gateway gone":
            router.machine.drop_owner(2, now=router.now)
        case _:
            router.now += 6.0
            for _ in range(2):
                router.machine.worker_report("a", Report("a1"), now=router.now)
    (action,) = router.tick()
    assert isinstance(action, Dispatch)
    assert action.request is waiting


def test_old_answers_that_still_run_do_not_hold_up_the_trial() -> None:
    """Streams may last for minutes; a worker on trial with forty of them gets its one request all the same."""
    router = Router()
    router.up("a")
    running = [router.ask() for _ in range(40)]
    router.fail("a", 3)
    for _ in range(2):
        router.submit()
    (probe,) = router.wait(2.0)
    assert isinstance(probe, Dispatch)
    router.end(probe, OK)
    assert len(router.tick()) == 1
    for dispatch in running:
        router.end(dispatch, OK)
    assert router.state("a") is BreakerState.HALF_OPEN


def test_a_prompt_that_fails_everywhere_is_not_the_workers_fault() -> None:
    """Requests that every worker fails open no breaker but that of the first."""
    router = Router()
    router.up("a")
    router.up("b")
    for prompt in range(1, 30):
        router.end(router.ask(prompt=prompt, only="a"), FAILED)
        router.end(router.ask(prompt=prompt, only="b", excluded=("a",)), FAILED)
        router.end(router.ask(only="a"), OK)
        router.end(router.ask(only="a"), OK)
    assert router.state("a") is router.state("b") is BreakerState.CLOSED


def test_expiry_while_every_breaker_is_open_says_not_ready() -> None:
    router = Router()
    router.up("a")
    router.fail("a", 3)
    router.submit(timeout=1.0)
    router.tick()
    (action,) = router.wait(1.0)
    assert isinstance(action, Reject)
    assert action.error.reason is Reason.MODEL_NOT_READY


def test_a_new_worker_beside_a_warm_one_begins_slowly() -> None:
    """Of a hundred slots ten at once, 19 after a second, all after ten."""
    router = Router(RULES)
    router.up("a")
    router.wait(10.0)
    router.up("b")
    assert router.fill(150) == {"a": 100, "b": 10, "": 40}
    assert len(router.wait(1.0)) == 9
    assert len(router.wait(1.0)) == 9
    router.wait(8.0)
    assert router.machine.worker("b").slots_now == 100  # type: ignore[union-attr]
    assert router.machine.num_waiting == 0


def test_a_fleet_that_comes_together_is_not_held_back() -> None:
    """With nobody warm beside it, a cold worker takes all it has room for; a whole start costs no capacity."""
    router = Router(RULES)
    for name in "abc":
        router.up(name)
    assert router.fill(300) == {"a": 100, "b": 100, "c": 100}


def test_whoever_comes_into_a_young_fleet_is_held_back_by_its_age() -> None:
    """The others are at 55 of a hundred parts, it is at ten: 18 of a hundred slots, while theirs are whole."""
    router = Router(RULES)
    router.up("a")
    router.wait(5.0)
    router.up("b")
    assert router.fill(200) == {"a": 100, "b": 18, "": 82}


def test_the_last_warm_one_gone_the_cold_one_takes_over() -> None:
    """Its slow start is for as long as somebody else is there."""
    router = Router(RULES)
    router.up("a")
    router.wait(10.0)
    router.up("b")
    assert router.fill(130) == {"a": 100, "b": 10, "": 20}
    router.machine.worker_lost("a")
    assert len(router.tick()) == 20


@pytest.mark.parametrize("how", ["lost and back", "started anew", "closed again"])
def test_whoever_comes_back_begins_slowly(how: str) -> None:
    router = Router(RULES)
    router.up("a")
    router.up("b")
    router.wait(10.0)
    assert router.machine.worker("b").slots_now == 100  # type: ignore[union-attr]
    match how:
        case "lost and back":
            router.machine.worker_lost("b")
            router.up("b")
        case "started anew":
            router.up("b", instance="2")
        case _:
            router.fail("b", 3)
            router.wait(2.0)
            for _ in range(2):
                router.end(router.ask(only="b"), OK)
    assert router.machine.worker("b").slots_now == 10  # type: ignore[union-attr]


def test_a_description_that_changes_is_no_return() -> None:
    router = Router(RULES)
    router.up("a")
    router.up("b")
    router.wait(10.0)
    router.up("b", models="mn")
    assert router.machine.worker("b").slots_now == 100  # type: ignore[union-attr]


def test_a_slow_start_is_for_each_model() -> None:
    """A warm worker of another model takes nothing off this one."""
    router = Router(RULES)
    router.up("a", models="m")
    router.wait(10.0)
    router.up("b", models="n")
    for _ in range(50):
        router.submit(model="n")
    assert len(router.tick()) == 50


def test_a_draining_worker_is_nobody_to_wait_for() -> None:
    """Warm and draining takes nothing, so the cold one is not held back for it."""
    router = Router(RULES)
    router.up("a")
    router.wait(10.0)
    router.up("b")
    router.machine.worker_report("a", Report("a1", draining=True), now=router.now)
    assert router.fill(50) == {"b": 50}


def test_a_poisonous_prompt_takes_two_workers_and_no_third() -> None:
    """Innocents beside it on the first go on; after its time it may be tried again."""
    router = Router()
    for name in "abc":
        router.up(name)
    innocent = [router.ask(prompt=number, only="a") for number in range(1, 10)]
    poison = router.ask(prompt=666, only="a")
    for dispatch in (poison, *innocent):
        router.end(dispatch, FAILED, died=True)
    second = router.ask(prompt=666, excluded=("a", "c"))
    router.end(second, FAILED, died=True)
    router.submit(prompt=666)
    (refused,) = router.tick()
    assert isinstance(refused, Reject)
    assert refused.error.reason is Reason.WORKER_FAILED
    assert "two workers" in refused.error.message
    assert refused.error.retry_after_s == pytest.approx(60.0)
    for number in range(1, 10):
        router.ask(prompt=number)
    router.wait(60.0)
    router.ask(prompt=666)


def test_a_prompt_that_waits_is_held_too() -> None:
    """What was queued before the second death is refused instead of dispatched."""
    router = Router()
    for name in "abc":
        router.up(name, max_running=1)
    first, second = router.ask(prompt=666, only="a"), router.ask(prompt=666, only="b")
    router.ask(only="c")
    waiting, other = router.submit(prompt=666), router.submit()
    assert router.tick() == []
    router.end(first, FAILED, died=True)
    router.machine.worker_lost("a")
    router.end(second, FAILED, died=True)
    actions = router.tick()
    assert [(type(action), action.request) for action in actions] == [(Reject, waiting), (Dispatch, other)]


def test_a_worker_that_leaves_as_it_has_said_kills_nothing() -> None:
    """What a draining worker cuts at its limit counts neither against it nor against the prompts."""
    router = Router()
    for name in "abc":
        router.up(name)
    running = [router.ask(prompt=number, only=name) for name in "ab" for number in range(1, 6)]
    for name in "ab":
        router.machine.worker_report(name, Report(f"{name}1", draining=True), now=router.now)
        router.machine.worker_lost(name)
    for dispatch in running:
        router.end(dispatch, FAILED, died=True)
    assert router.state("a") is BreakerState.CLOSED
    for number in range(1, 6):
        assert router.ask(prompt=number).worker_id == "c"


def test_a_request_for_one_worker_waits_for_that_one() -> None:
    """Others with room do not get it, and it holds nobody back from them."""
    router = Router()
    router.up("a", max_running=1)
    router.up("b")
    holder = router.ask(only="a")
    pinned, free = router.submit(only="a"), router.submit()
    (action,) = router.tick()
    assert isinstance(action, Dispatch)
    assert action.request is free
    assert action.worker_id == "b"
    router.end(holder, OK)
    (action,) = router.tick()
    assert isinstance(action, Dispatch)
    assert (action.request, action.worker_id) == (pinned, "a")


def test_a_request_for_one_worker_that_has_failed_it_goes_nowhere() -> None:
    router = Router()
    router.up("a")
    router.up("b")
    router.submit(only="a", excluded=("a",))
    (action,) = router.tick()
    assert isinstance(action, Reject)
    assert action.error.reason is Reason.OVERLOADED


_EVENTS = st.one_of(
    st.tuples(st.just("submit"), st.sampled_from(["a", "b", ""])),
    st.tuples(st.just("release"), st.sampled_from(ReleaseOutcome)),
    st.tuples(st.just("first token"), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([0.1, 2.0, 9.0])),
    st.tuples(st.sampled_from(["lost", "up", "new", "report"]), st.sampled_from("ab")),
    st.tuples(st.just("gateway gone"), st.none()),
)


@given(events=st.lists(_EVENTS, max_size=60), seed=st.integers(0, 1_000))
@settings(max_examples=200, deadline=None)
def test_no_order_of_events_wedges_a_worker(events: list[tuple[str, object]], seed: int) -> None:
    """One probe at most runs on a worker on trial, none on an open one; in the end both are back and serve.

    The machine wants to be woken whenever the health of a worker changes.
    """
    router, rng = Router(replace(RULES, failures_to_open=1)), Random(seed)
    leases: dict[int, Dispatch] = {}
    opened_at: dict[str, float] = {}
    begun: set[int] = set()
    instances = dict.fromkeys("ab", 1)

    def take(actions: list[Action]) -> None:
        for action in actions:
            assert isinstance(action, Dispatch)
            leases[action.lease_id] = action
        for name, state in router.machine.take_turned():
            if state is BreakerState.OPEN:
                opened_at[name] = router.now
        for worker in router.machine.workers():
            held = [one for one in worker.books.leases.values() if one.lease_id not in begun]
            new = [one for one in held if one.dispatched_at > opened_at.get(worker.worker_id, 0.0)]
            if worker.breaker.state is BreakerState.HALF_OPEN:
                assert len(new) <= 1
            elif worker.breaker.state is BreakerState.OPEN:
                assert not new
        wakings = [worker.next_health_deadline for worker in router.machine.workers()]
        first = min((waking for waking in wakings if waking is not None), default=None)
        assert first is None or router.machine.next_deadline() == first, "requests wait for longer than that"

    for name in "ab":
        router.up(name)
    for event, value in events:
        router.now += 0.01
        some = rng.choice(sorted(leases)) if leases else None
        match event:
            case "submit":
                router.submit(prompt=rng.randrange(3), only=str(value), owner=rng.choice([1, 2]))
            case "release" if some is not None:
                assert isinstance(value, ReleaseOutcome)
                router.machine.release(leases.pop(some).lease_id, value, now=router.now)
            case "first token" if some is not None:
                begun.add(some)
                router.machine.first_token(some, 0, now=router.now)
            case "wait":
                assert isinstance(value, float)
                take(router.wait(value))
            case "lost":
                router.machine.worker_lost(str(value))
            case "up" | "new":
                name = str(value)
                instances[name] += event == "new"
                info = WorkerInfo(name, f"{name}{instances[name]}", f"{name}:1", {"m": 4}, 100, 0)
                router.machine.worker_up(info)
            case "report":
                name = str(value)
                router.machine.worker_report(name, Report(f"{name}{instances[name]}"), now=router.now)
            case "gateway gone":
                router.machine.drop_owner(2, now=router.now)
        take(router.tick())

    for lease_id in list(leases):
        router.machine.release(lease_id, CANCELLED, now=router.now)
    for name in "ab":
        router.machine.worker_up(WorkerInfo(name, f"{name}{instances[name]}", f"{name}:1", {"m": 4}, 100, 0))
    actions = router.wait(RULES.open_max_s)
    for name in "ab":
        for _ in range(RULES.successes_to_close):
            router.submit(only=name)
            actions += router.tick()
            while actions:
                action = actions.pop()
                assert isinstance(action, Dispatch)
                router.end(action, OK)
                actions += router.tick()
        assert router.state(name) is BreakerState.CLOSED
    router.wait(RULES.slow_start_s)
    assert router.machine.next_deadline() is None or router.machine.num_waiting
    for name in "ab":
        assert router.machine.worker(name).slots_now == 100  # type: ignore[union-attr]
