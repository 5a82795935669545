"""docker-compose.yml on a real engine, with ports and a project of its own, and without a trace when it is over."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import yaml

from tests.support.valkey import free_port
from tests.support.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
COMPOSE = CHECKOUT / "docker-compose.yml"
_SLOW_WORKER = CHECKOUT / "tests/containers/slow-worker.yaml"
_FIGURES = os.environ.get("INFERWAY_FIGURES", os.devnull)
# What starts everything may take on a machine that is busy with other things.
_START_S = 240


def services() -> dict[str, Any]:
    """Those of docker-compose.yml, its anchors resolved and nothing else."""
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def figure(text: str) -> None:
    """A line for the end of the run."""
    with open(_FIGURES, "a") as file:
        file.write(f"{text}\n")


def has_image(name: str) -> bool:
    return subprocess.run([_docker(), "image", "inspect", name], capture_output=True, check=False).returncode == 0


def _docker() -> str:
    return os.environ.get("DOCKER", "docker")


class Mesh:
    """`address` is Envoy's, `prometheus` and `grafana` are URLs, `key` is the first key of callers."""

    def __init__(self) -> None:
        ports = {name: str(free_port()) for name in ("INFERWAY_PORT", "PROMETHEUS_PORT", "GRAFANA_PORT")}
        self.address = f"127.0.0.1:{ports['INFERWAY_PORT']}"
        self.prometheus = f"http://127.0.0.1:{ports['PROMETHEUS_PORT']}"
        self.grafana = f"http://127.0.0.1:{ports['GRAFANA_PORT']}"
        self._environ = os.environ | ports | {"COMPOSE_PROJECT_NAME": f"inferway-test-{os.getpid()}"}
        started = {name: one for name, one in services().items() if "profiles" not in one}
        absent = {name for name, one in started.items() if not has_image(one["image"])}
        assert absent <= {"grafana"}, f"no images of {absent}: make test-containers makes them"
        self.has_grafana = not absent
        self._started = [*sorted(set(started) - absent), "slow"]

    def __enter__(self) -> Mesh:
        started = time.monotonic()
        try:
            self.compose("up", "-d", "--no-build", *self._started, timeout_s=_START_S)
            wait_until(lambda: set(self.health().values()) == {"healthy"}, _START_S, f"healthy: {self.health()}")
        except BaseException:
            print(self.compose("logs", "--no-color", "--tail", "30", check=False))
            self.__exit__()
            raise
        figure(f"{len(self._started)} services from nothing to all healthy: {time.monotonic() - started:.1f} s")
        figure(f"memory of all of them, idle: {self._memory_mib():.0f} MiB")
        self.key = self.compose("exec", "-T", "gateway", "cat", "/etc/inferway/secrets/api-key")
        return self

    def __exit__(self, *_exc: object) -> None:
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "20", timeout_s=_START_S, check=False)

    def compose(self, *arguments: str, timeout_s: float = 60.0, check: bool = True) -> str:
        """What docker-compose writes to its standard output."""
        files = ("--file", str(COMPOSE), "--file", str(_SLOW_WORKER), "--project-directory", str(CHECKOUT))
        done = subprocess.run(
            ["docker-compose", *files, *arguments],
            env=self._environ,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _memory_mib(self) -> float:
        containers = self.compose("ps", "--quiet").split()
        told = subprocess.run(
            [_docker(), "stats", "--no-stream", "--format", "{{.MemUsage}}", *containers],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        units = {"B": 1 / 2**20, "KiB": 1 / 2**10, "MiB": 1.0, "GiB": 2.0**10}
        found = (re.match(r"([0-9.]+)([A-Za-z]+) /", line) for line in told.splitlines())
        return sum(float(used[1]) * units[used[2]] for used in found if used)

    def kill(self, service: str) -> None:
        """SIGKILL to what runs in the container, as the kernel does where memory is short. The container then ends."""
        self.compose("exec", "-T", service, "python3", "-c", "import os; os.kill(-1, 9)", check=False)

    def inspect(self, service: str) -> dict[str, Any]:
        """The engine's own words about the container of a service."""
        container = self.compose("ps", "--quiet", service).strip()
        done = subprocess.run([_docker(), "inspect", container], capture_output=True, check=True)
        found: dict[str, Any] = json.loads(done.stdout)[0]
        return found

    def health(self) -> dict[str, str]:
        """What health checks say, of the services that have one."""
        states = {
            name: self.inspect(name)["State"] for name in self._started if "healthcheck" in services().get(name, {})
        }
        return {name: state["Health"]["Status"] for name, state in states.items()}

    def ready(self) -> dict[str, Any]:
        """The body of the gateway's /health/ready, which is not reachable from outside."""
        code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/health/ready').read().decode())"
        body: dict[str, Any] = json.loads(self.compose("exec", "-T", "gateway", "python3", "-c", code))
        return body
