"""The line `request` of the gateway's log: one for every request, however it ends, and nothing in it that is secret."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pytest

from tests.support.client import send
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream, connection
from tests.support.tenants import bearer, tenants_file
from tests.support.waiting import until

CHAT = "POST /v1/chat/completions"
CANARY = "CANARY"
HI = [{"role": "user", "content": f"{CANARY} hello"}]
ASK = {"model": "m-text", "messages": HI, "user": f"{CANARY}@example.com"}
KEY, BOUND = f"key{CANARY}", f"bound{CANARY}"
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "slow": [{"text": f"{CANARY} ", "repeat": 400, "gap_ms": 20}, {"finish": "stop"}],
    "flood": [{"text": CANARY * 200, "repeat": 40_000}, {"finish": "length"}],
    "fail": [{"grpc_error": {"code": "INTERNAL", "details": "broken"}}],
    "late": [{"text": "a"}, {"grpc_error": {"code": "INTERNAL", "details": "broken"}}],
}
FIELDS = {
    *("time", "level", "service", "event", "request_id", "route", "status", "outcome", "model", "tenant_id", "key_id"),
    *("user_hash", "stream", "worker_id", "max_tokens", "prompt_tokens", "cached_tokens", "completion_tokens"),
    *("queue_ms", "ttft_ms", "e2e_ms"),
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    folder = tmp_path_factory.mktemp("lines")
    (folder / "scripts.json").write_text(json.dumps(SCRIPTS))
    tenants = tenants_file(
        folder, **{KEY: {"keys": {"k": {}}}, BOUND: {"keys": {"k": {}}, "quota": {"requests_per_minute": 1}}}
    )
    # What a tenant and its key are called may be logged; the key itself is made of another word.
    text = tenants.read_text().replace(f'"{KEY}"', '"open"').replace(f'"{BOUND}"', '"bound"')
    tenants.write_text(text)
    worker = ["--engine", "scripted", "--scripts", str(folder / "scripts.json")]
    worker += ["--max-running", "2", "--max-waiting", "0"]
    limits = ["--max-body-bytes", "5000", "--body-timeout-s", "3", "--queue-timeout-s", "0.5"]
    limits += ["--client-buffer-bytes", "1000000", "--drain-delay-s", "0.1", "--drain-limit-s", "0.5"]
    debug = ["--log-level", "debug"]
    with Mesh(
        workers=[[*worker, *debug]], router_args=debug, gateway_args=["--tenants", str(tenants), *limits, *debug]
    ) as found:
        yield found


class Line:
    """Waits for the only line of a request that it had not seen."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._seen = len(mesh.gateway.events("request"))

    async def __call__(self) -> Mapping[str, Any]:
        def new() -> list[dict[str, Any]]:
            return self._mesh.gateway.events("request")[self._seen :]

        await until(new, 10, "a line for the request")
        await asyncio.sleep(0.05)  # a second one would come with it
        (line,) = new()
        assert line.keys() == FIELDS
        assert line["e2e_ms"] >= 0.0
        return line


async def raw(mesh: Mesh, text: bytes) -> bytes:
    async with asyncio.timeout(10), connection(mesh.gateway.address) as (reader, writer):
        writer.write(text)
        return await reader.read()


class Ended(NamedTuple):
    http: str
    status: int
    outcome: str
    body: Any = ASK
    key: str = KEY
    headers: Mapping[str, str] = {}


EMBED = {"model": "m-embed", "input": HI[0]["content"]}
ENDED = {
    "whole": Ended(CHAT, 200, "ok"),
    "stream": Ended(CHAT, 200, "ok", {**ASK, "stream": True}),
    "completion": Ended("POST /v1/completions", 200, "ok", {"model": "m-text", "prompt": CANARY}),
    "embedding": Ended("POST /v1/embeddings", 200, "ok", EMBED),
    "tokenize": Ended("POST /v1/tokenize", 200, "ok", {"model": "m-text", "prompt": CANARY}),
    "models": Ended("GET /v1/models", 200, "ok", None),
    "no JSON": Ended(CHAT, 400, "invalid_request", f"{CANARY}{{"),
    "no message": Ended(CHAT, 400, "invalid_request", {"model": "m-text", "messages": [CANARY]}),
    "no key": Ended(CHAT, 401, "invalid_api_key", ASK, f"sk-{CANARY}"),
    "no path": Ended(f"GET /{CANARY}", 404, "unknown_url", None),
    "no model": Ended(CHAT, 404, "model_not_found", {**ASK, "model": "nobody"}),
    "method": Ended("DELETE /v1/models", 405, "method_not_allowed", None),
    "too large": Ended(CHAT, 413, "payload_too_large", {**ASK, "messages": HI * 500}),
    "no media": Ended(CHAT, 415, "unsupported_media_type", ASK, KEY, {"Content-Type": "text/plain"}),
    "long header": Ended(CHAT, 431, "headers_too_large", ASK, KEY, {"X-Long": CANARY * 20_000}),
    "engine": Ended(CHAT, 500, "worker_failed", ASK, KEY, {"X-Request-Id": "fail.1"}),
    "engine in a stream": Ended(CHAT, 200, "worker_failed", {**ASK, "stream": True}, KEY, {"X-Request-Id": "late.1"}),
}


@pytest.mark.parametrize("ended", ENDED.values(), ids=ENDED)
async def test_answers(mesh: Mesh, ended: Ended) -> None:
    """Served or refused, at whatever stage."""
    line = Line(mesh)
    headers = {**bearer(ended.key), **ended.headers}
    body = {"raw": ended.body.encode()} if isinstance(ended.body, str) else {"body": ended.body}
    answer = await send(mesh.gateway.address, ended.http, headers=headers, **body)
    assert answer.status == ended.status
    said = await line()
    assert (said["status"], said["outcome"]) == (ended.status, ended.outcome)
    assert said["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (b"CANARY\r\n\r\n", 400),
        (b"FOO / HTTP/1.1\r\nHost: a\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nZZ\r\n", 400),
    ],
)
async def test_what_is_no_http(mesh: Mesh, text: bytes, status: int) -> None:
    """What the parser refuses has its line, and is counted."""
    line = Line(mesh)
    answer = await raw(mesh, text)
    said = await line()
    assert (said["status"], said["outcome"], said["route"]) == (status, "invalid_request", "other")
    assert said["request_id"].encode() in answer
    page = await send(mesh.gateway.address, "GET /metrics")
    assert b'inferway_gateway_http_responses_total{route="other",status="400"}' in page.body


HALF = f"{CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nContent-Length: 100\r\n\r\n{{".encode()


@pytest.mark.slow
async def test_a_body_that_does_not_come(mesh: Mesh) -> None:
    """408 after the time for a body, and 499 for a client that leaves in the middle of it."""
    line = Line(mesh)
    await raw(mesh, HALF)
    assert (await line())["outcome"] == "request_timeout"
    line = Line(mesh)
    async with connection(mesh.gateway.address) as (_, writer):
        writer.write(HALF)
        await asyncio.sleep(0.1)
    said = await line()
    assert (said["status"], said["outcome"], said["tenant_id"]) == (499, "client_closed_request", "open")


async def test_a_quota(mesh: Mesh) -> None:
    """429, with the tenant that is over it."""
    line = Line(mesh)
    assert (await send(mesh.gateway.address, CHAT, body=ASK, headers=bearer(BOUND))).status == 200
    await line()
    line = Line(mesh)
    assert (await send(mesh.gateway.address, CHAT, body=ASK, headers=bearer(BOUND))).status == 429
    said = await line()
    assert (said["outcome"], said["tenant_id"], said["model"]) == ("rate_limited", "bound", "m-text")


async def _stream(mesh: Mesh, script: str) -> EventStream:
    headers = {"X-Request-Id": f"{script}.x", **bearer(KEY)}
    return await EventStream.open(mesh.gateway.address, {**ASK, "stream": True}, headers=headers)


@pytest.mark.slow
async def test_streams_that_end_early(mesh: Mesh) -> None:
    """Left in the queue, too long in it, left in the middle, not read, and cut as the worker dies."""
    running = [await _stream(mesh, "slow") for _ in range(2)]
    for one in running:
        await one.wait_events(2)
    line = Line(mesh)
    late = await _stream(mesh, "slow")
    await asyncio.wait_for(late.done, 10)
    said = await line()
    assert (said["status"], said["outcome"], said["ttft_ms"]) == (503, "overloaded", None)
    line = Line(mesh)
    waiting = await _stream(mesh, "slow")
    await asyncio.sleep(0.2)
    waiting.close()
    said = await line()
    assert (said["outcome"], said["queue_ms"], said["worker_id"]) == ("client_closed_request", None, "")
    line = Line(mesh)
    running[0].close()
    said = await line()
    assert said["outcome"] == "client_closed_request"
    assert said["completion_tokens"] > 0
    assert said["ttft_ms"] > 0.0
    line = Line(mesh)
    flood = await _stream(mesh, "flood")
    await flood.wait_events(2)
    flood.pause()
    assert (await line())["outcome"] == "client_too_slow"
    flood.close()
    line = Line(mesh)
    mesh.workers[0].kill()
    said = await line()
    assert (said["status"], said["outcome"]) == (200, "worker_failed")
    line = Line(mesh)
    assert (await send(mesh.gateway.address, CHAT, body=ASK, headers=bearer(KEY))).status == 503
    assert (await line())["outcome"] in ("model_not_ready", "overloaded")
    mesh.start_worker_again(0)
    mesh.wait_ready()


async def test_the_end_of_the_gateway(mesh: Mesh) -> None:
    """A stream that is cut at the drain limit, and a body that is still on its way then, end by the shutdown."""
    stream = await _stream(mesh, "slow")
    await stream.wait_events(2)
    before = len(mesh.gateway.events("request"))
    async with connection(mesh.gateway.address) as (_, writer):
        writer.write(HALF)
        await writer.drain()
        mesh.gateway.popen.send_signal(signal.SIGTERM)
        await asyncio.wait_for(stream.done, 20)
        assert await asyncio.to_thread(mesh.gateway.popen.wait, 20) == 0
    cut, unread = mesh.gateway.events("request")[before:]
    assert (cut["status"], cut["outcome"]) == (200, "shutting_down")
    assert cut["completion_tokens"] > 0
    assert (unread["status"], unread["outcome"], unread["tenant_id"]) == (503, "shutting_down", "open")


def test_nothing_secret(mesh: Mesh) -> None:
    """No line of any process, not even at debug, has held what was asked, answered, or the key of the caller."""
    for process in mesh.processes():
        assert CANARY not in process.log_text()
