"""The scripts that pods run, against real processes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

from inferway.cli.ports import free_ports
from tests.cases.support import first_event
from tests.support.chart import CHART, variables, with_values
from tests.support.fronts import Front, need
from tests.support.processes import ROOT, Mesh
from tests.support.raw_client import EventStream

_SCRIPTS = """
WAIT:
  - text: a
  - sleep_ms: 3000
  - text: b
  - finish: stop
"""


def test_the_probe_streams_a_completion() -> None:
    """The command of the rendered pods, with their variables, against a mesh that listens where the front would."""
    rendered = with_values({"probe": {"cronJob": {"enabled": True}}})
    probes = [container for _, container, _ in rendered.containers() if container["name"] == "probe"]
    assert len(probes) == 2  # helm test, and the CronJob
    with Mesh() as mesh:
        for probe in probes:
            python, *command = probe["command"]
            assert python == "python"
            front = command.index("http://mesh-inferway-front:80")
            command[front] = mesh.url("")
            environment = {**os.environ, **variables(probe), "INFERWAY_PROBE_KEY": "sk-any"}
            result = subprocess.run(
                [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
            )
            said = json.loads(result.stdout)
            assert (result.returncode, said["ok"], said["reason"]) == (0, True, "")


async def test_envoy_is_drained(tmp_path: Path) -> None:
    """The script that runs before Envoy is stopped ends when no request runs any more, and cuts none."""
    need("envoy")
    scripts = tmp_path / "scripts.yaml"
    scripts.write_text(_SCRIPTS)
    admin = free_ports({"admin": 0})["admin"]
    workers = [["--engine", "scripted", "--scripts", str(scripts)]]
    with (
        Mesh(workers=workers) as mesh,
        Front("envoy", tmp_path, [mesh.gateway.address], "--admin", f"127.0.0.1:{admin}") as front,
    ):
        body = {"model": "m-text", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
        stream = await EventStream.open(front.address, body, headers={"X-Request-Id": "WAIT.1"})
        await first_event(stream)
        script = str(CHART / "files" / "drain_envoy.sh")
        environ = {**os.environ, "ADMIN_PORT": str(admin)}
        drain = await asyncio.create_subprocess_exec("bash", script, "0", "60", env=environ)
        async with asyncio.timeout(60):
            assert await drain.wait() == 0
        # It had to wait for the end of the stream, and no longer.
        assert stream.events[-1][1] == b"[DONE]"
        stream.close()
