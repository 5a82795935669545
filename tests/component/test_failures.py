"""Failure, told to clients and survived by the mesh: killed workers and routers, slow readers, deadlines, drain."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.processes import Mesh, Process, http_json, start_worker, wait_until
from tests.support.raw_client import EventStream

pytestmark = pytest.mark.timeout(120)

SCRIPTS = {
    "slow": [{"text": "t ", "repeat": 400, "gap_ms": 20}, {"finish": "stop"}],
    "silent": [{"sleep_ms": 60_000}, {"text": "x"}, {"finish": "stop"}],
    "gap": [{"text": "a"}, {"sleep_ms": 2500}, {"text": "b"}, {"finish": "stop"}],
    "flood": [{"text": "y" * 1000, "repeat": 40_000}, {"finish": "length"}],
    "burst": [{"text": "z" * 1000, "repeat": 1500}, {"finish": "stop"}],
}
HI = [{"role": "user", "content": "hi"}]
STREAM = {"model": "m-text", "messages": HI, "stream": True}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("scripts") / "scripts.json"
    path.write_text(json.dumps(SCRIPTS))
    return str(path)


def worker_args(scripts: str, *more: str) -> list[str]:
    return ["--engine", "scripted", "--scripts", scripts, *more]


async def ask(address: str, script: str, **fields: Any) -> EventStream:
    return await EventStream.open(address, {**STREAM, **fields}, headers={"X-Request-Id": f"{script}.x"})


async def events(stream: EventStream, count: int, timeout_s: float = 10.0) -> None:
    async with asyncio.timeout(timeout_s):
        while len(stream.events) < count:
            await asyncio.sleep(0.005)


async def until(condition: Any, timeout_s: float, what: str) -> None:
    await asyncio.to_thread(wait_until, condition, timeout_s, what)


async def answers(address: str, text: str = "hi") -> bool:
    """Whether a plain request is served."""
    stream = await EventStream.open(address, STREAM)
    await asyncio.wait_for(stream.done, 15)
    return stream.status == 200 and stream.text() == text


async def test_a_worker_killed_mid_stream_is_told_in_band(scripts: str) -> None:
    """The stream gets an error event and [DONE]; the worker's return needs no other process to be restarted."""
    with Mesh(workers=[worker_args(scripts)]) as mesh:
        address, worker = mesh.gateway.address, mesh.workers[0]
        streams = [await ask(address, "slow") for _ in range(5)]
        for stream in streams:
            await events(stream, 3)
        worker.popen.send_signal(signal.SIGKILL)
        for stream in streams:
            await asyncio.wait_for(stream.done, 10)
            assert stream.payloads()[-1] == b"[DONE]"
            error = json.loads(stream.payloads()[-2])["error"]
            assert error["type"] == "server_error"
            assert error["code"] == "worker_failed"
            assert all(
                choice["finish_reason"] is None for chunk in stream.chunks() for choice in chunk.get("choices", ())
            )
        mesh.workers.append(await asyncio.to_thread(start_worker, *worker_args(scripts), listen=worker.address))
        assert await answers(address)
        assert "Traceback" not in mesh.gateway.log_text()


async def test_a_worker_killed_before_the_first_token_is_not_noticed(scripts: str) -> None:
    """The request moves to another worker; its client sees an ordinary answer."""
    with Mesh(workers=[worker_args(scripts, "--name", "A"), worker_args(scripts, "--name", "B")]) as mesh:
        stream = await ask(mesh.gateway.address, "silent")
        holder: list[Process] = []

        def find() -> bool:
            holder[:] = [worker for worker in mesh.workers if _running(worker)]
            return bool(holder)

        await until(find, 5, "some worker has it")
        holder[0].popen.send_signal(signal.SIGKILL)
        other = next(worker for worker in mesh.workers if worker is not holder[0])
        await until(lambda: _running(other) == 1, 5, "the other worker has it")
        assert not stream.done.done()
        stream.close()
        await until(lambda: _running(other) == 0, 5, "and gives it up when the client leaves")


def _running(worker: Process) -> int:
    status, _ = http_json(f"http://{worker.ops_address}/health")
    assert status == 200
    return metric(f"http://{worker.ops_address}/metrics", "inferway_worker_num_requests_running")


def metric(url: str, name: str) -> int:
    import urllib.request

    with urllib.request.urlopen(url, timeout=5) as response:
        lines = response.read().decode().splitlines()
    return int(sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + " ", name + "{"))))


async def test_a_killed_router_leaves_streams_alone_and_comes_back(scripts: str) -> None:
    """Running streams finish, new requests are served by the fallback, and the router takes over when it returns."""
    with Mesh(workers=[worker_args(scripts)]) as mesh:
        address, router = mesh.gateway.address, mesh.router
        assert router is not None
        running = await ask(address, "gap")
        await events(running, 2)
        router.kill()
        for _ in range(5):
            assert await answers(address)
        status, state = http_json(mesh.url("/health/ready"))
        assert (status, state["fallback"]) == (200, True)
        await asyncio.wait_for(running.done, 10)
        assert running.text() == "ab"
        assert running.payloads()[-1] == b"[DONE]"
        mesh.router = await asyncio.to_thread(
            Process, "router", "--listen", router.address, "--ops-listen", "127.0.0.1:0",
            "--workers", mesh.workers[0].address,
        )  # fmt: skip
        await until(lambda: http_json(mesh.url("/health/ready"))[1]["fallback"] is False, 10, "router is used again")
        before = metric(mesh.url("/metrics"), "inferway_gateway_fallback_dispatches_total")
        assert await answers(address)
        assert metric(mesh.url("/metrics"), "inferway_gateway_fallback_dispatches_total") == before == 5


async def test_requests_waiting_in_a_router_survive_its_death(scripts: str) -> None:
    """What waited in the router that died is placed by the fallback once there is room."""
    with Mesh(workers=[worker_args(scripts, "--max-running", "1", "--max-waiting", "0")]) as mesh:
        first = await ask(mesh.gateway.address, "gap")
        await events(first, 2)
        waiting = await ask(mesh.gateway.address, "echo")
        await asyncio.sleep(0.3)
        assert not waiting.events
        assert mesh.router is not None
        mesh.router.kill()
        await asyncio.wait_for(waiting.done, 15)
        assert waiting.text() == "hi"


async def test_a_client_that_leaves_the_queue_frees_its_place(scripts: str) -> None:
    """A queued request whose client has gone never reaches the engine."""
    with Mesh(workers=[worker_args(scripts, "--max-running", "1", "--max-waiting", "0")]) as mesh:
        holder = await ask(mesh.gateway.address, "slow")
        await events(holder, 2)
        queued = await ask(mesh.gateway.address, "silent")
        assert mesh.router is not None
        waiting = f"http://{mesh.router.ops_address}/metrics"
        await until(lambda: metric(waiting, "inferway_router_queue_requests") == 1, 5, "it waits")
        queued.close()
        await until(lambda: metric(waiting, "inferway_router_queue_requests") == 0, 2, "its place is free")
        holder.close()
        await until(lambda: _running(mesh.workers[0]) == 0, 5, "engine idle")
        await asyncio.sleep(0.2)
        assert _running(mesh.workers[0]) == 0


async def test_slow_readers_are_coalesced_then_cut(scripts: str) -> None:
    """A reader that stops gets merged chunks; beyond the buffer limit it is cut with a named outcome."""
    limits = ["--coalesce-bytes", "65536", "--client-buffer-bytes", "8000000"]
    with Mesh(workers=[worker_args(scripts)], gateway_args=limits) as mesh:
        pausing = await ask(mesh.gateway.address, "burst")
        await events(pausing, 2)
        pausing.transport.pause_reading()
        await asyncio.sleep(2.0)
        pausing.transport.resume_reading()
        await asyncio.wait_for(pausing.done, 30)
        assert len(pausing.text()) == 1_500_000
        assert len(pausing.events) < 1500, "unread deltas merge"
        assert pausing.payloads()[-1] == b"[DONE]"

        memory = psutil.Process(mesh.gateway.pid)
        before = memory.memory_info().rss
        stuck = await ask(mesh.gateway.address, "flood")
        await events(stuck, 2)
        stuck.transport.pause_reading()
        await until(lambda: _outcomes(mesh).get("client_too_slow"), 30, "cut")
        assert memory.memory_info().rss - before < 64 << 20
        await until(lambda: _running(mesh.workers[0]) == 0, 5, "the engine is aborted")
        stuck.close()


async def test_a_finished_answer_must_be_read_in_time(scripts: str) -> None:
    """Streamed or whole, a client that does not read the end of its answer is cut after the write timeout."""
    limits = ["--coalesce-bytes", "65536", "--client-write-timeout-s", "1"]
    with Mesh(workers=[worker_args(scripts)], gateway_args=limits) as mesh:
        for stream in (True, False):
            client = await ask(mesh.gateway.address, "burst", stream=stream)
            client.transport.pause_reading()
            await until(lambda: _running(mesh.workers[0]) == 1, 10, "it runs")
            await until(lambda: _running(mesh.workers[0]) == 0, 20, "the engine is done")
            wanted = 1 if stream else 2
            await until(lambda: _outcomes(mesh).get("client_too_slow", 0) == wanted, 10, "cut")  # noqa: B023
            client.close()
        assert "Traceback" not in mesh.gateway.log_text()


def _outcomes(mesh: Mesh) -> dict[str, int]:
    counts: dict[str, int] = {}
    for line in mesh.gateway.events("request"):
        counts[line["outcome"]] = counts.get(line["outcome"], 0) + 1
    return counts


async def test_heartbeats_fill_silence_before_and_between_tokens(scripts: str) -> None:
    """A stream that waits gets comments, before its first token and in later gaps, and none after [DONE]."""
    with Mesh(workers=[worker_args(scripts)], gateway_args=["--heartbeat-s", "0.5"]) as mesh:
        host, port = mesh.gateway.address.split(":")
        seen = {}
        for script in ("silent", "gap"):
            reader, writer = await asyncio.open_connection(host, int(port))
            body = json.dumps(STREAM).encode()
            writer.write(
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {script}.1\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                + body
            )
            received = b""
            try:
                async with asyncio.timeout(4.0):
                    while b"[DONE]" not in received:
                        received += await reader.read(65536)
            except TimeoutError:
                pass
            writer.close()
            seen[script] = received
        assert seen["silent"].startswith(b"HTTP/1.1 200")
        assert seen["silent"].count(b": heartbeat\n\n") >= 3
        before, _, after = seen["gap"].partition(b'"content":"b"')
        assert before.count(b": heartbeat\n\n") >= 2
        assert after.count(b": heartbeat") == 0


async def test_the_request_deadline_ends_it(scripts: str) -> None:
    """A request over its deadline gets an in-band error, and the engine is freed."""
    with Mesh(workers=[worker_args(scripts)], gateway_args=["--request-deadline-s", "1"]) as mesh:
        stream = await ask(mesh.gateway.address, "slow")
        await asyncio.wait_for(stream.done, 10)
        assert json.loads(stream.payloads()[-2])["error"]["code"] == "upstream_timeout"
        await until(lambda: _running(mesh.workers[0]) == 0, 3, "engine freed")


async def test_a_queue_timeout_is_503_before_any_200(scripts: str) -> None:
    """A request that finds no room in time gets its own status, Retry-After and the error object."""
    args = worker_args(scripts, "--max-running", "1", "--max-waiting", "0")
    with Mesh(workers=[args], gateway_args=["--queue-timeout-s", "1"]) as mesh:
        holder = await ask(mesh.gateway.address, "slow")
        await events(holder, 2)
        stream = await ask(mesh.gateway.address, "echo")
        await until(lambda: stream.status, 10, "an answer")
        assert stream.status == 503
        assert b"retry-after: " in stream.head.lower()
        holder.close()


async def test_sigterm_lets_streams_finish(scripts: str) -> None:
    """Streams that run when the signal comes end in order, and the process with status 0."""
    with Mesh(workers=[worker_args(scripts)], gateway_args=["--drain-delay-s", "0.2"]) as mesh:
        stream = await ask(mesh.gateway.address, "gap")
        await events(stream, 2)
        mesh.gateway.popen.send_signal(signal.SIGTERM)
        await asyncio.wait_for(stream.done, 10)
        assert stream.text() == "ab"
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0


async def test_the_drain_limit_cuts_with_an_error_event(scripts: str) -> None:
    """What is not done at the drain limit is told in-band."""
    limits = ["--drain-delay-s", "0", "--drain-limit-s", "0.5"]
    with Mesh(workers=[worker_args(scripts)], gateway_args=limits) as mesh:
        stream = await ask(mesh.gateway.address, "slow")
        await events(stream, 2)
        mesh.gateway.popen.send_signal(signal.SIGTERM)
        await asyncio.wait_for(stream.done, 10)
        assert json.loads(stream.payloads()[-2])["error"]["code"] == "shutting_down"
        assert stream.payloads()[-1] == b"[DONE]"
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0


@pytest.fixture(scope="module")
def load_scripts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("load") / "scripts.json"
    path.write_text(json.dumps({"tokens": [{"text": " token", "repeat": 1000}, {"finish": "stop"}]}))
    return str(path)


async def test_cancelling_half_frees_their_slots(load_scripts: str) -> None:
    """Of 64 streams half leave; the engine's own load report falls to the other half."""
    args = ["--engine", "scripted", "--scripts", load_scripts, "--step-ms", "20", "--max-running", "64"]
    with Mesh(workers=[args]) as mesh:
        streams = [await ask(mesh.gateway.address, "tokens") for _ in range(64)]
        for stream in streams:
            await events(stream, 3)
        assert _running(mesh.workers[0]) == 64
        left = time.monotonic()
        for stream in streams[::2]:
            stream.close()
        await until(lambda: _running(mesh.workers[0]) == 32, 5, "half of the slots free")
        assert time.monotonic() - left < 5
        counts = [len(stream.events) for stream in streams[1::2]]
        await asyncio.sleep(0.5)
        assert all(len(stream.events) > count for stream, count in zip(streams[1::2], counts, strict=True))
        for stream in streams[1::2]:
            stream.close()


async def test_several_processes_on_one_port(scripts: str) -> None:
    """Any process answers; one that is killed is replaced, and the port never goes away."""
    with Mesh(workers=[worker_args(scripts)], gateway_args=["--processes", "2", "--drain-delay-s", "0"]) as mesh:
        children = psutil.Process(mesh.gateway.pid).children()
        assert len(children) == 2
        for _ in range(10):
            assert await answers(mesh.gateway.address)
        children[0].kill()
        await until(lambda: len(psutil.Process(mesh.gateway.pid).children()) == 2, 10, "replaced")
        for _ in range(10):
            stream = await EventStream.open(mesh.gateway.address, STREAM)
            await asyncio.wait_for(stream.done, 20)
            # A process that has just started may not have its models yet; it says so honestly.
            assert stream.status in (200, 503)
        assert mesh.gateway.stop() == 0


async def test_the_inside_is_authenticated(scripts: str) -> None:
    """With a token on the mesh, a gateway without it gets no worker, and one with it does."""
    token = {"INFERWAY_INTERNAL_TOKEN": "secret-one"}
    with Process(
        "worker", *worker_args(scripts), "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", env=token
    ) as worker:
        flags = ["--listen", "127.0.0.1:0", "--workers", worker.address]
        with Process("gateway", *flags, env={"INFERWAY_INTERNAL_TOKEN": "wrong"}) as stranger:
            await asyncio.sleep(1.0)
            assert http_json(f"http://{stranger.address}/health/ready")[0] == 503
        with Process("gateway", *flags, env=token) as friend:
            url = f"http://{friend.address}/health/ready"
            await until(lambda: http_json(url)[0] == 200, 10, "ready")


def test_open_to_the_world_needs_a_word() -> None:
    """Off loopback a gateway without authentication refuses to start, with a sentence."""
    process = Process("gateway", "--listen", "0.0.0.0:0", wait=False)
    with process:
        assert process.popen.wait(30) != 0
        assert "--insecure" in process.log_text()
        assert "Traceback" not in process.log_text()
