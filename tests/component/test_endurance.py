"""Minutes of mixed traffic while processes are killed: no request is lost count of, nothing is left behind.

INFERWAY_ENDURANCE_S sets the length of the traffic.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pytest

from tests.support.client import send
from tests.support.probes import http_json, metric
from tests.support.processes import Mesh, engine_load
from tests.support.raw_client import EventStream
from tests.support.waiting import until

TRAFFIC_S = float(os.environ.get("INFERWAY_ENDURANCE_S", "180"))
CLIENTS = 24
KILL_EVERY_S = 20.0
PATIENCE_S = 30.0
MIB = 1 << 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(TRAFFIC_S + 240)]

SCRIPTS = {
    "talk": [{"text": "word ", "repeat": 40, "gap_ms": 20}, {"finish": "stop"}],
    "flood": [{"text": "y" * 500, "repeat": 2000}, {"finish": "stop"}],
}
TEXTS = {"talk": "word " * 40, "flood": "y" * 1_000_000}
HI = [{"role": "user", "content": "hi"}]
BAD_BODIES = (
    b'{"model": "m-text", "messages": [',
    b'{"model": "m-text", "messages": [{"role": "user", "content": "\\ud83d"}]}',
    b'{"model": "m-text", "messages": [{"role": "user", "content": "hi"}], "temperature": 9}',
    b'{"model": "nobody", "messages": [{"role": "user", "content": "hi"}]}',
)
# What may become of a request that its client waited for while a worker was killed.
FAILURES = {"worker_failed"}


class Seen(NamedTuple):
    """What a client knows of one request: its outcome, "" if it could not tell, and whether the gateway answered."""

    outcome: str
    answered: bool


class Traffic:
    """Clients of every kind, each asking for one thing after the other until `ends`."""

    def __init__(self, address: str, ends: float) -> None:
        self._address = address
        self._ends = ends
        self.seen: dict[str, Seen] = {}
        self.kinds: collections.Counter[str] = collections.Counter()
        self._number = 0

    async def client(self, rng: random.Random) -> None:
        kinds = [self.stream] * 4 + [self.whole] * 3 + [self.three_choices] + [self.leave] * 3 + [self.bad, self.slow]
        while time.monotonic() < self._ends:
            kind = rng.choice(kinds)
            self._number += 1
            script = "flood" if kind == self.slow else "talk"
            request_id = f"{script}.{self._number}"
            self.seen[request_id] = await kind(request_id, rng)
            self.kinds[kind.__name__] += 1
            await asyncio.sleep(rng.uniform(0.0, 0.1))

    async def stream(self, request_id: str, rng: random.Random) -> Seen:
        return _outcome(await self._finished(await self._open(request_id)))

    async def whole(self, request_id: str, rng: random.Random) -> Seen:
        answer = await self._finished(await self._open(request_id, stream=False))
        body = json.loads(answer.body)
        if answer.status == 200:
            assert body["choices"][0]["message"]["content"] == TEXTS["talk"]
            return Seen("ok", answered=True)
        return _failed(body["error"])

    async def three_choices(self, request_id: str, rng: random.Random) -> Seen:
        return _outcome(await self._finished(await self._open(request_id, n=3)), choices=3)

    async def leave(self, request_id: str, rng: random.Random) -> Seen:
        stream = await self._open(request_id)
        # Half of them about when the first token comes, others at any time; an answer may even be whole by then.
        await asyncio.sleep(rng.uniform(0.0, rng.choice((0.01, 1.2))))
        stream.close()
        await stream.done
        return Seen("", answered=bool(stream.head))

    async def bad(self, request_id: str, rng: random.Random) -> Seen:
        answer = await send(
            self._address, "POST /v1/chat/completions", raw=rng.choice(BAD_BODIES), request_id=request_id
        )
        assert answer.status in (400, 404)
        return Seen(answer.error["code"], answered=True)

    async def slow(self, request_id: str, rng: random.Random) -> Seen:
        stream = await self._open(request_id, receive_buffer_bytes=4096)
        stream.pause()
        await asyncio.sleep(rng.uniform(0.5, 2.0))
        if rng.random() < 0.5:
            stream.close()
            await stream.done
        else:
            stream.resume()
            await self._finished(stream)
        return Seen("", answered=bool(stream.head))

    async def _open(self, request_id: str, receive_buffer_bytes: int | None = None, **fields: Any) -> EventStream:
        body = {"model": "m-text", "messages": HI, "stream": True, **fields}
        headers = {"X-Request-Id": request_id}
        return await EventStream.open(self._address, body, headers=headers, receive_buffer_bytes=receive_buffer_bytes)

    async def _finished(self, stream: EventStream) -> EventStream:
        await asyncio.wait_for(stream.done, PATIENCE_S)
        return stream


def _outcome(stream: EventStream, choices: int = 1) -> Seen:
    """Of a stream that was read to its end: everything and a finish for each choice, or an error; then [DONE]."""
    if stream.status != 200:
        return _failed(json.loads(stream.body)["error"])
    assert stream.payloads()[-1] == b"[DONE]", stream.payloads()[-3:]
    chunks = stream.chunks()
    if "error" in chunks[-1]:
        return _failed(chunks[-1]["error"])
    texts = dict.fromkeys(range(choices), "")
    finished = []
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        texts[choice["index"]] += choice["delta"].get("content") or ""
        if choice["finish_reason"]:
            finished.append(choice["index"])
    assert set(texts.values()) == {TEXTS["talk"]}
    assert sorted(finished) == list(range(choices))
    return Seen("ok", answered=True)


def _failed(error: Mapping[str, Any]) -> Seen:
    assert error["code"] in FAILURES, error
    return Seen(error["code"], answered=True)


async def disturb(mesh: Mesh, ends: float) -> None:
    """Kill a worker in turn every KILL_EVERY_S, and the router once, each followed by another."""
    began = time.monotonic()
    kills = 0
    router_is_due = True
    while time.monotonic() + KILL_EVERY_S < ends:
        await asyncio.sleep(KILL_EVERY_S)
        mesh.workers[kills % 2].kill()
        await asyncio.sleep(1.0)
        await asyncio.to_thread(mesh.start_worker_again, kills % 2)
        kills += 1
        if router_is_due and time.monotonic() > (began + ends) / 2:
            router_is_due = False
            assert mesh.router is not None
            mesh.router.kill()
            await asyncio.sleep(1.0)
            await asyncio.to_thread(mesh.start_router_again)
    assert not router_is_due, "the traffic was too short for this"


def idle(mesh: Mesh) -> bool:
    """Nothing runs, waits or is held, by the word of each process; the mesh is whole again."""
    assert mesh.router is not None
    router = f"http://{mesh.router.ops_address}/metrics"
    gateway = mesh.url("/metrics")
    return (
        all(engine_load(worker) == 0 for worker in mesh.workers)
        and metric(router, "inferway_router_queue_requests") == 0
        and metric(router, "inferway_router_worker_requests_in_flight") == 0
        and metric(gateway, "inferway_gateway_requests_in_flight") == 0
        and metric(gateway, "inferway_gateway_worker_sessions") == 2
        and http_json(mesh.url("/health/ready"))[1]["fallback"] is False
    )


def descriptors(mesh: Mesh) -> dict[str, int]:
    """Open files of each process, by its part in the mesh."""
    assert mesh.router is not None
    parts = {"gateway": mesh.gateway, "router": mesh.router, "A": mesh.workers[0], "B": mesh.workers[1]}
    return {part: psutil.Process(process.pid).num_fds() for part, process in parts.items()}


async def test_mixed_traffic_over_killed_workers_and_a_killed_router(tmp_path: Path) -> None:
    """Afterwards nothing runs, waits or is held; each request has one log line that agrees with what its client saw."""
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    worker = ["--engine", "scripted", "--scripts", str(scripts), "--max-running", "64"]
    limits = ["--coalesce-bytes", "65536", "--client-buffer-bytes", "262144", "--client-write-timeout-s", "2"]
    limits += ["--heartbeat-s", "0.5", "--drain-delay-s", "0"]
    with Mesh(workers=[[*worker, "--name", "A"], [*worker, "--name", "B"]], gateway_args=limits) as mesh:
        await until(lambda: idle(mesh), PATIENCE_S, "idle before")
        before = descriptors(mesh)
        gateway = psutil.Process(mesh.gateway.pid)
        ends = time.monotonic() + TRAFFIC_S
        traffic = Traffic(mesh.gateway.address, ends)
        memory: list[int] = []

        async def watch_memory() -> None:
            while True:
                memory.append(gateway.memory_info().rss)
                await asyncio.sleep(1.0)

        watcher = asyncio.create_task(watch_memory())
        async with asyncio.TaskGroup() as group:
            group.create_task(disturb(mesh, ends))
            for number in range(CLIENTS):
                group.create_task(traffic.client(random.Random(number)))
        watcher.cancel()
        await asyncio.wait([watcher])

        await until(lambda: idle(mesh), PATIENCE_S, "idle afterwards")
        for part, count in descriptors(mesh).items():
            assert count <= before[part] + 8, f"{part} had {before[part]} open files, has {count}"
        early, late = max(memory[: len(memory) // 3]), max(memory[-len(memory) // 3 :])
        assert late < early + 48 * MIB, f"the gateway grew from {early // MIB} to {late // MIB} MiB"
        assert mesh.gateway.stop() == 0
        for process in (mesh.router, *mesh.workers):
            assert process is not None
            assert process.stop() == 0
        assert_accounted(traffic.seen, mesh.gateway.events("request"))
        assert traffic.kinds.keys() == {"stream", "whole", "three_choices", "leave", "bad", "slow"}
        for process in mesh.processes():
            log = process.log_text()
            for word in ("Traceback", "never retrieved", "was destroyed"):
                assert word not in log, f"{process.module}: {log[max(0, log.index(word) - 2000) :][:4000]}"


def assert_accounted(seen: Mapping[str, Seen], lines: list[dict[str, Any]]) -> None:
    logged: dict[str, list[str]] = {request_id: [] for request_id in seen}
    for line in lines:
        logged[line["request_id"]].append(line["outcome"])
    for request_id, (outcome, answered) in seen.items():
        outcomes = logged[request_id]
        # Of a client that left at once the gateway may never have heard.
        assert len(outcomes) == 1 or (not answered and not outcomes), (request_id, outcomes)
        if outcome in {"ok", *FAILURES}:
            assert outcomes == [outcome], request_id
    every = collections.Counter(outcome for outcomes in logged.values() for outcome in outcomes)
    assert every["internal_error"] == 0
    assert every["client_closed_request"] > 0
    assert every["client_too_slow"] > 0
    assert every["ok"] > len(seen) / 2
