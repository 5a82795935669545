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
from tests.support.chart import CHART
from tests.support.fronts import Front, need
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream

_SCRIPTS = """
WAIT:
  - text: a
  - sleep_ms: 3000
  - text: b
  - finish: stop
"""


def _probe(url: str, **environ: str) -> tuple[int, dict[str, object]]:
    command = [sys.executable, str(CHART / "files" / "stream_completion.py")]
    environment = {"PROBE_URL": url, "PROBE_TIMEOUT_S": "20", **environ}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return result.returncode, json.loads(result.stdout)


def test_the_probe_streams_a_completion() -> None:
    """It finds a model by itself, tells what it saw, and fails where there is no completion."""
    with Mesh() as mesh:
        status, said = _probe(mesh.url(""))
        assert (status, said["status"]) == (0, "ok"), said
        assert isinstance(said["pieces"], int)
        assert said["pieces"] >= 1
        assert said["request_id"]
        url = mesh.url("")
        status, said = _probe(url, PROBE_MODEL="no-such-model")
        assert (status, said["status"]) == (1, "failed")
        assert str(said["reason"]).startswith("404")
    status, said = _probe(url)
    assert (status, said["status"]) == (1, "failed")


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
