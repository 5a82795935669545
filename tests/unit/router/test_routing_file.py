"""routing.yaml: what it makes, and what it is refused for."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from inferway.settings import SettingsError
from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, Request, Ticket, WorkerInfo
from router.core.placement.plugins import FILTERS, PICKERS, SCORERS, options_of
from router.core.placement.routing import read_routing, routing_of
from router.core.queue import QueueLimits

CODER: dict[str, Any] = {
    "filters": [{"name": "spread", "options": {"factor": 1.1}}],
    "scorers": [{"name": "wait"}, {"name": "work", "weight": 2, "options": {"price": 3}}],
    "picker": {"name": "softmax", "options": {"temperature": 0.2}},
}


@pytest.mark.parametrize(
    ("document", "coder", "others"),
    [
        (None, "default", "default"),
        ({}, "default", "default"),
        ({"default": {"policy": "dynamo_kv"}}, "dynamo_kv", "dynamo_kv"),
        ({"models": {"coder": {"policy": "session"}}}, "session", "default"),
        ({"default": {"policy": "random"}, "models": {"coder": CODER}}, "custom", "random"),
    ],
)
def test_which_policy_a_model_has(document: Any, coder: str, others: str) -> None:
    routing = read_routing(document)
    assert (routing.policy_for("coder").name, routing.policy_for("m").name) == (coder, others)


def test_a_policy_of_ones_own() -> None:
    """Plug-ins in the order of the file, with its options and the defaults of what it does not say."""
    policy = read_routing({"models": {"coder": CODER}}).policy_for("coder")
    assert [(one.name, options_of(type(one.filter)), one.filter) for one in policy.filters] == [
        ("spread", {"factor": 1.25, "slack": 2.0}, FILTERS["spread"](factor=1.1, slack=2.0))  # type: ignore[call-arg]
    ]
    assert [(one.name, one.weight) for one in policy.scorers] == [("wait", 1.0), ("work", 2.0)]
    assert policy.scorers[1].scorer == SCORERS["work"](price=3.0)  # type: ignore[call-arg]
    assert policy.picker == PICKERS["softmax"](temperature=0.2)  # type: ignore[call-arg]


def entry(**fields: Any) -> dict[str, Any]:
    return {"models": {"m": fields}}


@pytest.mark.parametrize(
    ("document", "mistake"),
    [
        ([], "Expected 'object', got 'array'"),
        ({"defaults": {}}, "unknown field 'defaults'"),
        (entry(), "models.m: must have either 'policy' or 'filters', 'scorers' and 'picker'"),
        (entry(policy="default", picker={"name": "least"}), "models.m: must have either"),
        (entry(policy="fastest"), "models.m: there is no policy 'fastest'; there are default, round_robin"),
        (entry(policy=3), "models.m.policy: Expected 'str', got 'int'"),
        (entry(scorers=[{"name": "speed"}]), "models.m: there is no scorer 'speed'; there are adapter"),
        (entry(filters=[{"name": "least"}]), "models.m: there is no filter 'least'"),
        (entry(picker={"name": "worst"}), "models.m: there is no picker 'worst'"),
        (entry(scorers=[{"name": "work", "options": {"cost": 1}}]), "'work' has no option 'cost'; there are price"),
        (entry(scorers=[{"name": "load", "options": {"cost": 1}}]), "'load' has no option 'cost'; it has none"),
        (entry(scorers=[{"name": "work", "options": {"price": -1}}]), "'price' of 'work' must be at least 0, got -1.0"),
        (
            entry(scorers=[{"name": "work", "options": {"most_utilisation": 1}}]),
            "'most_utilisation' of 'work' must be at least 0 and at most 0.99, got 1.0",
        ),
        (
            entry(picker={"name": "softmax", "options": {"temperature": 0}}),
            "'temperature' of 'softmax' must be more than 0, got 0.0",
        ),
        (entry(picker={"name": "softmax", "options": {"temperature": float("inf")}}), "must be more than 0, got inf"),
        (
            entry(scorers=[{"name": "wait", "weight": -1}]),
            "models.m.scorers[0].weight: must be from 0 to 1e+06, got -1.0",
        ),
        (entry(scorers=[{"name": "wait", "wait": 1}]), "models.m.scorers[0]: "),
    ],
)
def test_mistakes(document: Any, mistake: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_routing(document)
    assert mistake in str(caught.value)


def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        read_routing({"default": {"policy": "x"}, "models": {"a": {"policy": "y"}, "b": {"policy": "random"}}})
    assert [line.partition(":")[0] for line in str(caught.value).splitlines()] == ["models.a", "default"]


def test_other_policies_hold_from_the_next_decision_on() -> None:
    """For models that are there and for those that come."""
    dispatcher = Dispatcher(routing=routing_of("default"), rng=Random(1), first_lease_id=1, limits=QueueLimits())

    def policy(model: str) -> str:
        asked = Request(Ticket(1, len(told)), "r", model, "t", 5, 10, 1, (), 0.0, 9.0)
        dispatcher.submit(asked, now=0.0)
        (action,) = dispatcher.tick(now=0.0)
        assert isinstance(action, Dispatch)
        told.append(action.considered.policy)
        return told[-1]

    told: list[str] = []
    dispatcher.worker_up(WorkerInfo("w", "1", "w:1", {"m": 4}, 100, 0))
    assert policy("m") == "default"
    dispatcher.take_routing(read_routing({"models": {"m": {"policy": "random"}, "n": {"policy": "session"}}}))
    assert policy("m") == "random"
    dispatcher.worker_up(WorkerInfo("v", "1", "v:1", {"n": 4}, 100, 0))
    assert policy("n") == "session"
