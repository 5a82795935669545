"""Heartbeats fill silence, and never stand in the way of a refusal's own status."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.client import send
from tests.support.processes import Mesh

pytestmark = pytest.mark.timeout(60)


async def test_a_refusal_at_once_has_its_status_however_short_the_heartbeat(tmp_path: Path) -> None:
    """Some of many requests begin just before a tick of the gateway's clock."""
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps({"broken": [{"sleep_ms": 20}, {"grpc_error": {"code": "INTERNAL", "details": "x"}}]}))
    worker = ["--engine", "scripted", "--scripts", str(scripts)]
    body = {"model": "m-text", "stream": True, "messages": [{"role": "user", "content": "hi"}]}

    async def refused(place: int, address: str) -> int:
        await asyncio.sleep(place * 0.01)
        answer = await send(address, "POST /v1/chat/completions", body=body, request_id=f"broken.{place}")
        return answer.status

    # A router that took the only worker out of service would make the others wait for it.
    trusting = ["--breaker-failures", "0"]
    with Mesh(workers=[worker], gateway_args=["--heartbeat-s", "0.1"], router_args=trusting) as mesh:
        statuses = await asyncio.gather(*(refused(place, mesh.gateway.address) for place in range(100)))
    assert set(statuses) == {500}
