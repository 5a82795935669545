"""Handed cases that need an installation of their own: limits, retries, signals, health, several processes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import ASK, CHAT, STREAM, first_event, log_line, run
from tests.support.client import Answer, send
from tests.support.probes import http_json, http_text, metric
from tests.support.processes import Mesh, Process, engine_load, start_worker
from tests.support.slow_worker import Relay
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

SCRIPTED = ("--engine", "scripted", "--scripts", str(CASES_FILE))


@case("ERR-03")
async def test_a_request_above_the_context(case: Any) -> None:
    """Prompt, or prompt and completion, above the context is a 400 that says the limit and both counts."""
    with Mesh(workers=[["--engine", "scripted", "--capability", "max_model_len=8192"]]) as mesh:
        installation = Installation(mesh)
        answer = await run(case, installation)
        assert answer.status == 400
        assert answer.error["code"] == "context_length_exceeded"
        assert answer.error["type"] == "invalid_request_error"
        assert answer.error["param"] == "messages"
        assert "maximum context length is 8192 tokens" in answer.error["message"]
        assert not re.search(r"-\d", answer.error["message"])
        both = await installation.send(CHAT, body={**ASK, "max_tokens": 8192})
        assert both.error["code"] == "context_length_exceeded"
        assert "8192 tokens of completion" in both.error["message"]


@case("ERR-04")
async def test_overload(case: Any) -> None:
    """What finds neither a slot nor a place in the queue is a 503 that says when to come back."""
    worker = [*SCRIPTED, "--max-running", "1", "--max-waiting", "0"]
    limits = ["--queue-timeout-s", "2"]
    with Mesh(workers=[worker], router_args=["--queue-limit-requests", "1"], gateway_args=limits) as mesh:
        installation = Installation(mesh)
        holder = await installation.open(STREAM, "ERR-04.0")
        await until(lambda: installation.engine_load() == 1, 5, "slot taken")
        answers = await asyncio.gather(
            *(installation.send(CHAT, body=STREAM, request_id=f"ERR-04.{index}") for index in range(1, 6))
        )
        for answer in answers:
            assert answer.status == 503
            assert answer.error["code"] == "overloaded"
            assert int(answer.headers["Retry-After"]) >= 1
        holder.close()


@case("RTY-01")
async def test_no_second_attempt_after_output(case: Any) -> None:
    """A worker that fails after its first text is told in-band; no other worker begins again."""
    with Mesh(workers=[[*SCRIPTED, "--name", "A"], [*SCRIPTED, "--name", "B"]]) as mesh:
        answer = await answered_by_a(case, Installation(mesh))
        assert answer.joined("content") == "Here is"
        assert answer.error["type"] == "server_error"
        assert answer.events[-1] == "[DONE]"


async def answered_by_a(case: Any, installation: Installation) -> Answer:
    """Repeat the request until worker A was the first that got it."""
    for attempt in range(40):
        request_id = f"{case['id']}.{attempt}"
        answer = await installation.send(CHAT, body=case["input"]["body"], request_id=request_id, timeout_s=30)
        line = await log_line(installation, request_id)
        if line["worker_id"] == "A":
            return answer
    raise AssertionError("worker A was never chosen")


@case("RTY-03")
async def test_a_stall_is_an_error(case: Any) -> None:
    """A worker that goes silent in the middle ends in an error event, and its engine is told."""
    with Mesh(workers=[SCRIPTED], gateway_args=["--stall-s", "1.5"]) as mesh:
        answer = await run(case, Installation(mesh))
        assert answer.joined("content") == "part"
        assert answer.finish_reasons() == []
        assert answer.error["code"] == "upstream_timeout"
        assert answer.events[-1] == "[DONE]"
        await until(lambda: engine_load(mesh.workers[0]) == 0, 2, "engine aborted")


@case("RTY-04")
async def test_refusals_keep_their_status(case: Any) -> None:
    """If every worker refuses it is a 503 with Retry-After; if one takes it, nobody notices."""
    with Mesh(workers=[[*SCRIPTED, "--name", "A"], [*SCRIPTED, "--name", "B"]]) as mesh:
        answer = await run(case, Installation(mesh))
        assert answer.status == 503, answer.body
        assert answer.headers["Content-Type"].startswith("application/json")
        assert int(answer.headers["Retry-After"]) >= 1
    with Mesh(workers=[[*SCRIPTED, "--name", "A"], [*SCRIPTED, "--name", "C"]]) as mesh:
        installation = Installation(mesh)
        for attempt in range(6):
            answer = await installation.send(CHAT, body=case["input"]["body"], request_id=f"RTY-04.{attempt}")
            assert answer.status == 200


@case("LIF-03")
async def test_sigterm_under_load(case: Any) -> None:
    """Readiness goes at once, requests are served through the delay, none fails, and the exit status is 0."""
    with Mesh(gateway_args=["--drain-delay-s", "3"]) as mesh:
        results: list[Answer] = []

        async def keep_asking() -> None:
            while True:
                results.append(await send(mesh.gateway.address, CHAT, body=ASK))
                await asyncio.sleep(0.02)

        askers = [asyncio.create_task(keep_asking()) for _ in range(2)]
        await until(lambda: len(results) >= 20, 10, "requests are served")
        mesh.gateway.popen.terminate()
        await until(lambda: http_json(mesh.url("/health/ready"))[0] == 503, 2, "readiness is off")
        assert http_json(mesh.url("/health/ready"))[1]["status"] == "shutting_down"
        before = len(results)
        await until(lambda: len(results) >= before + 20, 2.5, "requests are served through the delay")
        for asker in askers:
            asker.cancel()
        await asyncio.wait(askers)
        assert all(asker.cancelled() for asker in askers), "no request failed"
        assert all(answer.status == 200 for answer in results)
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0


@case("LIF-04")
async def test_a_gap_without_workers(case: Any) -> None:
    """Requests that come while no worker is there wait, and are served when one is back."""
    with Mesh() as mesh:
        mesh.workers[0].kill()
        await until(lambda: http_json(mesh.url("/health/ready"))[0] == 503, 5, "the gateway knows")
        asks = [asyncio.create_task(send(mesh.gateway.address, CHAT, body=ASK)) for _ in range(100)]
        in_flight = "inferway_gateway_requests_in_flight"
        await until(lambda: metric(mesh.url("/metrics"), in_flight) >= 100, 5, "all are waiting")
        await asyncio.to_thread(mesh.start_worker_again, 0)
        answers = await asyncio.gather(*asks)
        assert [answer.status for answer in answers] == [200] * 100


@case("HLT-04")
async def test_states_of_health(case: Any) -> None:
    """Starting: live, not ready, requests refused. Serving: all well. Draining: live, not ready, then refused."""
    nobody = ("--workers", "127.0.0.1:1", "--drain-delay-s", "0")
    with Process("gateway", "--listen", "127.0.0.1:0", *nobody) as gateway:
        assert http_json(f"http://{gateway.address}/health")[0] == 200
        assert http_json(f"http://{gateway.address}/health/ready")[0] == 503
        answer = await send(gateway.address, CHAT, body=ASK)
        assert answer.status == 503
    with Mesh(workers=[SCRIPTED], gateway_args=["--drain-delay-s", "1"]) as mesh:
        installation = Installation(mesh)
        assert http_json(mesh.url("/health"))[0] == http_json(mesh.url("/health/ready"))[0] == 200
        assert (await installation.send(CHAT, body=ASK)).status == 200
        running = await installation.open(STREAM, "DSC-04.drain")
        await first_event(running)
        mesh.gateway.popen.terminate()
        await until(lambda: http_json(mesh.url("/health/ready"))[0] == 503, 2, "readiness is off")
        assert http_json(mesh.url("/health"))[0] == 200
        assert http_json(mesh.url("/health/ready"))[1]["status"] == "shutting_down"
        async with asyncio.timeout(10):
            while (refused := await installation.send(CHAT, body=ASK)).status == 200:
                await asyncio.sleep(0.05)
        assert refused.status == 503
        assert refused.error["code"] == "shutting_down"
        assert refused.headers["Connection"] == "close"
        assert not running.done.done()
        mesh.gateway.popen.terminate()
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0


@case("MET-03")
async def test_metrics_of_all_processes(case: Any) -> None:
    """Whichever of four processes is scraped, the counts are those of all."""
    with Mesh(gateway_args=["--processes", "4"]) as mesh:
        page, ready = mesh.url("/metrics"), mesh.url("/health/ready")
        sessions = "inferway_gateway_worker_sessions"
        await until(lambda: metric(page, sessions) == 4, 60, "every process has its worker")
        # Which process takes a connection is up to the kernel: so many yeses in a row come from all of them.
        await until(lambda: all(http_json(ready)[0] == 200 for _ in range(50)), 60, "every process is ready")
        for _ in range(10):
            answers = await asyncio.gather(*(send(mesh.gateway.address, CHAT, body=ASK) for _ in range(20)))
            assert {answer.status for answer in answers} == {200}
        seen = []
        for _ in range(20):
            text = (await send(mesh.gateway.address, "GET /metrics")).body.decode()
            values = re.findall(r'^inferway_gateway_requests_total\{.*outcome="ok".*\} (\S+)$', text, re.M)
            seen.append(sum(map(float, values)))
        assert seen == [200.0] * 20


@case("HLT-01")
async def test_ready_with_the_tokenizer(case: Any) -> None:
    """A worker is connected and healthy, its tokenizer has not come: 503 with the reason; then all is well at once."""
    with await asyncio.to_thread(start_worker, *SCRIPTED) as worker:
        async with Relay(worker.address, "GetTokenizer") as relay:
            flags = ("--listen", "127.0.0.1:0", "--workers", relay.address)
            with await asyncio.to_thread(Process, "gateway", *flags) as gateway:
                page = f"http://{gateway.address}/health/ready"
                await until(lambda: relay.held, what="the gateway has asked for the tokenizer")
                for _ in range(10):
                    status, body = await asyncio.to_thread(http_json, page)
                    assert status == 503
                    assert "tokenizers" in body["status"]
                    await asyncio.sleep(0.05)
                assert body["workers"] == 1
                relay.release.set()

                async def is_ready() -> bool:
                    status, _ = await asyncio.to_thread(http_json, page)
                    return status == 200

                async with asyncio.timeout(20):
                    while not await is_ready():
                        await asyncio.sleep(0.01)
                answer = await send(gateway.address, CHAT, body=ASK)
                assert answer.status == 200


@pytest.mark.slow
@pytest.mark.timeout(600)
@case("MET-04")
async def test_metrics_of_killed_processes(case: Any) -> None:
    """Fifty kills later gauges are those of who lives, counts have lost nothing, and there are no more files."""
    with Mesh(gateway_args=["--processes", "4"]) as mesh, Mesh(gateway_args=["--processes", "2"]) as other:
        parent = psutil.Process(mesh.gateway.pid)
        page, sessions = mesh.url("/metrics"), "inferway_gateway_worker_sessions"
        await until(lambda: metric(page, sessions) == 4, 60, "every process has its worker")
        assert (await send(mesh.gateway.address, CHAT, body=ASK)).status == 200
        folder, their_folder = (
            Path(psutil.Process(one.gateway.pid).children()[0].environ()["PROMETHEUS_MULTIPROC_DIR"])
            for one in (mesh, other)
        )
        assert folder != their_folder
        files = len(list(folder.iterdir()))
        for _ in range(10):
            for process in parent.children():
                process.kill()
            await until(lambda: _answers(page) and metric(page, sessions) == 4, 60, "all four are back")
            parent.children()[0].kill()
            await until(lambda: _answers(page) and metric(page, sessions) == 4, 60, "the fifth is back")
        assert len(list(folder.iterdir())) == files
        assert metric(page, "inferway_gateway_requests_total") == 1
        assert metric(page, "inferway_gateway_requests_in_flight") == 0
        assert metric(other.url("/metrics"), sessions) == 2


def _answers(page: str) -> bool:
    try:
        return "inferway_gateway_build_info" in http_text(page)
    except OSError:
        return False
