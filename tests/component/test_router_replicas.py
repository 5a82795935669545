"""Two routers and four gateways: a router that is killed takes no request with it, and none is served twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import pytest

from tests.support.client import Answer, send
from tests.support.json_lines import JsonLines
from tests.support.probes import http_json, metric
from tests.support.processes import Mesh, Process, engine_load
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHAT = "POST /v1/chat/completions"
# More than the workers have room for, so that some always wait in a router.
CLIENTS = 24
SLOTS = 4
# Of an answer: a step each, which takes this long.
WORDS = 5
STEP_MS = 15
WORKERS = "ab"


class Traffic:
    """Clients that ask without a pause, at each gateway in turn, one streamed answer for each whole one."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._numbers = count()
        self._is_over = False
        # By request id: what was to be said, and what came.
        self.answers: dict[str, tuple[str, Answer]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Leaving the block waits for what is still on its way."""
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._ask_on())
            yield
            self._is_over = True

    async def more(self) -> None:
        """Until everybody has had some more answers."""
        wanted = len(self.answers) + 2 * CLIENTS
        await until(lambda: len(self.answers) >= wanted, 60, f"{wanted} answers")

    async def router_dies(self, index: int) -> None:
        """It has requests waiting, which go elsewhere."""
        router = self._mesh.routers[index]
        await until(lambda: waiting(router), what="some wait in the router that is killed")
        before = self._moved()
        router.kill()
        await self.more()
        assert self._moved() > before

    def has_all_routers(self) -> bool:
        pages = [f"http://{gateway.address}/health/ready" for gateway in self._mesh.gateways]
        return all(len(http_json(page)[1]["routers"]) == len(self._mesh.routers) for page in pages)

    def _moved(self) -> int:
        """Requests that have lost the router that they waited in."""
        events = [event for gateway in self._mesh.gateways for event in gateway.events("tickets_resubmitted")]
        return sum(event["waiting"] for event in events)

    async def _ask_on(self) -> None:
        while not self._is_over:
            number = next(self._numbers)
            text = " ".join(f"{number}-{word}" for word in range(WORDS))
            body = {"model": "m-text", "messages": [{"role": "user", "content": text}], "stream": number % 2 == 0}
            # Each gateway gets both kinds.
            address = self._mesh.gateways[number // 2 % len(self._mesh.gateways)].address
            name = f"none.{number}"
            self.answers[name] = (text, await send(address, CHAT, body=body, request_id=name))


def waiting(router: Process) -> float:
    return metric(f"http://{router.ops_address}/metrics", "inferway_router_queue_requests")


def in_flight(router: Process) -> float:
    return metric(f"http://{router.ops_address}/metrics", "inferway_router_worker_requests_in_flight")


async def test_killing_either_router_loses_no_request(tmp_path: Path) -> None:
    """The one in use, again when gateways have gone back to it, and the one that stands in for it."""
    workers = []
    for name in WORKERS:
        args = ["--engine", "scripted", "--name", name, "--record", str(tmp_path / name)]
        workers.append([*args, "--step-ms", str(STEP_MS), "--max-running", str(SLOTS), "--max-waiting", str(SLOTS)])
    with Mesh(workers=workers, num_routers=2, num_gateways=4) as mesh:
        traffic = Traffic(mesh)
        async with traffic.running():
            await until(lambda: any(map(waiting, mesh.routers)), what="the model has a router")
            used, other = sorted(range(2), key=lambda index: -waiting(mesh.routers[index]))
            await traffic.more()
            await traffic.router_dies(used)
            await asyncio.to_thread(mesh.start_router_again, used)
            await until(lambda: waiting(mesh.routers[used]), what="the gateways have gone back to it")
            await traffic.more()

            await traffic.router_dies(used)
            await asyncio.to_thread(mesh.start_router_again, used)
            await until(traffic.has_all_routers, what="every gateway has both routers, and still asks the other one")
            await traffic.router_dies(other)
            await asyncio.to_thread(mesh.start_router_again, other)
            await traffic.more()

        await asyncio.to_thread(mesh.wait_ready)
        for name, (text, answer) in traffic.answers.items():
            assert answer.status == 200, (name, answer.body)
            assert answer.joined("content") == text, name
            assert answer.finish_reasons() == ["stop"], name
        reached = Counter(
            line["request_id"]
            for name in WORKERS
            for line in JsonLines(tmp_path / name).read()
            if line["event"] == "generate"
        )
        assert reached == Counter(dict.fromkeys(traffic.answers, 1))
        for router in mesh.routers:
            await until(lambda: in_flight(router) == 0, 5, "no lease is left")  # noqa: B023
            assert waiting(router) == 0
        assert [engine_load(worker) for worker in mesh.workers] == [0, 0]
        for gateway in mesh.gateways:
            assert metric(f"http://{gateway.address}/metrics", "inferway_gateway_fallback_dispatches_total") == 0
        for process in mesh.processes():
            assert "Traceback" not in process.log_text()
