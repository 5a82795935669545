"""Workers that refuse as full what somebody who does not know their load has sent them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from gateway.core.moves import PAUSES_S
from tests.support.client import send
from tests.support.json_lines import JsonLines
from tests.support.probes import http_text
from tests.support.processes import Mesh, Process, engine_load
from tests.support.raw_client import EventStream
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(60)

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
FULL = {"grpc_error": {"code": "RESOURCE_EXHAUSTED", "details": "full"}}
SCRIPTS = {
    "held": [{"text": "x"}, {"sleep_ms": 60_000}, {"finish": "stop"}],
    "full": [FULL],
    "full_a": [{"worker": "A", **FULL}],
}
ATTEMPTS = 1 + len(PAUSES_S)


@pytest.fixture
def worker(tmp_path: Path) -> list[str]:
    """Arguments of a worker with one slot."""
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    return ["--engine", "scripted", "--scripts", str(scripts), "--max-running", "1", "--max-waiting", "0"]


def refusals(gateway: Process) -> float:
    """By workers that were full; their metric comes with the first."""
    lines = http_text(f"http://{gateway.address}/metrics").splitlines()
    name = 'inferway_gateway_retries_total{reason="overloaded"} '
    return sum(float(line.removeprefix(name)) for line in lines if line.startswith(name))


@pytest.mark.parametrize("is_freed", [True, False])
async def test_gateways_without_a_router_meet_at_one_worker(worker: list[str], is_freed: bool) -> None:
    """Neither knows what the other has there: it asks again for a while, and gets the slot if it falls free."""
    with Mesh(workers=[worker], with_router=False, num_gateways=2) as mesh:
        one, other = mesh.gateways
        body = {**ASK, "stream": True}
        holder = await EventStream.open(one.address, body, headers={"X-Request-Id": "held.1"})
        await until(lambda: engine_load(mesh.workers[0]) == 1, what="the slot is taken")
        asked = asyncio.create_task(send(other.address, CHAT, body=ASK))
        await until(lambda: refusals(other) >= 1, what="the worker has refused")
        if is_freed:
            holder.close()
        answer = await asked
        if is_freed:
            assert (answer.status, answer.joined("content")) == (200, "hi")
        else:
            assert (answer.status, answer.error["code"]) == (503, "overloaded")
            assert int(answer.headers["Retry-After"]) >= 1
            assert refusals(other) == ATTEMPTS
        holder.close()


async def test_no_pause_is_longer_than_the_queue_timeout(worker: list[str]) -> None:
    """A caller who would not wait for it is answered at once."""
    with Mesh(workers=[worker], gateway_args=["--queue-timeout-s", "0.2"]) as mesh:
        answer = await send(mesh.gateway.address, CHAT, body=ASK, request_id="full.1")
        assert (answer.status, answer.error["code"]) == (503, "overloaded")
        assert refusals(mesh.gateway) == 1


async def test_embeddings_are_offered_again(worker: list[str], tmp_path: Path) -> None:
    """To every worker that was full; a single one that is not is enough."""
    records = {name: tmp_path / name for name in "AB"}
    workers = [[*worker, "--name", name, "--record", str(path)] for name, path in records.items()]

    def asked(name: str, request_id: str) -> int:
        return sum(line["request_id"] == request_id for line in JsonLines(records[name]).read())

    with Mesh(workers=workers) as mesh:
        body = {"model": "m-embed", "input": "hi"}
        ask = "POST /v1/embeddings"
        refused = await send(mesh.gateway.address, ask, body=body, request_id="full.1")
        assert (refused.status, refused.error["code"]) == (503, "overloaded")
        assert int(refused.headers["Retry-After"]) >= 1
        assert (asked("A", "full.1"), asked("B", "full.1")) == (ATTEMPTS, ATTEMPTS)
        for number in range(6):
            served = await send(mesh.gateway.address, ask, body=body, request_id=f"full_a.{number}")
            assert served.status == 200
            assert asked("A", f"full_a.{number}") <= 1
