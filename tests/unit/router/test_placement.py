"""Filters, scorers, pickers and the policies made of them: what they decide, case by case."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.books import Lease
from router.core.dispatcher import Dispatcher
from router.core.fleet import Columns, Fleet
from router.core.messages import Dispatch, Report, Request, Ticket, WorkerInfo
from router.core.placement.candidates import Candidates, Pool
from router.core.placement.filters import Affinity, Filter, KvHeadroom, Spread
from router.core.placement.pickers import Least, Picker, PowerOfTwo, RoundRobin, Softmax
from router.core.placement.pickers import Random as AnyOfThem
from router.core.placement.policies import POLICIES, Decision, policy_named
from router.core.placement.routing import routing_of
from router.core.placement.scorers import Adapter, KvUtilisation, Load, Prefix, Scorer, Session, Wait, Work
from router.core.queue import QueueLimits
from router.core.worker import Worker

BLOCK = 10
BATCH = 8


@dataclass
class State:
    """One worker of a case: 1,000 tokens a second, a batch of eight, a KV cache of 10,000 tokens."""

    running: int = 0
    pending: int = 0
    cached: int = 0
    kv_used: int = 0
    rate: float = 1000.0
    lease_s: float = 0.0
    trust: float = 1.0
    indexed: int = 0
    models: Sequence[str] = field(default_factory=list)


def request(prompt_tokens: int = 100, *, choices: int = 1, session: int = 0, model: str = "m") -> Request:
    return Request(
        Ticket(1, 1), "r", model, "t", 5, prompt_tokens, 1, (), 0.0, 10.0, num_choices=choices, session=session
    )


def candidates(workers: Mapping[str, State], asked: Request | None = None, *, utilisation: float = 0.0) -> Candidates:
    asked = asked or request()
    fleet, made, indexed = Fleet(), [], {}
    for name, state in workers.items():
        worker = Worker(WorkerInfo(name, "1", "a:1", {"m": BLOCK}, BATCH, 8, 10_000, state.rate))
        worker.take_report(Report("1", kv_used_tokens=state.kv_used))
        worker.mean_lease_s, worker.trust = state.lease_s, state.trust
        for number in range(state.running):
            tokens = state.pending if number == 0 else 0
            model = state.models[number] if number < len(state.models) else "m"
            worker.books.open(Lease(number, name, Ticket(1, number), model, 1, tokens, 0, 0, 0.0))
        fleet.add(worker)
        made.append(worker)
        indexed[name] = state.indexed
    columns = Columns(fleet, range(len(made)))
    columns.read()
    pool = Pool(
        asked,
        made,
        columns,
        names=list(workers),
        predicted_tokens=np.array([float(state.cached) for state in workers.values()]),
        mean_load=float(np.mean([worker.books.load for worker in made])),
        utilisation=utilisation,
        indexed_blocks=lambda worker: indexed[worker.worker_id],
    )
    return Candidates(asked, pool, np.arange(len(made)))


def decide(policy: str, workers: Mapping[str, State], asked: Request | None = None, **pool: Any) -> Decision:
    return policy_named(policy).decide(candidates(workers, asked, **pool), Random(1))


FILTERS: list[tuple[str, Filter, dict[str, State], list[bool]]] = [
    ("nobody is ahead", Spread(), {"a": State(running=2), "b": State(running=2)}, [True, True]),
    # The mean with this request is 3.75: at most 6.6.
    (
        "one is far ahead",
        Spread(),
        {"a": State(running=10), "b": State(running=2), "c": State(running=2), "d": State()},
        [False, True, True, True],
    ),
    ("its factor and slack", Spread(1.0, 0.0), {"a": State(running=2), "b": State(running=1)}, [False, True]),
    ("a full cache", KvHeadroom(), {"a": State(running=1, kv_used=9_600), "b": State(kv_used=9_400)}, [False, True]),
    ("what is promised counts", KvHeadroom(), {"a": State(running=1, pending=600, kv_used=9_000)}, [False]),
    ("its limit", KvHeadroom(0.5), {"a": State(kv_used=5_001), "b": State(kv_used=5_000)}, [False, True]),
    ("the warm ones", Affinity(), {"a": State(cached=80), "b": State(cached=70)}, [True, False]),
    # 14 s at 1,000 tokens a second are 14,000 tokens.
    ("a warm one too far behind", Affinity(), {"a": State(running=1, pending=13_990, cached=80)}, [False]),
]


@pytest.mark.parametrize(("sentence", "filter_", "workers", "kept"), FILTERS, ids=[case[0] for case in FILTERS])
def test_filters(sentence: str, filter_: Filter, workers: dict[str, State], kept: list[bool]) -> None:
    assert list(filter_.keep(candidates(workers))) == kept


SCORERS: list[tuple[str, Scorer, dict[str, State], list[float]]] = [
    ("nobody waits", Wait(), {"a": State()}, [0.0]),
    # 500 tokens at 1,000 a second; a batch that is half full takes a quarter of the time more, and of its own 100.
    ("prompts before it", Wait(), {"a": State(running=4, pending=500)}, [650.0]),
    # One more than the batch holds, and answers take 4 s: an eighth. Its own 100 tokens take half as long again.
    ("a full batch", Wait(), {"a": State(running=8, lease_s=4.0)}, [550.0]),
    ("no share of decoding", Wait(decode_share=0.0), {"a": State(running=4, pending=500)}, [500.0]),
    ("an idle fleet", Work(), {"a": State(cached=60), "b": State(), "c": State(rate=500.0)}, [40.0, 100.0, 200.0]),
    ("the last token is computed", Work(), {"a": State(cached=100)}, [1.0]),
    ("half of what is predicted is true", Work(), {"a": State(cached=60, trust=0.5)}, [70.0]),
    ("requests", Load(), {"a": State(running=3), "b": State()}, [3.0, 0.0]),
    ("what is not cached", Prefix(), {"a": State(cached=60), "b": State()}, [0.4, 1.0]),
    ("memory", KvUtilisation(), {"a": State(kv_used=2_500), "b": State()}, [0.25, 0.0]),
    ("no session", Session(), {"a": State(), "b": State()}, [0.0, 0.0]),
]


@pytest.mark.parametrize(("sentence", "scorer", "workers", "costs"), SCORERS, ids=[case[0] for case in SCORERS])
def test_scorers(sentence: str, scorer: Scorer, workers: dict[str, State], costs: list[float]) -> None:
    assert list(scorer.costs(candidates(workers))) == pytest.approx(costs)


@pytest.mark.parametrize(
    ("utilisation", "factor"), [(0.0, 1.0), (0.5, 3.0), (0.75, 7.0), (0.8, 9.0), (0.99, 9.0), (5.0, 9.0)]
)
def test_the_price_of_work(utilisation: float, factor: float) -> None:
    """1 + 2 u / (1 - u), no further than at 0.8."""
    assert list(Work().costs(candidates({"a": State()}, utilisation=utilisation))) == pytest.approx([100.0 * factor])


# By policy: workers, and what each of the seeds 1 to 50 must choose from; the rules of other routers are pinned here.
A_WARM = {"a": State(cached=90, indexed=9), "b": State(indexed=5), "c": State(indexed=7)}
GOLDEN: list[tuple[str, str, dict[str, State], set[str]]] = [
    ("default", "whoever has the prefix", A_WARM, {"a"}),
    ("default", "equal cold ones share", {"a": State(), "b": State()}, {"a", "b"}),
    (
        "default",
        "an idle one beside one with a prompt in flight",
        {"a": State(running=1, pending=50), "b": State()},
        {"b"},
    ),
    (
        "default",
        "the warm one while it is not too far behind",
        {"a": State(running=1, pending=60, cached=90), "b": State()},
        {"a"},
    ),
    (
        "default",
        "a cold one when the warm one is",
        {"a": State(running=1, pending=500, cached=90), "b": State()},
        {"b"},
    ),
    ("default", "the faster one", {"a": State(), "b": State(rate=2000.0)}, {"b"}),
    (
        "default",
        "memory counts more than the prefix",
        {"a": State(running=3, cached=90, kv_used=9_700), "b": State(running=5, kv_used=2_000)},
        {"b"},
    ),
    (
        "default",
        "nobody far ahead, however warm",
        {"a": State(running=8, cached=90), "b": State(), "c": State()},
        {"b", "c"},
    ),
    ("least_requests", "the fewest", {"a": State(running=2, cached=90), "b": State(running=1)}, {"b"}),
    ("smg_cache_aware", "the match", A_WARM, {"a"}),
    (
        "smg_cache_aware",
        "a match below the threshold: the smallest tree",
        {"a": State(cached=30, indexed=9), "b": State(running=3, indexed=5)},
        {"b"},
    ),
    (
        "smg_cache_aware",
        "out of balance: the shortest queue",
        {"a": State(running=70, cached=90), "b": State(running=5)},
        {"b"},
    ),
    ("smg_cache_aware", "ahead, but not by enough", {"a": State(running=70, cached=90), "b": State(running=50)}, {"a"}),
    ("dynamo_kv", "fewer blocks to prefill", A_WARM, {"a"}),
    ("dynamo_kv", "decode blocks count like prefill blocks", {"a": State(cached=90, kv_used=100), "b": State()}, {"b"}),
    ("dynamo_kv", "so do prompts in flight", {"a": State(running=1, pending=40, cached=90), "b": State()}, {"a"}),
    ("llmd_weighted", "the prefix", A_WARM, {"a"}),
    (
        "llmd_weighted",
        "a queue weighs 2, the prefix up to 3",
        {"a": State(running=9, cached=60), "b": State(running=8)},
        {"b"},
    ),
    ("llmd_weighted", "memory weighs 2", {"a": State(kv_used=7_000, cached=40), "b": State()}, {"b"}),
    (
        "llmd_sticky",
        "the warm one, however busy",
        {"a": State(running=1, pending=13_000, cached=90), "b": State()},
        {"a"},
    ),
    ("llmd_sticky", "until it is saturated", {"a": State(running=1, pending=14_000, cached=90), "b": State()}, {"b"}),
    (
        "llmd_sticky",
        "of several warm ones the one with the least tokens",
        {"a": State(running=1, pending=50, cached=90), "b": State(cached=80)},
        {"b"},
    ),
    (
        "llmd_sticky",
        "a weak match counts by its tokens",
        {"a": State(running=1, pending=30, cached=50), "b": State()},
        {"a"},
    ),
    ("aibrix_prefix", "the best match", A_WARM, {"a"}),
    ("aibrix_prefix", "out of balance: the fewest requests", {"a": State(running=9, cached=90), "b": State()}, {"b"}),
    (
        "aibrix_prefix",
        "more than the mean and a deviation is too many",
        {"a": State(running=6, cached=90), "b": State(), "c": State()},
        {"b"},
    ),
]


@pytest.mark.parametrize(
    ("policy", "sentence", "workers", "chosen"), GOLDEN, ids=[f"{case[0]}: {case[1]}" for case in GOLDEN]
)
def test_golden_decisions(policy: str, sentence: str, workers: dict[str, State], chosen: set[str]) -> None:
    found = {policy_named(policy).decide(candidates(workers), Random(seed)).worker.worker_id for seed in range(1, 51)}
    assert found == chosen


def test_an_adapter_stays_in_few_batches() -> None:
    """Where it runs already, unless that worker is far ahead; a model itself is everywhere."""
    workers = {"a": State(running=3, models=["m", "m:fr"]), "b": State(running=2), "c": State(running=2)}
    assert list(Adapter().costs(candidates(workers, request(model="m:fr")))) == [0.0, 1.0, 1.0]
    assert list(Adapter().costs(candidates(workers))) == [0.0, 0.0, 0.0]
    assert decide("lora", workers, request(model="m:fr")).worker.worker_id == "a"
    assert decide("lora", workers, request()).worker.worker_id in "bc"
    workers["a"].running = 20
    assert decide("lora", workers, request(model="m:fr")).worker.worker_id in "bc"


def test_affinity_grows_with_load() -> None:
    """The same lead of the queue outweighs the prefix in an idle fleet, and not in a busy one."""
    workers = {"a": State(running=1, pending=150, cached=90), "b": State()}
    assert decide("default", workers).worker.worker_id == "b"
    assert decide("default", workers, utilisation=0.6).worker.worker_id == "a"


def test_what_is_told_of_a_decision() -> None:
    workers = {"a": State(cached=90, kv_used=9_900), "b": State(cached=50), "c": State()}
    decision = decide("default", workers)
    assert (decision.worker.worker_id, decision.cached_tokens, decision.ttft_s) == ("b", 50, pytest.approx(0.05))
    considered = decision.considered
    assert (considered.policy, considered.num_candidates, considered.removed) == ("default", 3, {"kv_headroom": 1})
    assert considered.scorers == ("wait", "work")
    assert [(one.worker_id, one.cost, one.terms, one.cached_tokens) for one in considered.best] == [
        ("b", pytest.approx(50.0), (0.0, pytest.approx(50.0)), 50),
        ("c", pytest.approx(100.0), (0.0, pytest.approx(100.0)), 0),
    ]


@pytest.mark.parametrize("workers", [30, 90])
def test_no_more_than_eight_scores_are_told(workers: int) -> None:
    """The best ones, in order, whether a record keeps the costs of all or picks them out."""
    decision = decide("default", {f"w{number:02}": State(cached=number) for number in range(workers)})
    best = [f"w{number}" for number in range(workers - 1, workers - 9, -1)]
    assert [one.worker_id for one in decision.considered.best] == best


def test_filters_that_leave_nobody_leave_everybody() -> None:
    decision = decide("default", {"a": State(running=1, kv_used=9_990), "b": State(running=2, kv_used=9_980)})
    assert (decision.considered.num_candidates, decision.considered.removed) == (2, {})


def test_sessions_stay_where_they_are() -> None:
    """A worker that comes or goes moves only what it gets or had, whatever the order of the workers."""
    sessions = list(range(1, 2_001))

    def places(names: Sequence[str]) -> dict[int, str]:
        workers = {name: State() for name in names}
        return {each: decide("session", workers, request(session=each)).worker.worker_id for each in sessions}

    eight = [f"w{number}" for number in range(8)]
    before = places(eight)
    assert places(eight[::-1]) == before
    after = places([*eight, "new"])
    moved = [each for each in sessions if after[each] != before[each]]
    assert len(moved) <= len(sessions) * (1 / 9 + 0.03)
    assert {after[each] for each in moved} == {"new"}
    without = places(eight[1:])
    assert {before[each] for each in sessions if without[each] != before[each]} == {"w0"}
    assert min(Counter(before.values()).values()) > 180


PICKERS: list[tuple[Picker, list[float], Callable[[Counter[int]], bool]]] = [
    (Least(), [2.0, 1.0, 1.0], lambda counts: counts[0] == 0 and abs(counts[1] - counts[2]) < 200),
    (Least(), [-3.0, -3.0000000001, -2.0], lambda counts: counts[2] == 0 and abs(counts[0] - counts[1]) < 200),
    (Softmax(0.1), [0.0, 0.01, 100.0], lambda counts: counts[2] < 5 and min(counts[0], counts[1]) > 800),
    (Softmax(0.1), [5.0, 5.0], lambda counts: min(counts.values()) > 900),
    (AnyOfThem(), [1.0, 5.0, 9.0], lambda counts: min(counts[0], counts[1], counts[2]) > 580),
    (PowerOfTwo(), [1.0, 2.0, 3.0], lambda counts: counts[0] > 1200 and counts[2] == 0),
    (RoundRobin(), [9.0, 1.0], lambda counts: counts[0] == counts[1] == 1000),
]


@pytest.mark.parametrize(("picker", "costs", "is_right"), PICKERS, ids=lambda value: str(value)[:40])
def test_pickers(picker: Picker, costs: list[float], is_right: Callable[[Counter[int]], bool]) -> None:
    """Two thousand picks."""
    rng = Random(3)
    among = candidates({f"w{number}": State() for number in range(len(costs))})
    counts = Counter(picker.pick(among, np.array(costs), rng) for _ in range(2_000))
    assert is_right(counts), counts


states = st.builds(
    State,
    running=st.integers(0, 20),
    pending=st.integers(0, 50_000),
    cached=st.integers(0, 10).map(lambda blocks: blocks * BLOCK),
    kv_used=st.integers(0, 10_000),
    rate=st.floats(1.0, 1e6),
    lease_s=st.floats(0.0, 600.0),
    trust=st.floats(0.0, 1.0),
    indexed=st.integers(0, 1000),
)


@given(st.sampled_from(sorted(POLICIES)), st.lists(states, min_size=1, max_size=12), st.integers(0, 99))
def test_every_policy_decides_whatever_the_fleet(policy: str, fleet: list[State], seed: int) -> None:
    """One of the candidates, with a finite prediction; the chosen one is told."""
    among = candidates({f"w{number}": state for number, state in enumerate(fleet)})
    decision = policy_named(policy).decide(among, Random(seed))
    assert decision.worker in among.workers()
    assert 0 <= decision.cached_tokens < 100
    assert 0.0 <= decision.ttft_s < 1e9
    assert np.isfinite([one.cost for one in decision.considered.best]).all()
    assert len(decision.considered.best) == min(
        8, decision.considered.num_candidates - sum(decision.considered.removed.values())
    )


def fleet_of(policy: str, workers: int) -> Dispatcher:
    dispatcher = Dispatcher(routing=routing_of(policy), rng=Random(1), first_lease_id=1, limits=QueueLimits())
    for number in range(workers):
        dispatcher.worker_up(WorkerInfo(f"w{number}", "i", "a", {"m": BLOCK}, 1000, 0))
    return dispatcher


def dispatched(dispatcher: Dispatcher, number: int, *, excluded: frozenset[str] = frozenset()) -> Dispatch:
    asked = Request(Ticket(1, number), "r", "m", "t", 5, 100, 1, [1], 100.0, 200.0, excluded=excluded)
    dispatcher.submit(asked, now=100.0)
    (action,) = dispatcher.tick(now=100.0)
    assert isinstance(action, Dispatch)
    return action


def test_round_robin_passes_over_who_cannot_be_used() -> None:
    dispatcher = fleet_of("round_robin", 3)
    assert [dispatched(dispatcher, number).worker_id for number in range(4)] == ["w0", "w1", "w2", "w0"]
    assert dispatched(dispatcher, 4, excluded=frozenset({"w1"})).worker_id == "w2"


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_shared_prefix_is_spread(policy: str) -> None:
    """400 requests at once with one prefix over six workers: loads are counted before anything is heard of them."""
    dispatcher = fleet_of(policy, 6)
    counts = Counter(dispatched(dispatcher, number).worker_id for number in range(400))
    assert max(counts.values()) <= 2 * 400 / 6, counts
    assert {worker.worker_id: worker.books.load for worker in dispatcher.workers() if worker.books.load} == counts


@pytest.mark.parametrize("workers", [3, 90])
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_what_was_told_of_a_decision_stays(policy: str, workers: int) -> None:
    """Whatever the workers get afterwards."""
    dispatcher = fleet_of(policy, workers)
    decided = [dispatched(dispatcher, number) for number in range(3)]
    told = [each.considered.best for each in decided]
    for number in range(3, 3 + 2 * workers):
        dispatched(dispatcher, number)
    assert [each.considered.best for each in decided] == told


@pytest.mark.parametrize("name", ["", "fastest"])
def test_an_unknown_name_is_told_which_there_are(name: str) -> None:
    with pytest.raises(LookupError, match=r"there is no policy .*round_robin"):
        policy_named(name)
