"""The requests that a gateway is answering: how they are told apart, shown and ended."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from itertools import pairwise

import pytest

from gateway.core.sse import Usage
from gateway.core.tenants import Caller
from gateway.generation import Timing
from gateway.in_flight import InFlight, Progress, Selection
from gateway.middleware import Exchange
from inferway.errors import ApiError, Reason


def exchange(
    request_id: str = "r", tenant: str = "research", key: str = "anna", model: str = "m", age: float = 0.0
) -> Exchange:
    return Exchange(request_id, time.monotonic() - age, "/v1/chat/completions", caller=Caller(tenant, key), model=model)


@pytest.fixture
def several() -> InFlight:
    found = InFlight()
    for age, (tenant, key, model) in enumerate([("a", "x", "m1"), ("a", "y", "m2"), ("b", "x", "m1")]):
        found.add(exchange(f"r{age}", tenant, key, model, age))
    found.add(exchange("r0", "b", "z", "m2", 3))
    return found


@pytest.mark.parametrize(
    ("selection", "ages"),
    [
        (Selection(), [3, 2, 1, 0]),
        (Selection(request_id="r0"), [3, 0]),
        (Selection(tenant_id="a"), [1, 0]),
        (Selection(tenant_id="a", key_id="x"), [0]),
        (Selection(model="m1"), [2, 0]),
        (Selection(tenant_id="c"), []),
    ],
)
def test_requests_are_selected(several: InFlight, selection: Selection, ages: list[int]) -> None:
    """By everything that is asked for at once, the oldest first; two may have one id."""
    flights = several.flights(selection)
    assert [flight.age_ms // 1000 for flight in flights] == ages
    assert all(one.age_ms >= other.age_ms for one, other in pairwise(flights))


@pytest.mark.parametrize(
    ("model", "timing", "stage"),
    [
        ("", None, "receiving"),
        ("m", None, "preparing"),
        ("m", Timing(queued=1.0), "waiting"),
        ("m", Timing(queued=1.0, dispatched=2.0), "prefilling"),
        ("m", Timing(queued=1.0, dispatched=2.0, first_token=3.0), "generating"),
    ],
)
async def test_stages(model: str, timing: Timing | None, stage: str) -> None:
    """What has been reached last is told, with what has been produced."""
    one = exchange(model=model)
    one.task = asyncio.current_task()
    if timing is not None:
        one.progress = lambda: Progress(timing, "w1", Usage(7, 3))
    found = InFlight()
    found.add(one)
    (flight,) = found.flights(Selection())
    assert flight.stage == stage
    assert (flight.worker_id, flight.completion_tokens) == (("w1", 3) if timing else ("", 0))
    one.task = None
    assert [flight.stage for flight in found.flights(Selection())] == ["sending"]
    found.remove(one)
    found.remove(one)
    assert len(found) == 0


async def test_what_runs_is_ended_with_an_error_of_its_own() -> None:
    """By its stop where it has one, else by cancelling its task; what is only being read by its client is left."""
    told: list[ApiError] = []
    waiting, running, sent = exchange("w"), exchange("r"), exchange("s")
    waiting.task = asyncio.create_task(asyncio.sleep(60))
    running.task, running.stop = asyncio.current_task(), told.append
    found = InFlight()
    for one in (waiting, running, sent):
        found.add(one)
    assert found.kill(Selection(tenant_id="nobody")) == 0
    assert found.kill(Selection()) == 2
    assert [error.reason for error in told] == [Reason.KILLED]
    with pytest.raises(asyncio.CancelledError):
        await waiting.task
    assert waiting.killed is not None
    assert waiting.killed is not told[0]
    assert sent.killed is None


def test_a_selection_needs_all_of_its_parts() -> None:
    one = exchange()
    full = Selection("r", "research", "anna", "m")
    assert full.takes(one)
    for name in ("request_id", "tenant_id", "key_id", "model"):
        assert not replace(full, **{name: "other"}).takes(one)
    one.asks("alias", stream=False, max_tokens=None)
    one.model = "m"
    assert replace(full, model="alias").takes(one)
    assert full.takes(one)
