"""The simulator as a whole: small traces whose figures are known, policies that differ, numbers and their shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import pytest

from router.core.placement.policies import POLICIES, policy_named
from router.simulate.capacity import NoCapacity, capacity, first_guess, ttft_bound_s
from router.simulate.engine import EngineSettings
from router.simulate.figures import Figures, figures, percentile, summarize
from router.simulate.plot import ttft_plot
from router.simulate.replay import FleetSettings, Outcome, replay
from router.simulate.report import Run, json_line, tables
from router.simulate.trace import TraceRequest, read_trace
from tests.support.simulated import ENGINE

CONVERSATION = Path(__file__).resolve().parents[4] / "shared" / "data" / "mooncake" / "conversation_trace.jsonl"

FLEET = FleetSettings(workers=2, engine=ENGINE, expected_tokens=10, hop_s=0.001, report_s=0.1, kv_events=True)


def request(at: float, prompt: int, output: int, first_block: int = 1, **more: object) -> TraceRequest:
    """Prompts with the same first block are prefixes of each other."""
    return TraceRequest(at, prompt, output, list(range(first_block, first_block + prompt // 10)), **more)  # type: ignore[arg-type]


def play(
    requests: list[TraceRequest], policy: str, fleet: FleetSettings = FLEET, *, speed: float = 1.0, seed: int = 1
) -> list[Outcome]:
    return replay(requests, speed=speed, policy=policy_named(policy), rng=Random(seed), settings=fleet)


def test_one_request() -> None:
    """Four messages and its own steps: to the router, back, to the worker, back."""
    (outcome,) = play([request(0.0, 100, 3)], "default")
    assert outcome.ttft_s == pytest.approx(0.004 + 0.110)
    assert outcome.e2e_s == pytest.approx(0.004 + 0.132)
    assert (outcome.queue_s, outcome.cached_tokens, outcome.error) == (0.0, 0, "")


def test_speed() -> None:
    """At twice the speed the second request comes while the first is computed, else when it is over."""
    requests = [request(0.0, 100, 1), request(0.2, 100, 1, 1000)]
    one = replace(FLEET, workers=1)
    assert [outcome.ttft_s for outcome in play(requests, "default", one)] == pytest.approx([0.114, 0.114])
    assert [outcome.ttft_s for outcome in play(requests, "default", one, speed=2.0)] == pytest.approx([0.114, 0.124])


def test_round_robin_and_the_default_on_a_shared_prefix() -> None:
    """Three turns of one conversation: in turn, each worker computes it; the default stays where it is cached."""
    requests = [request(0.0, 100, 1), request(1.0, 200, 1), request(2.0, 300, 1)]
    # The third finds what the first has left on its worker; then: what the one before has left.
    assert [outcome.cached_tokens for outcome in play(requests, "round_robin")] == [0, 0, 100]
    assert [outcome.cached_tokens for outcome in play(requests, "default")] == [0, 100, 200]


def test_round_robin_is_even() -> None:
    """Each worker gets as many requests as any other, or one more."""
    outcomes = play([request(0.1 * turn, 20, 1, 100 * turn + 1) for turn in range(11)], "round_robin")
    assert [outcome.worker for outcome in outcomes] == [0, 1] * 5 + [0]


def test_what_finds_no_room_waits() -> None:
    """One worker with one slot, and one request beyond it: the rest wait in the router's queue, the highest first."""
    fleet = replace(FLEET, workers=1, engine=replace(ENGINE, max_running=1))
    requests = [request(0.0, 100, 50, 100 * number + 1, priority=number % 2) for number in range(6)]
    outcomes = play(requests, "default", fleet)
    assert not any(outcome.error for outcome in outcomes)
    waited = [outcome.queue_s > 0 for outcome in outcomes]
    assert waited == [False, False, True, True, True, True]
    high = [outcome.e2e_s for outcome in outcomes if outcome.request.priority == 1]
    low = [outcome.e2e_s for outcome in outcomes[2:] if outcome.request.priority == 0]
    assert max(high) < min(low)


def test_the_queue_has_a_timeout() -> None:
    """Who waits longer fails as overloaded and is in no mean."""
    fleet = replace(FLEET, workers=1, engine=replace(ENGINE, max_running=1), queue_timeout_s=0.5)
    outcomes = play([request(0.0, 100, 100, 100 * number + 1) for number in range(4)], "default", fleet)
    assert [outcome.error for outcome in outcomes] == ["", "", "overloaded", "overloaded"]
    found = figures(outcomes)
    assert (found.requests, found.failed) == (4, 2)
    assert found.ttft_mean_s == pytest.approx((outcomes[0].ttft_s + outcomes[1].ttft_s) / 2)


def test_too_long_for_the_cache() -> None:
    """Refused at once, as a gateway would."""
    outcomes = play([request(0.0, 9_990, 11), request(0.0, 9_990, 10, 2000)], "default")
    assert [outcome.error for outcome in outcomes] == ["context_length_exceeded", ""]


@pytest.mark.parametrize("kv_events", [True, False])
def test_the_router_learns_of_evictions(kv_events: bool) -> None:
    """With KV events it never counts on a block that is gone; without them it does, and is not far off."""
    fleet = replace(FLEET, engine=replace(ENGINE, kv_tokens=2_000), kv_events=kv_events)
    requests = [request(0.7 * turn, 100 + turn * 10, 4, 1000 * (turn % 9) + 1) for turn in range(60)]
    outcomes = play(requests, "default", fleet)
    cached = sum(outcome.cached_tokens for outcome in outcomes)
    predicted = sum(outcome.predicted_cached_tokens for outcome in outcomes)
    assert predicted == pytest.approx(cached, rel=0.2)
    too_much = [outcome for outcome in outcomes if outcome.predicted_cached_tokens > outcome.cached_tokens]
    assert bool(too_much) is not kv_events


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_seed_gives_the_same(policy: str) -> None:
    """Every policy, twice, on a trace that is crowded enough for ties and queues."""
    rng = Random(7)
    requests = [
        request(0.02 * n, rng.randrange(1, 300), rng.randrange(1, 40), 100 * rng.randrange(1, 9)) for n in range(99)
    ]
    assert list(map(_what, play(requests, policy))) == list(map(_what, play(requests, policy)))


def _what(outcome: Outcome) -> tuple[object, ...]:
    return outcome.worker, outcome.ttft_s, outcome.e2e_s, outcome.cached_tokens, outcome.queue_s


@pytest.mark.skipif(not CONVERSATION.exists(), reason="the trace ../shared/data/mooncake is not here")
def test_the_default_beats_round_robin_on_conversations() -> None:
    """On the start of a real trace it finds more in the caches and answers sooner."""
    with CONVERSATION.open() as file:
        requests = list(read_trace(file, block_size=64, limit=800).requests)
    engine = EngineSettings(20_000.0, 0.010, 0.0001, 0.0, 2048, 64, 1_000_000, 64)
    fleet = FleetSettings(8, engine, expected_tokens=600, hop_s=0.001, report_s=0.1, kv_events=True)
    found = {policy: figures(play(requests, policy, fleet, speed=2.0)) for policy in ("default", "round_robin")}
    assert found["default"].hit_ratio > 1.5 * found["round_robin"].hit_ratio  # type: ignore[operator]
    assert found["default"].ttft_mean_s < 0.8 * found["round_robin"].ttft_mean_s  # type: ignore[operator]


# Figures.


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.5, None),
        ([3.0], 0.99, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([float(n) for n in range(1, 101)], 0.99, 99.0),
        ([float(n) for n in range(1, 102)], 0.99, 100.0),
    ],
)
def test_percentiles(values: list[float], share: float, expected: float | None) -> None:
    """The nearest rank: a value that occurred."""
    assert percentile(values, share) == expected


def outcomes_by_hand() -> list[Outcome]:
    """Three that ran on two workers, and one that did not."""
    done = [
        Outcome(TraceRequest(0.0, 100, 10, (), "a", 9), 100.0, "", 0, 0.0, 1.0, 2.0, 40, 40),
        Outcome(TraceRequest(1.0, 300, 20, (), "a", 0), 101.0, "", 0, 1.0, 2.0, 6.0, 200, 100),
        Outcome(TraceRequest(2.0, 100, 30, (), "b", 0), 102.0, "", 1, 2.0, 3.0, 10.0, 0, 0),
    ]
    return [*done, Outcome(TraceRequest(3.0, 100, 30, (), "b", 0), 103.0, "overloaded")]


def test_summary() -> None:
    """Means, shares and spreads of a case that can be added up by hand."""
    summary = summarize(outcomes_by_hand(), workers=2)
    assert summary.figures == Figures(4, 1, 2.0, 2.0, 3.0, 6.0, 10.0, 1.0, 140 / 500, 240 / 500)
    # Two and one request; 70 + 220 and 130 computed tokens.
    assert summary.spread.requests == pytest.approx(2 / 1.5)
    assert summary.spread.tokens == pytest.approx(290 / 210)
    # The last came at 103 s, the last answer ended at 112 s.
    assert summary.drain_s == pytest.approx(9.0)
    assert summary.tenants["a"] == Figures(2, 0, 1.5, 1.0, 2.0, 4.0, 6.0, 0.5, 140 / 400, 240 / 400)
    assert summary.tenants["b"] == Figures(2, 1, 3.0, 3.0, 3.0, 10.0, 10.0, 2.0, 0.0, 0.0)
    assert {priority: group.requests for priority, group in summary.priorities.items()} == {9: 1, 0: 3}


def test_one_tenant_is_no_group() -> None:
    """Where a trace has one tenant and one priority, there is nothing to compare."""
    summary = summarize(outcomes_by_hand()[1:2], workers=2)
    assert (summary.tenants, summary.priorities) == ({}, {})


def run_by_hand() -> Run:
    return Run("default", 2.0, 2, 1, None, None, summarize(outcomes_by_hand(), workers=2))


def test_json() -> None:
    """One line; the documented names; what nobody tells is null."""
    line = json_line(run_by_hand())
    assert "\n" not in line
    values = json.loads(line)
    group = {
        "requests": 2,
        "failed": 0,
        "ttft_mean_s": 1.5,
        "ttft_p50_s": 1.0,
        "ttft_p99_s": 2.0,
        "e2e_mean_s": 4.0,
        "e2e_p99_s": 6.0,
        "queue_mean_s": 0.5,
        "hit_ratio": 0.35,
        "predicted_hit_ratio": 0.6,
    }
    assert values["tenants"]["a"] == group
    assert set(values["priorities"]) == {"0", "9"}
    assert {name: value for name, value in values.items() if name not in ("tenants", "priorities")} == {
        "policy": "default",
        "speed": 2.0,
        "workers": 2,
        "seed": 1,
        "load": None,
        "round_robin_speed": None,
        "requests": 4,
        "failed": 1,
        "ttft_mean_s": 2.0,
        "ttft_p50_s": 2.0,
        "ttft_p99_s": 3.0,
        "e2e_mean_s": 6.0,
        "e2e_p99_s": 10.0,
        "queue_mean_s": 1.0,
        "hit_ratio": 0.28,
        "predicted_hit_ratio": 0.48,
        "request_spread": 1.333333,
        "token_spread": 1.380952,
        "drain_s": 9.0,
    }


def test_tables() -> None:
    """Every policy is a row, and so is every tenant and every priority."""
    text = tables([run_by_hand()])
    rows = [line.split() for line in text.splitlines()]
    assert "default 2.000 2.000 3.000 6.000 10.000 1.000 0.280 0.480 1.33 1.38 1".split() in rows
    assert "a 2 1.500 1.000 2.000 4.000 6.000 0.500 0.350 0.600 0".split() in rows
    assert "9 1 1.000 1.000 1.000 2.000 2.000 0.000 0.400 0.400 0".split() in rows


def test_nothing_ran() -> None:
    """A policy under which all requests failed has no times."""
    summary = summarize(outcomes_by_hand()[3:], workers=2)
    run = Run("default", 1.0, 2, 1, None, None, summary)
    assert json.loads(json_line(run))["ttft_mean_s"] is None
    assert "default - - - - - - - - - - 1".split() in [line.split() for line in tables([run]).splitlines()]


def test_plot() -> None:
    """A picture with a line for each policy that has times, in well-formed XML."""
    picture = ttft_plot({"a<b": [0.5, 0.1, 20.0], "c": [3.0], "none": []}, "a & b")
    root = ElementTree.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    texts = [element.text for element in root.iter(space + "text")]
    assert {"a & b", "a<b", "c", "0.1", "1", "10", "100", "50%"} <= set(texts)
    assert "none" not in texts
    points = [line.attrib["points"].split() for line in root.iter(space + "polyline")]
    assert [len(line) for line in points] == [3, 1]


# Capacity.


@pytest.mark.parametrize("limit", [0.03, 1.0, 3.47, 900.0])
@pytest.mark.parametrize("guess", [0.5, 4.0])
def test_the_highest_speed_that_is_carried(limit: float, guess: float) -> None:
    """It is found to within a hundredth, from below, wherever the search begins."""
    found = capacity(lambda speed: speed <= limit, guess)
    assert limit / 1.0101 <= found <= limit


@pytest.mark.parametrize("carried", [True, False])
def test_no_speed_is_the_limit(carried: bool) -> None:
    """A fleet that carries everything, or nothing, has no such speed."""
    with pytest.raises(NoCapacity):
        capacity(lambda speed: carried, 1.0)


def test_where_the_search_begins() -> None:
    """Two workers compute 2,000 prompt tokens a second; the trace has 1,000 in ten seconds."""
    requests = [request(0.0, 400, 1), request(10.0, 600, 1)]
    assert first_guess(requests, 2, ENGINE) == pytest.approx(20.0)
    # Ten times half a second of prompt and a step.
    assert ttft_bound_s(requests, ENGINE) == pytest.approx(5.1)
    with pytest.raises(NoCapacity, match="all requests of the trace come at once"):
        first_guess(requests[:1], 2, ENGINE)


def test_an_unbounded_queue_is_the_default() -> None:
    """Unless asked for, nobody leaves the router's queue by time."""
    assert FLEET.queue_timeout_s == inf
