"""The gateway's front around handlers that end in unusual ways."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
from aiohttp import web

from gateway.core.tenants import Caller
from gateway.http_server import HttpServer
from gateway.metrics import Metrics
from gateway.middleware import Exchange, Front, Handler
from inferway.metrics import Registry
from tests.support.raw_client import connection

REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"
METRICS = Metrics(Registry("front_test"))


async def answer(handler: Handler) -> bytes:
    """What a client gets whose request this handler serves."""

    async def caller_of(_authorization: str) -> Caller:
        return Caller("t")

    front = Front(
        {"/v1/chat/completions": {"POST": handler}}, METRICS, caller_of, lambda _: False, lambda *_: None, 1.0
    )
    runner = web.ServerRunner(HttpServer(front, max_header_bytes=8190, keepalive_s=5))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0][:2]
        async with connection(f"{host}:{port}") as (reader, writer):
            writer.write(REQUEST)
            return await asyncio.wait_for(reader.readuntil(b"}}") if handler is fails else reader.read(), 10)
    finally:
        await runner.cleanup()


async def leaves(request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
    """The client resets between the first token and the head of the answer."""
    assert request.transport is not None
    request.transport.abort()
    response = web.StreamResponse()
    await response.prepare(request)
    return response


async def fails(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
    raise RuntimeError("a secret detail")


async def test_a_client_that_leaves_just_before_its_answer_is_no_fault(caplog: pytest.LogCaptureFixture) -> None:
    """One line with the outcome, no error and no traceback."""
    with caplog.at_level(logging.INFO):
        assert await answer(leaves) == b""
    assert [record.levelname for record in caplog.records if record.levelno >= logging.ERROR] == []
    (line,) = [record for record in caplog.records if record.getMessage() == "request"]
    assert getattr(line, "fields")["outcome"] == "client_closed_request"  # noqa: B009


async def test_a_fault_of_ours_is_told_without_its_detail(caplog: pytest.LogCaptureFixture) -> None:
    """The caller gets the error object and the id; the log gets the traceback under the same id."""
    received = await answer(fails)
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500")
    assert json.loads(body)["error"]["code"] == "internal_error"
    assert b"secret" not in received
    assert any(record.exc_info for record in caplog.records)
