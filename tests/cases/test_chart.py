"""Handed cases on what the chart renders."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from inferway.cli.ports import free_ports
from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import ASK, first_event
from tests.support.chart import CHART, Rendered, refusal, value_set, with_values
from tests.support.kubelet import live
from tests.support.probes import http_json, http_text, metric
from tests.support.processes import Process
from tests.support.waiting import until

needs_helm = pytest.mark.skipif(not os.environ.get("HELM"), reason="HELM names no Helm: `make helm-test` brings it")


def _worker(rendered: Rendered, pool: str) -> dict[str, Any]:
    container: dict[str, Any] = rendered.one("Deployment", f"worker-{pool}")["spec"]["template"]["spec"]["containers"][
        0
    ]
    return container


@needs_helm
@case("HLM-01")
def test_probes_of_workers(case: Any) -> None:
    """A slow load is no fault: the startup probe waits half an hour, by values, and no other has a fixed delay."""
    container = _worker(value_set("minimal"), "cpu")
    startup = container["startupProbe"]
    assert startup["failureThreshold"] * startup["periodSeconds"] >= 30 * 60
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert "initialDelaySeconds" not in container[probe]
        assert container[probe]["timeoutSeconds"] > 1
    probes = {"startup": {"failureThreshold": 7, "periodSeconds": 11, "timeoutSeconds": 13}}
    startup = _worker(with_values({"workers": [{"name": "a", "probes": probes}]}), "a")["startupProbe"]
    assert (startup["failureThreshold"], startup["periodSeconds"], startup["timeoutSeconds"]) == (7, 11, 13)


@needs_helm
@case("HLM-03")
def test_where_a_model_is_downloaded(case: Any) -> None:
    """An init container downloads to the claim that the worker then reads; the worker itself has no start hook."""
    pod = value_set("gpu-pool").one("Deployment", "worker-llama-70b")["spec"]["template"]["spec"]
    (download,), (worker,) = pod["initContainers"], pod["containers"]
    assert "lifecycle" not in worker
    assert _claims(pod, download) == _claims(pod, worker) == {"models": "models"}
    environ = {one["name"]: one.get("value") for one in download["env"]}
    assert environ["MODEL_REPOSITORY"] == "meta-llama/Llama-3.1-70B-Instruct"
    model_path = next(one["value"] for one in worker["env"] if one["name"] == "INFERWAY_WORKER_MODEL_PATH")
    assert environ["MODEL_FOLDER"] == model_path


def _claims(pod: dict[str, Any], container: dict[str, Any]) -> dict[str, str]:
    claims = {
        volume["name"]: volume["persistentVolumeClaim"]["claimName"]
        for volume in pod["volumes"]
        if "persistentVolumeClaim" in volume
    }
    return {one["name"]: claims[one["name"]] for one in container["volumeMounts"] if one["name"] in claims}


# In place of the library: fails at the first attempt, after a file has come, and counts.
_LIBRARY = """
import pathlib

def snapshot_download(*, repo_id, revision, local_dir):
    folder = pathlib.Path(local_dir)
    calls = folder.parent / "calls"
    calls.write_text((calls.read_text() if calls.exists() else "") + f"{repo_id}@{revision}\\n")
    (folder / "config.json").write_text("{}")
    if len(calls.read_text().splitlines()) == 1:
        raise ConnectionError("the connection was cut")
    (folder / "model.safetensors").write_text("weights")
"""


@case("HLM-03")
def test_a_download_that_fails_once(case: Any, tmp_path: Path) -> None:
    """It is told, tried again, and keeps what has come; a folder that is whole is not downloaded again."""
    (tmp_path / "library").mkdir()
    (tmp_path / "library" / "huggingface_hub.py").write_text(_LIBRARY)
    folder = tmp_path / "claim" / "qwen"
    environ = {
        "PYTHONPATH": str(tmp_path / "library"),
        "MODEL_REPOSITORY": "Qwen/Qwen3-8B",
        "MODEL_REVISION": "main",
        "MODEL_FOLDER": str(folder),
        "MODEL_ATTEMPTS": "3",
        "MODEL_PAUSE_S": "0.01",
    }

    def download(**changes: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(CHART / "files" / "download_model.py")]
        return subprocess.run(command, env={**environ, **changes}, capture_output=True, text=True, check=False)

    first = download()
    assert first.returncode == 0, first.stderr
    assert "attempt 1 of 3 failed: ConnectionError: the connection was cut" in first.stderr
    assert {path.name for path in folder.iterdir()} >= {"config.json", "model.safetensors"}
    calls = folder.parent / "calls"
    assert len(calls.read_text().splitlines()) == 2
    assert download().returncode == 0
    assert len(calls.read_text().splitlines()) == 2, "it is whole"
    assert download(MODEL_REVISION="v2").returncode == 0
    assert len(calls.read_text().splitlines()) == 3, "another revision is another model"
    calls.unlink()
    failed = download(MODEL_REVISION="v3", MODEL_ATTEMPTS="1")
    assert failed.returncode == 1
    assert "ConnectionError" in failed.stderr


@needs_helm
@case("HLM-04")
def test_scalers(case: Any) -> None:
    """Replicas are the scaler's where there is one; one at most, which counts what waits and goes down slowly."""
    assert value_set("minimal").one("Deployment", "worker-cpu")["spec"]["replicas"] == 1
    rendered = value_set("everything-on")
    for name in ("gateway", "worker-llama-8b", "worker-cpu"):
        assert "replicas" not in rendered.one("Deployment", name)["spec"]
    both = {"hpa": {"enabled": True}, "keda": {"enabled": True, "models": ["m"]}}
    assert "cannot both be enabled" in refusal({"workers": [{"name": "a", "autoscaling": both}]})
    assert refusal({"workers": [{"name": "a", "autoscaling": {**both, "keda": {"enabled": False}}}]}) == ""

    hpa = rendered.one("HorizontalPodAutoscaler", "worker-cpu")["spec"]
    metrics = {one["pods"]["metric"]["name"] for one in hpa["metrics"]}
    assert metrics == {"inferway_worker_num_requests_running", "inferway_worker_num_requests_waiting"}
    scaled = rendered.one("ScaledObject", "worker-llama-8b")["spec"]
    assert scaled["minReplicaCount"] == 0
    query = scaled["triggers"][0]["metadata"]["query"]
    assert "inferway_router_queue_requests" in query
    assert "inferway_router_worker_requests_in_flight" in query
    for name, behavior in (
        ("worker-cpu", hpa["behavior"]),
        ("worker-llama-8b", scaled["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]),
    ):
        pod = rendered.one("Deployment", name)["spec"]["template"]["spec"]
        assert behavior["scaleDown"]["stabilizationWindowSeconds"] >= 300
        (policy,) = behavior["scaleDown"]["policies"]
        assert (policy["type"], policy["value"]) == ("Pods", 1)
        assert policy["periodSeconds"] >= pod["terminationGracePeriodSeconds"]


@needs_helm
@case("HLT-03")
def test_slow_probes(case: Any) -> None:
    """Every probe has its own time limit and threshold, and two answers of 1.5 s, or none twice, change nothing."""
    rendered = value_set("minimal")
    for name, container, _ in rendered.containers():
        for kind in ("livenessProbe", "readinessProbe"):
            if kind in container:
                assert container[kind]["timeoutSeconds"] > 1.5, name
                assert container[kind]["failureThreshold"] >= 3, name
        if "startupProbe" in container and "httpGet" in container["startupProbe"]:
            life = live(container, _slow, until_s=600)
            assert life.killed_at is None, name
            assert len(life.turns) == 1, "it stays in service"
    values = {"gateway": {"probes": {"readiness": {"timeoutSeconds": 9, "failureThreshold": 8}}}}
    gateway = with_values(values).one("Deployment", "gateway")["spec"]["template"]["spec"]["containers"][0]
    assert gateway["readinessProbe"]["timeoutSeconds"] == 9
    assert gateway["readinessProbe"]["failureThreshold"] == 8


def _slow(path: str, at: float) -> float | None:
    """Slow for a minute, and then away for as long as two looks of any probe take."""
    if 100 <= at < 160:
        return 1.5
    return None if 200 <= at < 209 else 0.01


# Asks two pages in turn, and says how long each took: away from the loop that reads the streams.
_ASK_IN_TURN = """
import json, sys, time, urllib.request

def ask(url):
    began = time.perf_counter()
    with urllib.request.urlopen(url, timeout=20) as response:
        assert response.status == 200
        response.read()
    return time.perf_counter() - began

print(json.dumps([[ask(url) for url in sys.argv[1:]] for _ in range(20)]))
"""


async def _ask_in_turn(*urls: str) -> list[list[float]]:
    """Twenty times how long each page took."""
    command = [sys.executable, "-c", _ASK_IN_TURN, *urls]
    result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=True)
    rounds: list[list[float]] = json.loads(result.stdout)
    return rounds


@case("HLT-03")
async def test_liveness_of_a_busy_gateway(case: Any, installation: Installation) -> None:
    """With 500 streams a gateway says within 100 ms that it lives: most of twenty times, in one of three tries.

    What an idle process takes to answer on this machine, in the same moments, is not the gateway's.
    """
    body = {**ASK, "stream": True}
    streams = [await installation.open(body, f"LIF-06.{number}") for number in range(500)]
    try:
        for stream in streams:
            await first_event(stream)
        port = free_ports({"idle": 0})["idle"]
        idle = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "--directory", str(CHART / "ci")]
        with subprocess.Popen(idle, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                url = f"http://127.0.0.1:{port}/"
                await until(lambda: _answers(url), what="the idle process serves")
                medians: list[float] = []
                while len(medians) < 3 and min(medians, default=1.0) >= 0.1:
                    assert metric(installation.mesh.url("/metrics"), "inferway_gateway_requests_in_flight") >= 500
                    rounds = await _ask_in_turn(installation.mesh.url("/health"), url)
                    medians.append(statistics.median(gateway - other for gateway, other in rounds))
                assert min(medians) < 0.1, medians
            finally:
                process.terminate()
    finally:
        for stream in streams:
            stream.close()


def _answers(url: str) -> bool:
    try:
        return bool(http_text(url))
    except OSError:
        return False


@case("HLT-03")
async def test_liveness_asks_nobody(case: Any) -> None:
    """Whoever a gateway could ask takes the connection and says nothing: Redis, router and worker. It lives."""
    with ExitStack() as held:
        silent = [held.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
        redis, router, worker = (f"127.0.0.1:{one.getsockname()[1]}" for one in silent)
        others = ("--redis", f"redis://{redis}", "--gateways", "1", "--routers", router, "--workers", worker)
        with await asyncio.to_thread(Process, "gateway", "--listen", "127.0.0.1:0", *others) as gateway:
            page = f"http://{gateway.address}"
            took = [one for (one,) in await _ask_in_turn(f"{page}/health")]
            assert statistics.median(took) < 0.1, took
            status, ready = http_json(f"{page}/health/ready")
            assert (status, ready["workers"], ready["routers"]) == (503, 0, [])
