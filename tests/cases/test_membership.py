"""Handed cases on workers that come and go by what Kubernetes says of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import ASK, CHAT, STREAM, first_event, log_line
from tests.support.kubernetes import KubernetesStub, endpoint, endpoint_slice
from tests.support.processes import Mesh
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

SCRIPTS = {"slow": [{"text": "t ", "repeat": 200, "gap_ms": 50}, {"finish": "stop"}]}


class Cluster:
    """Workers A and B, each as a pod in a slice of its own, found by the router at an API server."""

    def __init__(self, api: KubernetesStub, scripts: Path) -> None:
        self._api = api
        self._ports: dict[str, int] = {}
        self.mesh = Mesh(
            workers=[["--engine", "scripted", "--scripts", str(scripts), "--name", name] for name in "AB"],
            router_args=["--kubernetes-api", api.url, "--slow-start-s", "0"],
            router_workers=self._publish,
            gateway_args=["--choose-workers"],
        )

    def _publish(self, addresses: Sequence[str]) -> str:
        for name, address in zip("AB", addresses, strict=True):
            self._ports[name] = int(address.rpartition(":")[2])
            self.pod(name, f"{name}-1")
        return "k8s:mesh/workers:grpc"

    def pod(self, name: str, uid: str, **conditions: Any) -> None:
        self._api.put(endpoint_slice(name, [endpoint("127.0.0.1", uid, **conditions)], port=self._ports[name]))

    def has_logged(self, event: str, **fields: Any) -> bool:
        assert self.mesh.router is not None
        return any(fields.items() <= line.items() for line in self.mesh.router.events(event))

    def times_met(self, name: str) -> int:
        assert self.mesh.router is not None
        return sum(line["worker_id"] == name for line in self.mesh.router.events("worker_ready"))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    with KubernetesStub() as api:
        found = Cluster(api, scripts)
        with found.mesh:
            yield found


async def served_by(installation: Installation, first: int, count: int) -> set[str]:
    """Who serves requests that come together: one after the other they would all go to whoever is a little faster."""
    ids = [f"LIF-01.{number}" for number in range(first, first + count)]
    answers = await asyncio.gather(*(installation.send(CHAT, body=ASK, request_id=each) for each in ids))
    assert {answer.status for answer in answers} == {200}
    return {(await log_line(installation, each))["worker_id"] for each in ids}


@case("LIF-01")
async def test_a_pod_that_is_being_deleted(case: Any, cluster: Cluster) -> None:
    """Terminating and ready still true: nothing new for it, its stream ends well, only another pod gets requests."""
    installation = Installation(cluster.mesh)
    assert await served_by(installation, 0, 20) == {"A", "B"}
    running = await installation.open(STREAM, "slow.1", **{"x-inferway-worker": "A"})
    await first_event(running)
    address = cluster.mesh.workers[0].address

    cluster.pod("A", "A-1", ready=True, serving=True, terminating=True)
    await until(lambda: cluster.has_logged("worker_address_gone", address=address), 5, "the router knows")
    assert await served_by(installation, 100, 20) == {"B"}
    assert not running.done.done(), "it was running all the time"
    cluster.pod("A", "A-1", ready=True)
    cluster.pod("B", "B-1", ready=True)
    assert await served_by(installation, 200, 20) == {"B"}
    await running.done
    assert running.text() == "t " * 200
    assert running.events[-1][1] == b"[DONE]"

    cluster.mesh.workers[0].kill()
    cluster.mesh.start_worker_again(0)
    cluster.pod("A", "A-2")
    await until(lambda: cluster.times_met("A") == 2, 20, "the new pod is met")
    # Gateways meet it within a second, too.
    await asyncio.sleep(2.0)
    assert await served_by(installation, 300, 20) == {"A", "B"}
