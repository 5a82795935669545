"""A real Prometheus that scrapes a running mesh: every panel has data, and alerts fire."""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.client import send
from tests.support.processes import Mesh
from tests.support.prometheus import OF_REDIS, Prometheus, needs_prometheus, shown
from tests.support.waiting import until

pytestmark = [needs_prometheus, pytest.mark.slow, pytest.mark.timeout(400)]

CHAT = "POST /v1/chat/completions"
KEY = "sk-panel"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "say something long " * 40}]}
HEADERS = {"Authorization": f"Bearer {KEY}"}


class Observed(NamedTuple):
    mesh: Mesh
    prometheus: Prometheus
    tenants: Path


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    folder = tmp_path_factory.mktemp("prometheus")
    tenants = folder / "tenants.yaml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    tenants.write_text(json.dumps({"tenants": {"research": {"keys": {"anna": {"sha256": digest}}}}}))
    with Mesh(gateway_args=["--tenants", str(tenants)]) as mesh:
        targets = {
            "gateway": [mesh.gateway.address],
            "router": [router.ops_address for router in mesh.routers],
            "worker": [worker.ops_address for worker in mesh.workers],
        }
        with Prometheus(folder, targets) as prometheus:
            yield Observed(mesh, prometheus, tenants)


async def test_every_panel_has_data(observed: Observed) -> None:
    """After some requests there is nothing on any dashboard that is empty, but for what comes with Redis."""
    mesh, prometheus, _ = observed
    missing = [one for one in shown() if not OF_REDIS.search(one.expr)]
    assert missing
    deadline = time.monotonic() + 60
    while missing:
        assert time.monotonic() < deadline, "\n".join(map(str, missing))
        for body in (ASK, {**ASK, "stream": True}):
            assert (await send(mesh.gateway.address, CHAT, body=body, headers=HEADERS)).status == 200
        await asyncio.sleep(1)
        missing = [one for one in missing if not _has_data(prometheus, one.expr)]


async def test_alerts_fire(observed: Observed) -> None:
    """A file with a mistake and a worker that is killed raise the alerts that name them, and before that none does."""
    mesh, prometheus, tenants = observed
    await until(lambda: prometheus.query("inferway_router_model_workers_ready"), 20, "the router has been scraped")
    assert prometheus.firing() == set()
    tenants.write_text("tenants: 7")
    await until(lambda: prometheus.firing() == {"InferwaySettingsRefused"}, 60, "the mistake in the file is told")
    mesh.workers[0].kill()
    await until(lambda: "InferwayModelWithoutWorkers" in prometheus.firing(), 150, "the lack of a worker is told")


def _has_data(prometheus: Prometheus, expr: str) -> bool:
    return any(series["value"][1] != "NaN" for series in prometheus.query(expr))
