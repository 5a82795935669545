"""Handed cases on workers that fail, and on what must not be taken for it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import ASK, CHAT, STREAM, first_event
from tests.support.client import Answer
from tests.support.probes import http_text, metric
from tests.support.processes import Mesh
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

UNAVAILABLE = {"grpc_error": {"code": "UNAVAILABLE", "details": "broken inside"}}
SCRIPTS = {"broken": [{"worker": "A", **UNAVAILABLE}], "slow": [{"text": "t ", "repeat": 200, "gap_ms": 50}]}


@pytest.fixture
def two_workers(tmp_path: Path) -> Iterator[Installation]:
    """A fails every request of the script "broken" before its first token, B none."""
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    workers = [["--engine", "scripted", "--scripts", str(scripts), "--name", name] for name in "AB"]
    limits = ["--breaker-open-s", "1", "--breaker-open-max-s", "3", "--slow-start-s", "0"]
    with Mesh(workers=workers, router_args=limits, gateway_args=["--choose-workers"]) as mesh:
        yield Installation(mesh)


def breaker(installation: Installation, worker: str) -> str:
    """The state of a worker's breaker, by the router's metrics."""
    router = installation.mesh.router
    assert router is not None
    page = http_text(f"http://{router.ops_address}/metrics")
    (state,) = re.findall(
        rf'^inferway_router_worker_breaker{{state="(\w+)",worker="{worker}"}} 1.0$', page, re.MULTILINE
    )
    return str(state)


def turns(installation: Installation) -> list[tuple[str, float]]:
    """Into which states breakers have come, and when."""
    assert installation.mesh.router is not None
    events = installation.mesh.router.events("breaker_turned")
    return [(line["state"], datetime.fromisoformat(line["time"]).timestamp()) for line in events]


async def served_by(installation: Installation, script: str, number: int, headers: dict[str, str]) -> Answer:
    return await installation.send(CHAT, body=ASK, request_id=f"{script}.{number}", headers=headers)


@case("RTE-10")
async def test_faults_of_callers_open_nothing(case: Any) -> None:
    """Twenty that the engine calls invalid and twenty that leave: the breaker is closed, the next tenant is served."""
    with Mesh(workers=[["--engine", "scripted", "--scripts", str(CASES_FILE), "--name", "A"]]) as mesh:
        installation = Installation(mesh)
        for number in range(20):
            answer = await installation.send(
                CHAT, body=ASK, request_id=f"RTE-10.{number}", headers={"Authorization": "Bearer one"}
            )
            assert answer.status == 400
            assert answer.error["type"] == "invalid_request_error"
        assert breaker(installation, "A") == "closed"
        streams = [await installation.open(STREAM, f"DSC-04.{number}") for number in range(20)]
        for stream in streams:
            await first_event(stream)
            stream.close()
        await until(lambda: installation.engine_load() == 0, 5, "they have left")
        assert breaker(installation, "A") == "closed"
        assert turns(installation) == []
        good = await installation.send(CHAT, body=ASK, headers={"Authorization": "Bearer two"})
        assert good.status == 200


@case("RTE-12")
async def test_open_and_back(case: Any, two_workers: Installation) -> None:
    """Five failures open it; failed trials lengthen the period up to its cap; good ones bring its share back."""
    only_a = {"x-inferway-worker": "A"}
    for number in range(5):
        assert breaker(two_workers, "A") == "closed"
        assert (await served_by(two_workers, "broken", number, only_a)).status == 500
    await until(lambda: breaker(two_workers, "A") == "open", 2, "five have failed")
    for number in range(3):
        # Each waits until the worker is tried again, is the trial, and fails.
        assert (await served_by(two_workers, "broken", number, only_a)).status == 500
    await until(lambda: breaker(two_workers, "A") == "half_open", 10, "the last period is over")
    states = [state for state, _ in turns(two_workers)]
    assert states == ["open", "half_open"] * 4
    periods = [end - start for (state, start), (_, end) in pairwise(turns(two_workers)) if state == "open"]
    # Each is longer than the one before and shorter than twice its length, up to the cap of 3 s.
    bounds = ((1.0, 2.0), (2.0, 4.0), (3.0, 4.0), (3.0, 8.0))
    for period, (least, beyond) in zip(periods, bounds, strict=True):
        assert least - 0.01 <= period < beyond, "log lines are cut to milliseconds"

    for number in range(2):
        assert (await served_by(two_workers, "good", number, only_a)).status == 200
    await until(lambda: breaker(two_workers, "A") == "closed", 2, "two trials have succeeded")
    streams = [await two_workers.open(STREAM, f"slow.{number}") for number in range(20)]
    for stream in streams:
        await first_event(stream)
    assert 7 <= two_workers.engine_load() <= 13, "its share is half again"
    for stream in streams:
        stream.close()


@case("RTE-12")
async def test_limited_trials(case: Any, two_workers: Installation) -> None:
    """While it is on trial it has one request at a time, however many there are."""
    only_a = {"x-inferway-worker": "A"}
    for number in range(5):
        await served_by(two_workers, "broken", number, only_a)
    await until(lambda: breaker(two_workers, "A") == "half_open", 10, "it is tried")
    asks = [asyncio.create_task(served_by(two_workers, "broken", number, only_a)) for number in range(20)]
    await until(lambda: any(ask.done() for ask in asks), 10, "the trial is over")
    assert breaker(two_workers, "A") == "open"
    assert sum(ask.done() for ask in asks) == 1
    for ask in asks:
        ask.cancel()
    await asyncio.wait(asks)


@case("RTE-13")
async def test_healthy_outside_and_broken_inside(case: Any, two_workers: Installation) -> None:
    """Of fifty requests the broken one sees the threshold and its trials; all are answered with 200."""
    for number in range(50):
        assert (await served_by(two_workers, "broken", number, {})).status == 200
    trials = [state for state, _ in turns(two_workers)].count("half_open")
    touched = metric(two_workers.mesh.url("/metrics"), "inferway_gateway_retries_total")
    assert 5 <= touched <= 5 + trials
    assert breaker(two_workers, "A") != "closed"
    assert breaker(two_workers, "B") == "closed"
