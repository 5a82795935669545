"""What `explain` and `status` print, from messages as they come from routers."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.api.v1 import router_pb2, types_pb2
from inferway.cli.core.explained import explanation, why
from inferway.cli.core.standing import standing
from inferway.cli.core.tables import cost, duration, share, table
from inferway.plain import plain

BEST = [("a", (0.0, 5.0), 896), ("b", (2.0, 291.0), 0)]


def placement(**values: Any) -> router_pb2.Placement:
    best = [
        router_pb2.Score(worker_id=name, cost=sum(terms), terms=terms, cached_tokens=cached)
        for name, terms, cached in values.pop("best", BEST)
    ]
    defaults: dict[str, Any] = {
        "policy": "default",
        "num_candidates": 3,
        "removed": [router_pb2.Removed(filter="spread", workers=1)],
        "scorers": ["wait", "work"],
        "worker_id": "a",
        "lease_id": 77,
        "margin": 288.0,
        "runner_up": "b",
        "predicted_cached_tokens": 896,
        "predicted_ttft_ms": 5.0,
    }
    merged = {name: value for name, value in (defaults | values).items() if value is not None}
    return router_pb2.Placement(best=best, **merged)


def decision(state: str, **values: Any) -> router_pb2.Decision:
    defaults: dict[str, Any] = {
        "state": f"DECISION_STATE_{state}",
        "model": "m",
        "tenant_id": "research",
        "priority": 5,
        "prompt_tokens": 1000,
        "expected_tokens": 20,
        "num_choices": 1,
        "queued_at_ms": 1_796_048_238_269,
        "queue_ms": 1500.0,
        "queued_behind": 3,
    }
    return router_pb2.Decision(**(defaults | values))


def text_of(*decisions: router_pb2.Decision) -> str:
    response = router_pb2.ExplainResponse(router_id="r1", decisions=decisions)
    return explanation("req", "r1", plain(response)["decisions"])


def test_a_finished_request_reads_at_one_look() -> None:
    """Where it went, the queue, the choice with a table of scores, why, and what was predicted beside what came."""
    ended = placement(
        routing_version="3fa9",
        cached_tokens=500,
        ttft_ms=34.2,
        outcome="RELEASE_OUTCOME_OK",
        completion_tokens=7,
        lease_ms=2512.0,
    )
    assert text_of(decision("ENDED", placement=ended)) == (
        "request req at router r1\n"
        "\n"
        "ran on a, ended ok\n"
        "  request   model m, tenant research, priority 5, prompt 1,000 tokens\n"
        "  queue     came 2026-11-30 14:17:18.269 UTC with 3 requests before it, waited 1.50 s\n"
        "  choice    policy default (routing.yaml 3fa9), 3 workers with room, spread took out 1\n"
        "\n"
        "     worker  cost  wait  work  cached tokens\n"
        "  >  a          5     0     5            896\n"
        "     b        293     2   291              0\n"
        "\n"
        "  why       a costs least, 288 less than b; most of it is work (286), with 896 tokens more in its cache\n"
        "\n"
        "                       predicted       actual\n"
        "  cached tokens      896 (89.6%)  500 (50.0%)\n"
        "  first token after       5.0 ms        34 ms\n"
        "  ended after                          2.51 s\n"
        "  completion tokens   at most 20            7\n"
        "  lease 77"
    )


@pytest.mark.parametrize(
    ("made", "says"),
    [
        (
            decision("WAITING", position=4, expected_wait_ms=90_000.0),
            ["waits for a worker", "has waited 1.50 s; now about 4 before it, 1.5 min at the present rate"],
        ),
        (decision("WAITING", position=0), ["now about 0 before it"]),
        (
            decision("REJECTED", error=types_pb2.Error(reason="overloaded", message="full", retry_after_ms=2000)),
            ["got no worker", "overloaded: full", "after 2.00 s"],
        ),
        (decision("CANCELLED"), ["was taken back by its gateway while it waited"]),
        (decision("DISPATCHED", placement=placement()), ["runs on a", "first token after       5.0 ms       -"]),
        (decision("ENDED", placement=placement()), ["how it ended nobody has said"]),
        (decision("WAITING", excluded_workers=["x", "y"], pinned_worker="z"), ["pinned    to z", "excluded  x, y ("]),
        (decision("WAITING", num_choices=3, tenant_id=""), ["tenant (none)", "3 choices"]),
    ],
)
def test_each_state_is_told(made: router_pb2.Decision, says: list[str]) -> None:
    """What is known of it, and nothing that is not."""
    text = text_of(made)
    for sentence in says:
        assert sentence in text
    assert "None" not in text


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (placement(num_candidates=1, best=BEST[:1], margin=None), "a was the only worker with room"),
        (placement(best=BEST[:1], margin=None), "a was the only worker that the filters left"),
        (placement(policy="random", scorers=[], margin=None), "the policy random does not score: its picker took a"),
        (placement(worker_id="z", margin=None), "the picker took z, which is not among the 2 with the least costs"),
        (placement(margin=0.0), "a and b cost the same; the picker took a"),
        (
            placement(worker_id="b", runner_up="a", margin=-288.0),
            "the picker took b, though a would have cost 288 less",
        ),
    ],
)
def test_why(made: router_pb2.Placement, sentence: str) -> None:
    """Each way in which a worker is chosen has its sentence."""
    assert why(plain(made)) == sentence


def test_attempts_are_numbered() -> None:
    """A request that was tried twice has two paragraphs, in order."""
    refused = placement(outcome="RELEASE_OUTCOME_REFUSED")
    text = text_of(decision("ENDED", placement=refused), decision("WAITING"))
    assert "submission 1 of 2: ran on a, ended refused" in text
    assert "submission 2 of 2: waits for a worker" in text


def snapshot(**values: Any) -> dict[str, Any]:
    return plain(router_pb2.SnapshotResponse(router_id="r1", **values))


def test_status_of_a_busy_router() -> None:
    """Workers, hit rates, and who waits, each as a table."""
    state = {"worker_id": "w1", "address": "h:1", "models": ["m4", "m3", "m2", "m1"], "status": "WORKER_STATUS_READY"}
    state |= {"breaker": "BREAKER_STATE_HALF_OPEN", "requests_in_flight": 3, "slots": 36, "num_requests_running": 2}
    state |= {"kv_used_tokens": 50, "kv_total_tokens": 200, "indexed_blocks": 1400, "trust": 0.875}
    text = standing(
        snapshot(
            routing_version="3fa9",
            workers=[
                router_pb2.WorkerState(address="h:2", status="WORKER_STATUS_CONNECTING"),
                router_pb2.WorkerState(**state),
            ],
            models=[
                router_pb2.ModelState(
                    model="m1", policy="lora", prompt_tokens=1000, predicted_cached_tokens=500, actual_cached_tokens=250
                ),
                router_pb2.ModelState(model="m2", policy="default"),
            ],
            queues=[
                router_pb2.QueueState(model="m2"),
                router_pb2.QueueState(
                    model="m1",
                    requests=3,
                    tokens=30,
                    oldest_ms=1500,
                    bands=[router_pb2.BandState(priority=5, requests=3, tokens=30)],
                    tenants=[router_pb2.TenantState(tenant_id="x", requests=3, expected_tokens=90)],
                    more_tenants=2,
                ),
            ],
        ),
        "h:50050",
    )
    assert text == (
        "router r1 (h:50050), routing.yaml 3fa9\n"
        "\n"
        "worker  status      breaker    in flight / slots  running  waiting  KV in use  blocks  trust  models\n"
        "h:2     connecting  -                          -        -        -          -       -      -  -\n"
        "w1      ready       half_open             3 / 36        2        0      25.0%   1,400   0.88  m1, m2, m3 "
        "and 1 more\n"
        "\n"
        "model  policy  prompt tokens  cached, predicted  cached, actual\n"
        "m1     lora            1,000              50.0%           25.0%\n"
        "1 more model without any\n"
        "\n"
        "waiting for  priority  requests  prompt tokens  oldest\n"
        "m1                all         3             30  1.50 s\n"
        "m1                  5         3             30\n"
        "\n"
        "waiting for  tenant    requests  expected tokens\n"
        "m1           x                3               90\n"
        "m1           (2 more)"
    )


def test_status_of_an_empty_router() -> None:
    """Sentences instead of empty tables."""
    assert standing(snapshot(), "h:1") == (
        "router r1 (h:1)\n\nno workers\n\nno prompt computed yet; 0 models served\n\nnobody waits"
    )


def test_names_cannot_steer_a_terminal() -> None:
    """What callers name is shown without control characters."""
    text = text_of(decision("WAITING", model="\x1b[2Jm", tenant_id="a\nb"))
    assert "model ?[2Jm, tenant a?b" in text
    assert "\x1b" not in table(["h"], [["\x1b[2J"]])


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (cost(0.0), "0"),
        (cost(0.12345), "0.1235"),
        (cost(123456.78), "123,456.8"),
        (cost(-2.0), "-2"),
        (duration(0.26), "0.3 ms"),
        (duration(999.0), "999 ms"),
        (duration(60_000.0), "1.0 min"),
        (share(1, 3), "33.3%"),
        (share(0, 0), "-"),
    ],
)
def test_numbers(said: str, expected: str) -> None:
    """As many digits as say something."""
    assert said == expected


def test_plain_data_has_every_field() -> None:
    """Enums by their short names, absent fields as None."""
    data = plain(router_pb2.Decision(state="DECISION_STATE_ENDED", placement=placement(margin=None)))
    assert (data["state"], data["error"], data["position"]) == ("ended", None, None)
    assert (data["placement"]["margin"], data["placement"]["outcome"]) == (None, "unspecified")
    assert data["placement"]["best"][1] == {"worker_id": "b", "cost": 293.0, "terms": [2.0, 291.0], "cached_tokens": 0}
