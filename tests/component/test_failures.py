"""Failure, told to clients and survived by the mesh: killed workers and routers, slow readers, deadlines, drain."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.support.json_lines import JsonLines
from tests.support.probes import http_json, metric
from tests.support.processes import Mesh, Process
from tests.support.raw_client import EventStream, connection
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "late": [
        {"worker": "A", "sleep_ms": 3000},
        {"worker": "A", "text": "FROM-A", "repeat": 50, "gap_ms": 20},
        {"worker": "B", "text": "b", "repeat": 30, "gap_ms": 100},
        {"finish": "stop"},
    ],
    "stuck": [{"sleep_ms": 3000}, {"text": "x"}, {"finish": "stop"}],
    "heavy_end": [{"text": "w" * 64_000, "repeat": 20}, {"text": "w" * 400_000, "finish": "stop"}],
    "three": [{"pieces": ["a", "b", "c"], "finish": "stop"}],
    "slow": [{"text": "t ", "repeat": 400, "gap_ms": 20}, {"finish": "stop"}],
    "brief": [{"text": "t ", "repeat": 20, "gap_ms": 100}, {"finish": "stop"}],
    "silent": [{"sleep_ms": 60_000}, {"text": "x"}, {"finish": "stop"}],
    "gap": [{"text": "a"}, {"sleep_ms": 2500}, {"text": "b"}, {"finish": "stop"}],
    "wild_counts": [{"text": "a"}, {"finish": "stop", "usage": {"completion": 2**32 - 1}}],
    "short_gap": [{"text": "a"}, {"sleep_ms": 1000}, {"finish": "stop"}],
    "flood": [{"text": "y" * 1000, "repeat": 40_000}, {"finish": "length"}],
    "burst_silent": [{"text": "z" * 1000, "repeat": 1500}, {"sleep_ms": 60_000}, {"text": "x"}, {"finish": "stop"}],
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
            await stream.wait_events(3)
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
        await asyncio.to_thread(mesh.start_worker_again, 0)
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
    return int(metric(f"http://{worker.ops_address}/metrics", "inferway_worker_num_requests_running"))


async def test_a_killed_router_leaves_streams_alone_and_comes_back(scripts: str) -> None:
    """Running streams finish, new requests are served by the fallback, and the router takes over when it returns."""
    with Mesh(workers=[worker_args(scripts)]) as mesh:
        address, router = mesh.gateway.address, mesh.router
        assert router is not None
        running = await ask(address, "gap")
        await running.wait_events(2)
        router.kill()
        for _ in range(5):
            assert await answers(address)
        status, state = http_json(mesh.url("/health/ready"))
        assert (status, state["fallback"]) == (200, True)
        await asyncio.wait_for(running.done, 10)
        assert running.text() == "ab"
        assert running.payloads()[-1] == b"[DONE]"
        await asyncio.to_thread(mesh.start_router_again)
        await until(lambda: http_json(mesh.url("/health/ready"))[1]["fallback"] is False, 10, "router is used again")
        before = metric(mesh.url("/metrics"), "inferway_gateway_fallback_dispatches_total")
        assert await answers(address)
        assert metric(mesh.url("/metrics"), "inferway_gateway_fallback_dispatches_total") == before == 5


async def test_requests_waiting_in_a_router_survive_its_death(scripts: str) -> None:
    """What waited in the router that died is placed by the fallback once there is room."""
    with Mesh(workers=[worker_args(scripts, "--max-running", "1", "--max-waiting", "0")]) as mesh:
        first = await ask(mesh.gateway.address, "gap")
        await first.wait_events(2)
        waiting = await ask(mesh.gateway.address, "echo")
        assert mesh.router is not None
        queue = f"http://{mesh.router.ops_address}/metrics"
        await until(lambda: metric(queue, "inferway_router_queue_requests") == 1, 5, "it waits")
        assert not waiting.events
        mesh.router.kill()
        await asyncio.wait_for(waiting.done, 15)
        assert waiting.text() == "hi"


async def test_without_a_router_several_choices_wait_for_room_for_all(scripts: str) -> None:
    """A request is not sent to a worker that must refuse one of its choices."""
    args = worker_args(scripts, "--max-running", "4", "--max-waiting", "0")
    with Mesh(workers=[args], with_router=False) as mesh:
        holder = await ask(mesh.gateway.address, "brief", n=2)
        await holder.wait_events(4)
        waiting = [await ask(mesh.gateway.address, "echo", n=3) for _ in range(5)]
        for stream in waiting:
            await asyncio.wait_for(stream.done, 15)
            assert stream.status == 200
            assert sorted(stream.text()) == sorted("hihihi")


async def test_clients_that_leave_as_their_answers_end_are_no_fault(scripts: str) -> None:
    """Both happen while the gateway is held up, so that it learns of them at once."""
    with Mesh(workers=[worker_args(scripts)]) as mesh:
        for _ in range(3):
            streams = [await ask(mesh.gateway.address, "short_gap") for _ in range(30)]
            for stream in streams:
                await stream.wait_events(2)
            mesh.gateway.popen.send_signal(signal.SIGSTOP)
            try:
                for stream in streams:
                    stream.close()
                await until(lambda: _running(mesh.workers[0]) == 0, 10, "the engine is done")
            finally:
                mesh.gateway.popen.send_signal(signal.SIGCONT)
            assert await answers(mesh.gateway.address)
        assert "Traceback" not in mesh.gateway.log_text()


async def test_a_client_that_leaves_the_queue_frees_its_place(scripts: str, tmp_path: Path) -> None:
    """A queued request whose client has gone never reaches the engine."""
    record = tmp_path / "record.jsonl"
    args = worker_args(scripts, "--max-running", "1", "--max-waiting", "0", "--record", str(record))
    with Mesh(workers=[args]) as mesh:
        holder = await ask(mesh.gateway.address, "slow")
        await holder.wait_events(2)
        queued = await ask(mesh.gateway.address, "silent")
        assert mesh.router is not None
        waiting = f"http://{mesh.router.ops_address}/metrics"
        await until(lambda: metric(waiting, "inferway_router_queue_requests") == 1, 5, "it waits")
        queued.close()
        await until(lambda: metric(waiting, "inferway_router_queue_requests") == 0, 2, "its place is free")
        holder.close()
        assert await answers(mesh.gateway.address), "whoever comes next is served"
        reached = [line["request_id"] for line in JsonLines(record).read() if line["event"] == "generate"]
        assert reached[0] == "slow.x"
        assert len(reached) == 2
        assert "silent.x" not in reached


async def test_slow_readers_are_coalesced_then_cut(scripts: str) -> None:
    """A reader that stops gets merged chunks; beyond the buffer limit it is cut with a named outcome."""
    limits = ["--coalesce-bytes", "65536", "--client-buffer-bytes", "8000000"]
    with Mesh(workers=[worker_args(scripts)], gateway_args=limits) as mesh:
        pausing = await ask(mesh.gateway.address, "burst")
        await pausing.wait_events(2)
        pausing.pause()
        await until(lambda: _running(mesh.workers[0]) == 0, 20, "all of it is made while nobody reads")
        pausing.resume()
        await asyncio.wait_for(pausing.done, 30)
        assert len(pausing.text()) == 1_500_000
        assert len(pausing.events) < 1500, "unread deltas merge"
        assert pausing.payloads()[-1] == b"[DONE]"

        memory = psutil.Process(mesh.gateway.pid)
        before = memory.memory_info().rss
        stuck = await ask(mesh.gateway.address, "flood")
        await stuck.wait_events(2)
        stuck.pause()
        await until(lambda: _outcomes(mesh).get("client_too_slow"), 30, "cut")
        assert memory.memory_info().rss - before < 64 << 20
        await until(lambda: _running(mesh.workers[0]) == 0, 5, "the engine is aborted")
        stuck.close()


async def test_a_reader_that_catches_up_gets_what_was_held(scripts: str) -> None:
    """Text that was merged for a slow reader does not wait for the next token."""
    with Mesh(workers=[worker_args(scripts)], gateway_args=["--coalesce-bytes", "65536"]) as mesh:
        body, headers = STREAM, {"X-Request-Id": "burst_silent.x"}
        stream = await EventStream.open(mesh.gateway.address, body, headers=headers, receive_buffer_bytes=4096)
        await until(lambda: stream.status, 10, "the status line")
        stream.pause()
        await asyncio.sleep(1.0)
        stream.resume()
        await until(lambda: len(stream.text()) == 1_500_000, 20, "all that was said")
        assert not stream.done.done()
        stream.close()


async def test_a_finished_answer_must_be_read_in_time(scripts: str) -> None:
    """Streamed or whole, a client that does not read the end of its answer is cut after the write timeout."""
    limits = ["--coalesce-bytes", "65536", "--client-write-timeout-s", "1"]
    with Mesh(workers=[worker_args(scripts)], gateway_args=limits) as mesh:
        for stream in (True, False):
            client = await ask(mesh.gateway.address, "burst", stream=stream)
            client.pause()
            wanted = 1 if stream else 2
            await until(lambda: _outcomes(mesh).get("client_too_slow", 0) == wanted, 30, "cut")  # noqa: B023
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
        seen = {}
        for script in ("silent", "gap"):
            body = json.dumps(STREAM).encode()
            received = b""
            with suppress(TimeoutError):
                async with asyncio.timeout(4.0), connection(mesh.gateway.address) as (reader, writer):
                    writer.write(
                        f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Request-Id: {script}.1\r\n"
                        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
                        + body
                    )
                    while b"[DONE]" not in received:
                        received += await reader.read(65536)
            seen[script] = received
        assert seen["silent"].startswith(b"HTTP/1.1 200")
        assert seen["silent"].count(b": heartbeat\n\n") >= 3
        before, _, after = seen["gap"].partition(b'"content":"b"')
        assert before.count(b": heartbeat\n\n") >= 2
        assert after.count(b": heartbeat") == 0


async def test_counts_beyond_their_field_end_the_answer_all_the_same(scripts: str) -> None:
    """An engine that counts wildly costs no stream its end and no worker a lease."""
    with Mesh(workers=[worker_args(scripts)]) as mesh:
        stream = await ask(mesh.gateway.address, "wild_counts", n=2)
        await asyncio.wait_for(stream.done, 10)
        assert stream.payloads()[-1] == b"[DONE]"
        assert mesh.router is not None
        leases = f"http://{mesh.router.ops_address}/metrics"
        await until(lambda: metric(leases, "inferway_router_worker_requests_in_flight") == 0, 3, "no lease is left")
        assert "Traceback" not in mesh.gateway.log_text()


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
        await holder.wait_events(2)
        stream = await ask(mesh.gateway.address, "echo")
        await until(lambda: stream.status, 10, "an answer")
        assert stream.status == 503
        assert b"retry-after: " in stream.head.lower()
        holder.close()


async def test_sigterm_lets_streams_finish(scripts: str) -> None:
    """Streams that run when the signal comes end in order, and the process with status 0."""
    with Mesh(workers=[worker_args(scripts)], gateway_args=["--drain-delay-s", "0.2"]) as mesh:
        stream = await ask(mesh.gateway.address, "gap")
        await stream.wait_events(2)
        mesh.gateway.popen.send_signal(signal.SIGTERM)
        await asyncio.wait_for(stream.done, 10)
        assert stream.text() == "ab"
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0


async def test_kept_connections_are_given_up_before_they_are_closed(scripts: str) -> None:
    """In the drain delay a request on one of them is served, and told not to use it again; so is a refusal."""
    with Mesh(workers=[worker_args(scripts)], gateway_args=["--drain-delay-s", "3"]) as mesh:
        async with httpx2.AsyncClient(base_url=mesh.url(), trust_env=False) as client:
            for path, status in (("/v1/models", 200), ("/v1/nothing", 404)):
                before = await client.get(path)
                assert (before.status_code, before.headers.get("connection")) == (status, None)
            mesh.gateway.popen.send_signal(signal.SIGTERM)
            await asyncio.to_thread(mesh.gateway.wait_for_event, "draining")
            for path, status in (("/v1/models", 200), ("/v1/nothing", 404)):
                asked = await client.get(path)
                assert (asked.status_code, asked.headers.get("connection")) == (status, "close")


async def test_the_drain_limit_cuts_with_an_error_event(scripts: str) -> None:
    """What is not done at the drain limit is told in-band."""
    limits = ["--drain-delay-s", "0", "--drain-limit-s", "0.5"]
    with Mesh(workers=[worker_args(scripts)], gateway_args=limits) as mesh:
        stream = await ask(mesh.gateway.address, "slow")
        await stream.wait_events(2)
        mesh.gateway.popen.send_signal(signal.SIGTERM)
        await asyncio.wait_for(stream.done, 10)
        assert json.loads(stream.payloads()[-2])["error"]["code"] == "shutting_down"
        assert stream.payloads()[-1] == b"[DONE]"
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0
        # The worker counts the same.
        metrics = f"http://{mesh.workers[0].ops_address}/metrics"
        await until(lambda: metric(metrics, 'inferway_worker_outcomes_total{outcome="shutting_down"}') == 1)


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
            await stream.wait_events(3)
        assert _running(mesh.workers[0]) == 64
        left = time.monotonic()
        for stream in streams[::2]:
            stream.close()
        await until(lambda: _running(mesh.workers[0]) == 32, 5, "half of the slots free")
        assert time.monotonic() - left < 5
        counts = [len(stream.events) for stream in streams[1::2]]

        def all_go_on() -> bool:
            return all(len(stream.events) > count for stream, count in zip(streams[1::2], counts, strict=True))

        await until(all_go_on, 5, "the others go on")
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
            with Process("gateway", *flags, env=token) as friend:
                url = f"http://{friend.address}/health/ready"
                await until(lambda: http_json(url)[0] == 200, 10, "ready")
            # It has had longer than the other.
            assert http_json(f"http://{stranger.address}/health/ready")[0] == 503


def test_open_to_the_world_needs_a_word() -> None:
    """Off loopback a gateway without authentication refuses to start, with a sentence."""
    process = Process("gateway", "--listen", "0.0.0.0:0", wait=False)
    with process:
        assert process.popen.wait(30) != 0
        assert "--insecure" in process.log_text()
        assert "Traceback" not in process.log_text()


async def test_values_at_the_edge_of_a_field_kill_nothing(scripts: str) -> None:
    """The largest values that a field may have reach the engine; one more is a 400; the gateway serves on."""
    with Mesh(workers=[worker_args(scripts)]) as mesh:
        address = mesh.gateway.address
        for field in ("top_k", "max_tokens"):
            served = await ask(address, "echo", **{field: 2**32 - 1})
            await until(lambda: served.status, 10, "an answer")  # noqa: B023
            assert served.status in (200, 400), field
            served.close()
            refused = await ask(address, "echo", **{field: 2**33})
            await until(lambda: refused.status, 10, "an answer")  # noqa: B023
            assert refused.status == 400
            refused.close()
        assert await answers(address)
        assert "Traceback" not in mesh.gateway.log_text()


async def test_a_choice_that_waits_beside_a_moving_one_is_no_stall(scripts: str) -> None:
    """With more choices than slots the waiting one is not taken for a stuck engine."""
    args = worker_args(scripts, "--max-running", "1")
    with Mesh(workers=[args], gateway_args=["--stall-s", "1"]) as mesh:
        stream = await ask(mesh.gateway.address, "brief", n=2)
        await asyncio.wait_for(stream.done, 30)
        reasons = [c["finish_reason"] for chunk in stream.chunks() for c in chunk["choices"] if c["finish_reason"]]
        assert reasons == ["stop", "stop"]


async def test_heartbeats_count_from_what_the_client_last_got(scripts: str) -> None:
    """Time in the queue counts: dispatch is no sign of life for the client."""
    args = worker_args(scripts, "--max-running", "1", "--max-waiting", "0")
    with Mesh(workers=[args], gateway_args=["--heartbeat-s", "2"]) as mesh:
        holder = await ask(mesh.gateway.address, "silent")
        await until(lambda: _running(mesh.workers[0]) == 1, 5, "slot taken")
        asked = time.monotonic()
        queued = await ask(mesh.gateway.address, "silent")
        await asyncio.sleep(1.2)
        holder.close()
        await until(lambda: queued.status, 10, "the status line")
        assert time.monotonic() - asked < 3.0
        queued.close()


async def test_a_stalled_worker_is_aborted_and_not_heard_any_more(scripts: str) -> None:
    """What a worker says after the request has moved on reaches nobody."""
    workers = [worker_args(scripts, "--name", "A"), worker_args(scripts, "--name", "B")]
    with Mesh(workers=workers, gateway_args=["--stall-s", "1"]) as mesh:
        streams = [await ask(mesh.gateway.address, "late") for _ in range(4)]
        for stream in streams:
            await asyncio.wait_for(stream.done, 30)
            assert stream.text() == "b" * 30
            assert stream.payloads()[-1] == b"[DONE]"
        await until(lambda: _running(mesh.workers[0]) == 0, 5, "A was aborted")


async def test_a_stall_on_every_worker_is_an_error_that_hurts_nobody_else(scripts: str) -> None:
    """Lost twice before the first token: 500 with x-should-retry, and the late output finds nobody."""
    with Mesh(workers=[worker_args(scripts)] * 2, gateway_args=["--stall-s", "1"]) as mesh:
        stream = await ask(mesh.gateway.address, "stuck", messages=[{"role": "user", "content": "a prompt of its own"}])
        await until(lambda: stream.status, 20, "an answer")
        assert stream.status == 500
        assert b"x-should-retry: false" in stream.head.lower()
        await asyncio.sleep(2.0)
        assert await answers(mesh.gateway.address)
        assert "Traceback" not in mesh.gateway.log_text()


async def test_a_slow_reader_that_is_cut_by_its_last_text(scripts: str) -> None:
    """The delta that passes the limit may be the last one of its request."""
    limits = ["--coalesce-bytes", "65536", "--client-buffer-bytes", "300000"]
    with Mesh(workers=[worker_args(scripts)], gateway_args=limits) as mesh:
        clients = [await ask(mesh.gateway.address, "heavy_end") for _ in range(10)]
        for client in clients:
            client.transport.pause_reading()
        await until(lambda: _outcomes(mesh).get("client_too_slow") == 10, 20, "cut")
        for client in clients:
            client.close()
        assert await answers(mesh.gateway.address)


async def test_a_frozen_worker_is_noticed(scripts: str) -> None:
    """A worker that no longer answers, though its connection stands, loses its requests within ten seconds or so."""
    workers = [worker_args(scripts, "--name", "A"), worker_args(scripts, "--name", "B")]
    with Mesh(workers=workers) as mesh:
        stream = await ask(mesh.gateway.address, "silent")
        frozen: list[Process] = []

        def find() -> bool:
            frozen[:] = [worker for worker in mesh.workers if _running(worker)]
            return bool(frozen)

        await until(find, 5, "some worker has it")
        frozen[0].popen.send_signal(signal.SIGSTOP)
        try:
            other = next(worker for worker in mesh.workers if worker is not frozen[0])
            await until(lambda: _running(other) == 1, 20, "the other worker has it")
        finally:
            frozen[0].popen.send_signal(signal.SIGCONT)
        stream.close()


async def test_continuous_usage_is_right_in_the_last_chunk(scripts: str) -> None:
    """Text that comes with the finish has the final counts."""
    with Mesh(workers=[worker_args(scripts)]) as mesh:
        options = {"include_usage": True, "continuous_usage_stats": True}
        stream = await ask(mesh.gateway.address, "three", stream_options=options)
        await asyncio.wait_for(stream.done, 10)
        counts = [chunk["usage"]["completion_tokens"] for chunk in stream.chunks() if chunk.get("usage")]
        assert counts[-1] == 3
        assert counts == sorted(counts)
        assert 0 not in counts


async def test_workers_that_describe_a_model_differently_are_not_mixed(scripts: str) -> None:
    """Prompts are made for one description; a worker with another one gets none, and an operator reads of it."""
    long = [{"role": "user", "content": "word " * 400}]
    with Mesh(workers=[worker_args(scripts), worker_args(scripts, "--capability", "max_model_len=100")]) as mesh:
        await until(lambda: mesh.gateway.events("worker_describes_model_differently"), 10, "it is logged")
        statuses = set()
        for _ in range(10):
            stream = await ask(mesh.gateway.address, "echo", messages=long, max_tokens=1)
            await until(lambda: stream.status, 10, "an answer")  # noqa: B023
            statuses.add(stream.status)
            stream.close()
        assert len(statuses) == 1, "the same prompt is either served always or never"
