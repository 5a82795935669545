"""A real Prometheus that scrapes a running mesh: every panel has data, and alerts fire."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.client import send
from tests.support.processes import Mesh
from tests.support.prometheus import Prometheus, needs_prometheus, rules, runbook_section, selectors, shown
from tests.support.tenants import bearer, tenants_file
from tests.support.valkey import Valkey
from tests.support.waiting import until

pytestmark = [needs_prometheus, pytest.mark.slow, pytest.mark.timeout(400)]

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "say something long " * 40}]}
SCRIPTS = {"broken": [{"grpc_error": {"code": "INTERNAL", "details": "broken inside"}}]}


class Observed(NamedTuple):
    mesh: Mesh
    prometheus: Prometheus
    tenants: Path


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("prometheus")
    scripts = folder / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    tenants = tenants_file(
        folder, research={"quota": {"tokens_per_day": 10**9}}, limited={"quota": {"requests_per_minute": 1}}
    )
    with (
        Valkey() as redis,
        Mesh(
            workers=[["--engine", "scripted", "--scripts", str(scripts)]],
            gateway_args=["--tenants", str(tenants), "--redis", redis.url, "--spool-dir", str(folder)],
        ) as mesh,
    ):
        targets = {
            "gateway": [mesh.gateway.address],
            "router": [router.ops_address for router in mesh.routers],
            "worker": [worker.ops_address for worker in mesh.workers],
        }
        with Prometheus(folder, targets) as prometheus:
            yield Observed(mesh, prometheus, tenants)


async def test_every_panel_has_data(observed: Observed) -> None:
    """After some requests, one of them over its quota, there is nothing on any dashboard that is empty."""
    mesh, prometheus, _ = observed
    missing = shown()
    assert missing
    deadline = time.monotonic() + 60
    while missing:
        assert time.monotonic() < deadline, "\n".join(map(str, missing))
        for body in (ASK, {**ASK, "stream": True}):
            assert (await send(mesh.gateway.address, CHAT, body=body, headers=bearer("research"))).status == 200
        await send(mesh.gateway.address, CHAT, body=ASK, headers=bearer("limited"))
        await asyncio.sleep(1)
        missing = [one for one in missing if not _has_data(prometheus, one.expr)]


async def test_alerts_have_something_to_look_at(observed: Observed) -> None:
    """Every series that a rule or an alert selects is there once something has failed: none is blind for its name."""
    mesh, prometheus, _ = observed
    failed = await send(
        mesh.gateway.address, CHAT, body=ASK, request_id="broken.1", headers=bearer("research"), timeout_s=30
    )
    assert failed.status >= 500
    missing = {found for rule in rules() for found in selectors(rule["expr"])}
    assert len(missing) > 20

    def all_are_there() -> bool:
        nonlocal missing
        missing = {one for one in missing if not prometheus.query(one)}
        return not missing

    await until(all_are_there, 30, "all of them have been scraped")


async def test_alerts_fire(observed: Observed) -> None:
    """A file with a mistake and a worker that is killed raise the alerts that name them, and before that none does."""
    mesh, prometheus, tenants = observed
    await until(lambda: prometheus.query("inferway_router_model_workers_ready"), 20, "the router has been scraped")
    assert prometheus.firing() == set()
    tenants.write_text("tenants: 7")
    await until(lambda: prometheus.firing() == {"InferwaySettingsRefused"}, 60, "the mistake in the file is told")
    mesh.workers[0].kill()
    await until(lambda: "InferwayModelWithoutWorkers" in prometheus.firing(), 150, "the lack of a worker is told")
    told = prometheus.alerts("InferwayModelWithoutWorkers")
    assert "m-text" in {alert["labels"]["model"] for alert in told}
    for alert in told:
        assert alert["labels"]["model"] in alert["annotations"]["summary"]
        assert "`InferwayModelWithoutWorkers`" in runbook_section(alert["annotations"]["runbook"])


def _has_data(prometheus: Prometheus, expr: str) -> bool:
    return any(series["value"][1] != "NaN" for series in prometheus.query(expr))
