"""The weight of a tenant, from the gateway's file to the order in which its requests reach the engine."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path

import pytest

from tests.support.client import Answer, send
from tests.support.json_lines import JsonLines
from tests.support.probes import metric
from tests.support.processes import Mesh
from tests.support.waiting import until

CHAT = "POST /v1/chat/completions"

SCRIPTS = """
- id: HOLD
  engine_script: [{sleep_ms: 5000}, {text: held}, {finish: stop}]
- id: SHORT
  engine_script: [{text: a}, {finish: stop}]
"""


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.timeout(120)
async def test_a_heavy_tenant_gets_more_of_what_comes_free(tmp_path: Path) -> None:
    """While one slot is held, two tenants send alike; then the one of weight 4 has four of five."""
    (tmp_path / "scripts.yaml").write_text(SCRIPTS)
    (tmp_path / "tenants.yaml").write_text(
        f"tenants: {{light: {{keys: {{k: {{sha256: {digest('light')}}}}}}}, "
        f"heavy: {{weight: 4, keys: {{k: {{sha256: {digest('heavy')}}}}}}}}}"
    )
    record = tmp_path / "record.jsonl"
    worker = ["--engine", "scripted", "--scripts", str(tmp_path / "scripts.yaml"), "--record", str(record)]
    worker += ["--max-running", "1", "--max-waiting", "0"]
    gateway = ["--tenants", str(tmp_path / "tenants.yaml"), "--queue-timeout-s", "60"]
    with Mesh(workers=[worker], gateway_args=gateway) as mesh:

        async def ask(tenant: str, request_id: str) -> Answer:
            body = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
            headers = {"Authorization": f"Bearer {tenant}"}
            return await send(mesh.gateway.address, CHAT, body=body, headers=headers, request_id=request_id)

        def num_waiting() -> float:
            return metric(f"http://{mesh.router.ops_address}/metrics", "inferway_router_queue_requests")

        holder = asyncio.create_task(ask("light", "HOLD.1"))
        lines = JsonLines(record)
        await until(lambda: any(line["request_id"] == "HOLD.1" for line in lines.read()), what="the slot is held")
        tenants = ["light", "heavy"] * 10
        others = [asyncio.create_task(ask(tenant, f"SHORT.{tenant}.{n}")) for n, tenant in enumerate(tenants)]
        await until(lambda: num_waiting() == len(others), what="all others wait")
        answers = await asyncio.gather(holder, *others)
        assert {answer.status for answer in answers} == {200}
        served = [line["request_id"].split(".")[1] for line in lines.read() if line["event"] == "generate"][1:]
        # Rounded by who came first.
        assert 7 <= served[:10].count("heavy") <= 9
