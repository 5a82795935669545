"""The handed case on more streams than a process can serve in comfort: minutes of CPU."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import CASES_FILE
from tests.support.probes import http_json, http_text
from tests.support.processes import ROOT, Mesh

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]

STREAMS = 1500
LAG = "inferway_gateway_event_loop_lag_seconds"
# The limits of time are the case's own; other work on the machine may spoil an attempt, and breaks no stream.
ATTEMPTS = 3


@case("LIF-06")
async def test_probes_are_answered_beside_many_streams(case: Any) -> None:
    """No stream breaks, the loop is hardly ever late, and a kubelet that gives a probe a second finds nothing dead."""
    worker = ["--engine", "scripted", "--scripts", str(CASES_FILE), "--max-running", str(STREAMS)]
    with Mesh(workers=[worker]) as mesh:
        for _ in range(ATTEMPTS):
            before = _lags(mesh)
            probes = await _probe_beside_streams(mesh)
            lags = {bound: count - before[bound] for bound, count in _lags(mesh).items()}
            print(f"probes: median {sorted(probes)[len(probes) // 2]:.3f} s, longest {max(probes):.3f} s; lag: {lags}")
            # A liveness probe fails when three in a row do.
            is_alive = all(min(three) < 1 for three in zip(probes, probes[1:], probes[2:], strict=False))
            if is_alive and lags["0.1"] >= 0.99 * lags["+Inf"]:
                return
        pytest.fail(f"late in each attempt, at last probes {probes} and lag {lags}")


async def _probe_beside_streams(mesh: Mesh) -> list[float]:
    """How long each probe took, in seconds, until all streams have come to their ends."""
    host, _, port = mesh.gateway.address.rpartition(":")
    arguments = ["-m", "tests.support.many_streams", host, port, str(STREAMS), "m-text", "LIF-06"]
    clients = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=asyncio.subprocess.PIPE)
    streaming = asyncio.ensure_future(clients.communicate())
    took: list[float] = []
    while not streaming.done():
        began = time.monotonic()
        status, _ = await asyncio.to_thread(http_json, mesh.url("/health"))
        took.append(time.monotonic() - began)
        assert status == 200
        await asyncio.wait([streaming], timeout=0.2)
    seen = json.loads((await streaming)[0])
    assert seen["ends"] == {}
    assert seen["whole"] == STREAMS
    return took


def _lags(mesh: Mesh) -> dict[str, float]:
    """How often the loop was late by no more than each bound."""
    lines = [line for line in http_text(mesh.url("/metrics")).splitlines() if line.startswith(f"{LAG}_bucket")]
    return {line.split('le="')[1].split('"')[0]: float(line.rsplit(" ", 1)[1]) for line in lines}
