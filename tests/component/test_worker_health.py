"""Workers that die, come back and are tried; prompts that kill; callers that choose: with real processes."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import Answer, send
from tests.support.json_lines import JsonLines
from tests.support.probes import metric
from tests.support.processes import Mesh, Process, engine_load
from tests.support.raw_client import EventStream
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CHAT = "POST /v1/chat/completions"
# For ids that are used once.
_NUMBERS = count()
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "two_seconds": [{"sleep_ms": 2000}, {"text": "x"}, {"finish": "stop"}],
    "silent": [{"sleep_ms": 60_000}, {"text": "x"}, {"finish": "stop"}],
    "wrong_size": [{"capability": {"matryoshka": False}}],
    "out_of_time": [{"text": "x", "repeat": 100, "gap_ms": 100}, {"finish": "stop"}],
}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scripts") / "scripts.json"
    path.write_text(json.dumps(SCRIPTS))
    return str(path)


class Fleet:
    """Scripted workers A, B, ... that keep records, with a router and a gateway."""

    def __init__(self, scripts: str, folder: Path, names: str, *worker_args: str, **mesh: Any) -> None:
        self.names = names
        self._records = {name: JsonLines(folder / f"{name}.jsonl") for name in names}
        engine = ["--engine", "scripted", "--scripts", scripts, *worker_args]
        workers = [[*engine, "--name", name, "--record", str(folder / f"{name}.jsonl")] for name in names]
        self.mesh = Mesh(workers=workers, **mesh)

    def __enter__(self) -> Fleet:
        self.mesh.__enter__()
        return self

    def __exit__(self, *exc: Any) -> None:
        self.mesh.__exit__(*exc)

    @property
    def router(self) -> Process:
        assert self.mesh.router is not None
        return self.mesh.router

    def saw(self, name: str, request_id: str = "") -> list[dict[str, Any]]:
        """The Generates that reached a worker's engine."""
        lines = self._records[name].read()
        return [line for line in lines if line["event"] == "generate" and line["request_id"].startswith(request_id)]

    def breaker(self, name: str, state: str) -> bool:
        page = f"http://{self.router.ops_address}/metrics"
        return metric(page, f'inferway_router_worker_breaker{{state="{state}",worker="{name}"}}') == 1

    def slots(self, name: str) -> float:
        page = f"http://{self.router.ops_address}/metrics"
        return metric(page, f'inferway_router_worker_slots{{worker="{name}"}}')

    async def ask(
        self, request_id: str, http: str = CHAT, headers: dict[str, str] | None = None, **body: Any
    ) -> Answer:
        fields = {**ASK, **body} if http == CHAT else body
        return await send(self.mesh.gateway.address, http, body=fields, request_id=request_id, headers=headers)


@asynccontextmanager
async def keep_asking(fleet: Fleet, callers: int, script: str) -> AsyncIterator[list[int]]:
    """So many callers, each of whom asks again as soon as it has its answer; yields the statuses so far."""
    statuses: list[int] = []

    async def caller(number: int) -> None:
        while True:
            statuses.append((await fleet.ask(f"{script}.{number}", messages=_prompt(number))).status)

    tasks = [asyncio.create_task(caller(number)) for number in range(callers)]
    try:
        yield statuses
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with suppress(asyncio.CancelledError):
                await task


def _prompt(number: int) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"question {number}"}]


def seconds(line: dict[str, Any]) -> float:
    """When a line was logged."""
    return datetime.fromisoformat(line["time"]).timestamp()


async def test_a_killed_worker_is_left_alone_and_comes_back_slowly(scripts: str, tmp_path: Path) -> None:
    """Within a second nobody is sent there any more; on its return it serves within 5 s, and is not flooded.

    A hundred callers wait for two workers of 45 places each, so all of its places would be taken at once.
    """
    limits = {"gateway_args": ["--queue-timeout-s", "30"], "router_args": ["--slow-start-s", "10"]}
    with Fleet(scripts, tmp_path, "AB", "--max-running", "40", **limits) as fleet:
        retries = fleet.mesh.url("/metrics")
        async with keep_asking(fleet, 100, "two_seconds") as statuses:
            await until(lambda: len(fleet.saw("A")) >= 40 and len(fleet.saw("B")) >= 40, 20, "both are busy")
            fleet.mesh.workers[0].kill()
            await asyncio.sleep(1.0)
            moved = metric(retries, "inferway_gateway_retries_total")
            before, seen = len(statuses), len(fleet.saw("A"))
            await until(lambda: len(statuses) >= before + 60, 20, "the other one serves on")
            assert metric(retries, "inferway_gateway_retries_total") == moved > 0
            assert len(fleet.saw("A")) == seen

            # The other one is past its own slow start.
            await until(lambda: fleet.slots("B") == 45, 20, "it is warm")
            await asyncio.to_thread(fleet.mesh.start_worker_again, 0)
            await until(lambda: len(fleet.saw("A")) > seen, 5, "it serves again")
            (returned,) = (line for line in fleet.router.events("worker_ready")[2:] if line["worker_id"] == "A")
            await asyncio.sleep(2.0)
            begun = fleet.saw("A")[seen]["time"]
            first = [line for line in fleet.saw("A")[seen:] if line["time"] <= begun + 1.0]
            # Each of them runs for two seconds, so all of these run side by side.
            share = 0.1 + 0.9 * (begun + 1.0 - seconds(returned)) / 10.0
            # The share grows in steps of two places, and the clocks are those of two processes.
            assert len(first) <= 45 * min(1.0, share) + 2
            assert len(first) < 45, "and not all of its places"
        assert set(statuses) == {200}


async def test_a_prompt_that_kills_gets_two_workers(scripts: str, tmp_path: Path) -> None:
    """The third never sees it, whoever sends it again; every other prompt is served."""
    with Fleet(scripts, tmp_path, "ABC") as fleet:
        victim = await EventStream.open(
            fleet.mesh.gateway.address, {**ASK, "stream": True}, headers={"X-Request-Id": "silent.x"}
        )
        killed: list[str] = []
        for count in (1, 2):
            await until(
                lambda: any(fleet.saw(name, "silent") for name in set(fleet.names) - set(killed)),
                20,
                f"worker {count} has it",
            )
            (name,) = (name for name in fleet.names if name not in killed and fleet.saw(name, "silent"))
            killed.append(name)
            fleet.mesh.workers[fleet.names.index(name)].kill()
        await asyncio.wait_for(victim.done, 20)
        assert victim.status == 500
        assert victim.header("x-should-retry") == "false"
        again = await fleet.ask("silent.y")
        assert again.status == 500
        assert again.error["code"] == "worker_failed"
        assert "two workers" in again.error["message"]
        assert again.headers["x-should-retry"] == "false"
        assert (await fleet.ask("other", messages=_prompt(1))).status == 200
        (left,) = set(fleet.names) - set(killed)
        assert not fleet.saw(left, "silent")
        assert metric(f"http://{fleet.router.ops_address}/metrics", "inferway_router_quarantined_prompts") == 1


async def test_what_callers_do_wrong_is_no_fault_of_a_worker(scripts: str, tmp_path: Path) -> None:
    """Embeddings that are refused for their size, and answers that run into the caller's deadline."""
    with Fleet(scripts, tmp_path, "A", gateway_args=["--request-deadline-s", "0.5"]) as fleet:
        for _ in range(6):
            fields = {"model": "m-embed", "input": "a", "dimensions": 4}
            assert (await fleet.ask("wrong_size.x", "POST /v1/embeddings", **fields)).status == 400
        answers = await asyncio.gather(*(fleet.ask(f"out_of_time.{number}", stream=True) for number in range(6)))
        assert {answer.error["code"] for answer in answers} == {"upstream_timeout"}
        await until(lambda: engine_load(fleet.mesh.workers[0]) == 0, 5, "they are over")
        assert fleet.breaker("A", "closed")


@pytest.fixture(scope="module", params=["with a router", "without a router"])
def choosing(request: pytest.FixtureRequest, scripts: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    folder = tmp_path_factory.mktemp("choosing")
    has_router = request.param == "with a router"
    with Fleet(scripts, folder, "AB", gateway_args=["--choose-workers"], with_router=has_router) as fleet:
        yield fleet


@pytest.mark.parametrize(
    ("headers", "worker"),
    [
        ({"x-inferway-worker": "A"}, "A"),
        ({"X-Inferway-Worker": "B"}, "B"),
        ({"x-inferway-exclude-workers": "B"}, "A"),
    ],
)
async def test_a_caller_chooses(choosing: Fleet, headers: dict[str, str], worker: str) -> None:
    """The one that is asked for, or one of those that are left, for whatever prompt, chat and embeddings alike."""
    (other,) = set(choosing.names) - {worker}
    before = len(choosing.saw(other))
    for number in range(8):
        answer = await choosing.ask(f"chosen.{number}", messages=_prompt(number), headers=headers)
        assert answer.status == 200
    assert len(choosing.saw(other)) == before
    fields = {"model": "m-embed", "input": "a"}
    request_id = f"chosen.embed.{next(_NUMBERS)}"
    answer = await choosing.ask(request_id, "POST /v1/embeddings", headers=headers, **fields)
    assert answer.status == 200

    def logged() -> list[str]:
        lines = choosing.mesh.gateway.events("request")
        return [line["worker_id"] for line in lines if line["request_id"] == request_id]

    await until(logged, 5, "the request's line")
    assert logged() == [worker]


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"x-inferway-worker": "Z"}, 400, "No worker 'Z' serves the model 'm-text'; those that do: A, B."),
        ({"x-inferway-exclude-workers": "A,Z"}, 400, "There is no worker 'Z' to be excluded."),
        ({"x-inferway-worker": "A", "x-inferway-exclude-workers": "A"}, 400, "names the worker that"),
        ({"x-inferway-exclude-workers": "A,B"}, 503, "excluded by its caller"),
    ],
)
async def test_a_choice_that_leaves_nobody(choosing: Fleet, headers: dict[str, str], status: int, says: str) -> None:
    for stream in (False, True):
        answer = await choosing.ask("nobody.x", headers=headers, stream=stream)
        assert answer.status == status, answer.body
        assert says in answer.error["message"]
    assert not choosing.saw("A", "nobody")
    assert not choosing.saw("B", "nobody")


async def test_only_those_may_choose_who_are_allowed(scripts: str, tmp_path: Path) -> None:
    """By the file of tenants; the header of others is refused, and reaches no engine."""
    keys = {name: hashlib.sha256(name.encode()).hexdigest() for name in ("k-ops", "k-dev")}
    tenants = tmp_path / "tenants.yaml"
    tenants.write_text(
        "tenants:\n"
        f"  ops: {{choose_workers: true, keys: {{admin: {{sha256: {keys['k-ops']}}}}}}}\n"
        f"  dev: {{keys: {{anna: {{sha256: {keys['k-dev']}}}}}}}\n"
    )
    with Fleet(scripts, tmp_path, "A", gateway_args=["--tenants", str(tenants)]) as fleet:
        for key, choice, status in (
            ("k-ops", "A", 200),
            ("k-dev", "A", 403),
            ("k-dev", "", 200),
        ):
            headers = {"Authorization": f"Bearer {key}", "x-inferway-worker": choice}
            answer = await fleet.ask(f"may.{key}{choice}", headers=headers)
            assert answer.status == status, answer.body
            if status == 403:
                assert answer.error["code"] == "worker_choice_not_allowed"
        assert [line["request_id"] for line in fleet.saw("A")] == ["may.k-opsA", "may.k-dev"]
