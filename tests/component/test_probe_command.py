"""`python -m inferway probe` against a running mesh, against one that fails, and against what is no mesh at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Iterator

import pytest

from inferway.cli import canary
from tests.support.command import inferway
from tests.support.processes import Mesh

KEY = "sk-probe"


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """A mesh that asks for a key."""
    tenants = tmp_path_factory.mktemp("tenants") / "tenants.yaml"
    digest = hashlib.sha256(KEY.encode()).hexdigest()
    tenants.write_text(json.dumps({"tenants": {"operators": {"keys": {"probe": {"sha256": digest}}}}}))
    with Mesh(gateway_args=["--tenants", str(tenants)]) as found:
        yield found


async def test_a_token_comes(mesh: Mesh) -> None:
    """Status 0, and how long the first token took; the key comes from the environment and shows nowhere."""
    done = await inferway("probe", mesh.url(), INFERWAY_PROBE_KEY=KEY)
    assert done.status == 0, done.out + done.err
    assert done.json["ok"]
    assert done.json["reason"] == ""
    assert done.json["status"] == 200
    assert done.json["request_id"]
    assert 0.0 < done.json["ttft_ms"] <= done.json["total_ms"]
    assert done.out.count("\n") == 1
    assert KEY not in done.out + done.err


@pytest.mark.parametrize(
    ("key", "reason"), [(KEY, "404 model_not_found: "), ("sk-other", "401 invalid_api_key: ")], ids=["model", "key"]
)
async def test_a_refusal(mesh: Mesh, key: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, and the words of the refusal."""
    arguments = [mesh.url("/"), "--model", "nobody"]
    status = await asyncio.to_thread(canary.main, {"INFERWAY_PROBE_KEY": key}, arguments)
    result = json.loads(capsys.readouterr().out)
    assert (status, result["ok"], result["status"]) == (1, False, int(reason[:3]))
    assert result["reason"].startswith(reason)


async def _serve(answer: bytes) -> asyncio.Server:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        if answer.endswith(b"..."):
            await reader.read()  # until the client has had enough
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
TOKEN = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (HEAD + TOKEN, "the stream broke off"),
        (HEAD + b"data: [DONE]\n\n", "the stream ended without a token"),
        (
            HEAD + b'data: {"error": {"code": "worker_failed", "message": "Gone."}}\n\n',
            "200 worker_failed: Gone.",
        ),
        (HEAD + TOKEN + b": ...", "TimeoutError: timed out"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "502 no word on why"),
        (b"SSH-2.0\r\n", "BadStatusLine: SSH-2.0\r\n"),
    ],
    ids=["broken", "empty", "failed", "silent", "bad gateway", "not HTTP"],
)
async def test_what_is_no_answer(answer: bytes, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything short of a token and a regular end is status 1."""
    server = await _serve(answer)
    async with server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        status = await asyncio.to_thread(canary.main, {}, [url, "--model", "m", "--timeout-s", "2"])
        result = json.loads(capsys.readouterr().out)
        assert (status, result["ok"], result["reason"]) == (1, False, reason)


async def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused connection is status 1, a line that is no URL status 2."""
    server = await _serve(b"")
    url = "http://{}:{}".format(*server.sockets[0].getsockname())
    server.close()
    await server.wait_closed()
    assert await asyncio.to_thread(canary.main, {}, [url]) == 1
    assert json.loads(capsys.readouterr().out)["reason"].startswith("ConnectionRefusedError: ")
    assert canary.main({}, ["localhost:8000"]) == 2
