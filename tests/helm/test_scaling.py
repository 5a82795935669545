"""A pool that is scaled to zero: what its ScaledObject asks a real Prometheus follows the requests of a real mesh."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.core.naming import parse_models
from tests.support.asleep import asleep
from tests.support.chart import NAMESPACE, Rendered, value_set, with_values
from tests.support.prometheus import Prometheus, needs_prometheus
from tests.support.waiting import until

_POOL: dict[str, Any] = {
    "name": "chat",
    "engine": "scripted",
    "autoscaling": {"minReplicas": 0, "keda": {"enabled": True, "models": ["m-text"]}},
}
# As the Deployment of the pool names them.
_POD = "mesh-inferway-worker-chat-6c9f7d8b5-x2x4z"


def _models(rendered: Rendered) -> Any:
    (config,) = [one for one in rendered.of("ConfigMap") if one["metadata"]["name"] == "mesh-inferway-gateway"]
    return yaml.safe_load(config["data"]["models.yaml"])


def test_models_of_sleeping_pools_are_waited_for() -> None:
    """Gateways are told which models may be without workers; what the values say of a model stays, and goes first."""
    naming = parse_models(_models(value_set("everything-on")))
    assert naming.wait_s("llama-3.1-8b") == 300
    assert naming.aliases == {"chat": {"llama-3.1-8b": 1}}
    pool = {
        **_POOL,
        "autoscaling": {**_POOL["autoscaling"], "keda": {**_POOL["autoscaling"]["keda"], "wakeTimeoutS": 99}},
    }
    limits = {"limits": {"max_choices": 2}}
    assert _models(with_values({"workers": [pool]})) == {"models": {"m-text": {"wait_for_workers_s": 99}}}
    given = {"gateway": {"models": {"models": {"m-text": {**limits, "wait_for_workers_s": 50}}}}, "workers": [pool]}
    assert _models(with_values(given)) == given["gateway"]["models"]
    awake = {**_POOL, "autoscaling": {**_POOL["autoscaling"], "minReplicas": 1}}
    assert with_values({"workers": [awake]}).of("ConfigMap") != []
    gateway = with_values({"workers": [awake]}).one("Deployment", "gateway")["spec"]["template"]["spec"]
    assert "models" not in {volume["name"] for volume in gateway["volumes"]}


@pytest.mark.parametrize(
    ("least", "fallback", "expected"),
    [
        (0, {}, {"failureThreshold": 6, "replicas": 1}),
        (3, {}, {"failureThreshold": 6, "replicas": 3}),
        (0, {"replicas": 2, "failureThreshold": 0}, {"failureThreshold": 0, "replicas": 2}),
        (1, {"behavior": ""}, {"failureThreshold": 6, "replicas": 1}),
        (0, {"enabled": False}, None),
    ],
    ids=["from zero", "from three", "as it is said", "an older KEDA", "off"],
)
def test_a_pool_serves_while_prometheus_is_away(
    least: int, fallback: dict[str, Any], expected: dict[str, Any] | None
) -> None:
    """Nobody is scaled to nothing or to less for want of figures, and a pool that sleeps gets a worker."""
    keda = {**_POOL["autoscaling"]["keda"], "fallback": fallback}
    scaled = with_values({"workers": [{**_POOL, "autoscaling": {"minReplicas": least, "keda": keda}}]})
    spec = scaled.one("ScaledObject", "worker-chat")["spec"]
    if expected is not None and "behavior" not in fallback:
        expected = {"behavior": "currentReplicasIfHigher", **expected}
    assert spec.get("fallback") == expected


@needs_prometheus
@pytest.mark.timeout(300)
async def test_the_scaler_sees_who_waits(tmp_path: Path) -> None:
    """0 without requests; above it while one waits though no worker exists, and while a worker answers it. Where one
    of the services is not seen there is no answer."""
    scaled = with_values({"workers": [_POOL]}).one("ScaledObject", "worker-chat")["spec"]
    assert scaled["minReplicaCount"] == 0
    assert {trigger["metadata"]["ignoreNullValues"] for trigger in scaled["triggers"]} == {"false"}
    requests, prefill = (trigger["metadata"]["query"] for trigger in scaled["triggers"])
    with asleep(tmp_path) as mesh:
        await until(mesh.is_ready, what="the gateway takes requests")
        (tmp_path / "blind").mkdir()
        with Prometheus(tmp_path / "blind", {"gateway": [mesh.gateway.address]}, {"namespace": NAMESPACE}) as blind:
            await until(lambda: blind.query("up == 1"), 30, "it scrapes")
            # Nobody knows what waits in routers: that is an error for KEDA, and not 0.
            assert blind.query(requests) == blind.query(prefill) == []
        targets = {"gateway": [mesh.gateway.address], "router": [mesh.router.ops_address]}
        with Prometheus(tmp_path, targets, {"namespace": NAMESPACE}) as prometheus:

            def demand() -> float:
                ((_, value),) = [series["value"] for series in prometheus.query(requests)]
                return float(value)

            await until(lambda: len(prometheus.query("up == 1")) == 2, 30, "it scrapes")
            assert demand() == 0
            assert float(prometheus.query(prefill)[0]["value"][1]) == 0
            waiting = [asyncio.create_task(mesh.ask()) for _ in range(3)]
            await until(lambda: demand() == 3, 30, "they are seen")
            script = [{"text": "t ", "repeat": 400, "gap_ms": 50}, {"finish": "stop"}]
            scripts = tmp_path / "scripts.yaml"
            scripts.write_text(yaml.safe_dump({"slow": script}))
            with mesh.worker("--name", _POD, "--scripts", str(scripts)):
                assert [answer.status for answer in await asyncio.gather(*waiting)] == [200] * 3
                # The pool is kept while a worker answers, known by the names that its pods have.
                slow = asyncio.create_task(mesh.ask(request_id="slow.1"))
                in_flight = "(" + requests.split(" + (")[1]
                await until(lambda: prometheus.query(in_flight)[0]["value"][1] == "1", 30, "it is answered")
                slow.cancel()
