"""Probes of the chart against what processes do: a first load that fails, a router that knows a thousand workers."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.chart import value_set
from tests.support.kubelet import live
from tests.support.probes import http_json
from tests.support.processes import Process
from tests.support.waiting import wait_until

# The kubelet's pause before a container that has ended is started anew; the first one.
_BACKOFF_S = 10


def _container(kind: str, name: str) -> dict[str, Any]:
    (container,) = value_set("minimal").one(kind, name)["spec"]["template"]["spec"]["containers"]
    found: dict[str, Any] = container
    return found


def test_a_first_load_that_fails_after_five_minutes() -> None:
    """The process is left to find out by itself; its successor has all the time again, within that of the rollout."""
    container = _container("Deployment", "worker-cpu")
    first = live(container, lambda path, _: 0.01 if path == "/health" else None, until_s=300)
    assert (first.started_at, first.killed_at) == (None, None)
    second = live(container, lambda path, at: 0.01 if path == "/health" or at >= 300 else None, until_s=900)
    assert second.killed_at is None
    (in_service,) = second.turns
    deployment = value_set("minimal").one("Deployment", "worker-cpu")["spec"]
    assert 300 + _BACKOFF_S + in_service < deployment["progressDeadlineSeconds"]


@pytest.mark.parametrize("model", ["", "GGUF and no more"], ids=["missing", "broken"])
def test_a_load_that_fails_ends_the_process(tmp_path: Path, model: str) -> None:
    """A worker without a model it can load is no process that is never ready: it ends, and says why."""
    file = tmp_path / "model.gguf"
    if model:
        file.write_text(model)
    flags = (
        "--listen",
        "127.0.0.1:0",
        "--ops-listen",
        "127.0.0.1:0",
        "--engine",
        "llamacpp",
        "--model-path",
        str(file),
    )
    with Process("worker", *flags, wait=False) as worker:
        assert worker.popen.wait(60) not in (0, None)
        assert "the engine cannot start" in worker.log_text()


def test_a_router_with_a_thousand_workers() -> None:
    """Its probes are answered in a tenth of their time limits while it tries to reach all of them."""
    container = _container("StatefulSet", "router")
    workers = ",".join(f"127.{1 + number // 250}.{number % 250}.1:50051" for number in range(1000))
    listen = ("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
    with Process("router", *listen, "--workers", workers) as router:
        ready = f"http://{router.ops_address}{container['readinessProbe']['httpGet']['path']}"
        wait_until(lambda: http_json(ready)[0] == 200, 60, "all have been tried")
        for probe in ("livenessProbe", "readinessProbe"):
            took = []
            for _ in range(10):
                began = time.perf_counter()
                status, body = http_json(f"http://{router.ops_address}{container[probe]['httpGet']['path']}")
                took.append(time.perf_counter() - began)
                assert status == 200
            assert statistics.median(took) < container[probe]["timeoutSeconds"] / 10, probe
        assert len(body["workers"]) == 1000
