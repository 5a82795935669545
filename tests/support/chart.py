"""The chart as Helm renders it."""

from __future__ import annotations

import functools
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).resolve().parents[2] / "helm" / "inferway"
VALUE_SETS = tuple(sorted(path.name.removesuffix("-values.yaml") for path in (CHART / "ci").glob("*-values.yaml")))
NAMESPACE = "prod"
# Kinds that the API server knows only where they have been installed.
CUSTOM_KINDS = ("HTTPRoute", "PodMonitor", "PrometheusRule", "ScaledObject", "ServiceMonitor")
_SERVICES = {"gateway": "gateway", "router": "router", "worker": "worker", "configuration": "front"}


def helm(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run([os.environ["HELM"], *arguments], input=stdin, capture_output=True, text=True, check=False)


@dataclass(frozen=True)
class Rendered:
    objects: tuple[dict[str, Any], ...]

    def of(self, *kinds: str) -> list[dict[str, Any]]:
        return [one for one in self.objects if one["kind"] in kinds]

    def one(self, kind: str, name: str) -> dict[str, Any]:
        (found,) = [one for one in self.of(kind) if one["metadata"]["name"] == f"mesh-inferway-{name}"]
        return found

    def pods(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The name of what makes it, and the pod's template."""
        for one in self.objects:
            name = f"{one['kind']}/{one['metadata']['name']}"
            if one["kind"] == "Pod":
                yield name, one
            elif one["kind"] == "CronJob":
                yield name, one["spec"]["jobTemplate"]["spec"]["template"]
            elif one["kind"] in ("Deployment", "StatefulSet"):
                yield name, one["spec"]["template"]

    def containers(self) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
        """The name of what makes its pod and its own, the container, and the pod's spec."""
        for name, pod in self.pods():
            spec = pod["spec"]
            for container in [*spec.get("initContainers", []), *spec["containers"]]:
                yield f"{name}/{container['name']}", container, spec

    def services(self) -> Iterator[tuple[str, str, Mapping[str, str]]]:
        """Containers that run our code: what they are called, which service it is, and its variables."""
        for name, container, _ in self.containers():
            if container["name"] in _SERVICES:
                yield name, _SERVICES[container["name"]], variables(container)


# What could stand in a Secret, for options that take no other text.
_IN_A_SECRET = {
    "INFERWAY_GATEWAY_REDIS": "redis://:secret@platform:6379",
    "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20secret",
}


def variables(container: Mapping[str, Any]) -> dict[str, str]:
    """Those of a Secret have a text that says so, or one that could be there."""
    return {
        one["name"]: one["value"] if "value" in one else _IN_A_SECRET.get(one["name"], f"from {one['valueFrom']}")
        for one in container.get("env", [])
    }


def value_set(name: str) -> Rendered:
    return _rendered(("-f", str(CHART / "ci" / f"{name}-values.yaml")))


def with_values(values: Mapping[str, Any], *flags: str, release: str = "mesh") -> Rendered:
    return _render(("-f", "-", *flags), yaml.safe_dump(dict(values)), release)


def refusal(values: Mapping[str, Any]) -> str:
    """What Helm says to values that are refused; empty when they are taken."""
    result = helm("template", "mesh", str(CHART), "-n", NAMESPACE, "-f", "-", stdin=yaml.safe_dump(dict(values)))
    return result.stderr if result.returncode else ""


@functools.cache
def _rendered(flags: tuple[str, ...]) -> Rendered:
    return _render(flags, "")


def _render(flags: tuple[str, ...], stdin: str, release: str = "mesh") -> Rendered:
    result = helm("template", release, str(CHART), "-n", NAMESPACE, *flags, stdin=stdin)
    assert result.returncode == 0, result.stderr
    return Rendered(tuple(one for one in yaml.safe_load_all(result.stdout) if one))
