"""`python -m inferway probe` against a running mesh, against one that fails, and against what is no mesh at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
import ssl
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import trustme

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


async def _read(reader: asyncio.StreamReader) -> None:
    """A whole request: what is closed with some of it unread resets the connection."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, length = head.partition(b"content-length: ")
    if length:
        await reader.readexactly(int(length.split(b"\r\n")[0]))


async def _serve(answer: bytes) -> asyncio.Server:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        writer.write(answer)
        await writer.drain()
        if answer.endswith(b"..."):
            await reader.read()  # until the client has had enough
        writer.close()

    return await asyncio.start_server(handle, "127.0.0.1", 0)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"
CHUNKED = HEAD.replace(b"event-stream\r\n", b"event-stream\r\nTransfer-Encoding: chunked\r\n")
REFUSED = (
    b"HTTP/1.1 %d No\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
    b'{"error": {"code": "%s", "message": "%s"}}'
)
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
        (HEAD + TOKEN + b": ...", "not done after 2 s"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "502 no word on why"),
        (b"SSH-2.0\r\n", "BadStatusLine: SSH-2.0\r\n"),
        (REFUSED % (429, b"rate_limit_exceeded", b"Too fast."), "429 rate_limit_exceeded: Too fast."),
        (REFUSED % (503, b"overloaded", b"Full."), "503 overloaded: Full."),
        (HEAD.replace(b"event-stream\r\n", b"event-stream\r\nContent-Length: 999\r\n") + TOKEN, "the stream broke off"),
        (CHUNKED + b"%x\r\n%s\r\n" % (len(TOKEN), TOKEN) + b"ff\r\ndata: ", "IncompleteRead: "),
        (HEAD + b"data: 7\n\ndata: [DONE]\n\n", "the stream ended without a token"),
        (HEAD + b'data: {"choices": [{"delta": null}, 3], "usage": 4}\n\n', "the stream broke off"),
        (HEAD + b'data: {"choices": null, "usage": {"completion_tokens": null}}\n\n', "the stream broke off"),
        (HEAD + b"data: " + b"x" * 2_000_000, "the stream broke off"),
        (b"", "RemoteDisconnected: Remote end closed connection without response"),
    ],
    ids=[
        *("broken", "empty", "failed", "silent", "bad gateway", "not HTTP", "429", "503", "cut length", "cut chunk"),
        *("number", "no delta", "no choices", "long line", "nothing"),
    ],
)
async def test_what_is_no_answer(answer: bytes, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Everything short of a token and a regular end is status 1."""
    server = await _serve(answer)
    async with server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        status = await asyncio.to_thread(canary.main, {}, [url, "--model", "m", "--timeout-s", "2"])
        result = json.loads(capsys.readouterr().out)
        assert (status, result["ok"]) == (1, False)
        assert result["reason"] == reason or (reason.endswith(" ") and result["reason"].startswith(reason))


async def test_nobody_listens(capsys: pytest.CaptureFixture[str]) -> None:
    """A refused connection is status 1, a line that is no URL status 2."""
    server = await _serve(b"")
    url = "http://{}:{}".format(*server.sockets[0].getsockname())
    server.close()
    await server.wait_closed()
    assert await asyncio.to_thread(canary.main, {}, [url]) == 1
    assert json.loads(capsys.readouterr().out)["reason"].startswith("ConnectionRefusedError: ")
    assert canary.main({}, ["localhost:8000"]) == 2


async def test_a_drip_is_no_answer(capsys: pytest.CaptureFixture[str]) -> None:
    """The time is for all of it: a byte now and then does not lengthen it."""

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        writer.write(HEAD + TOKEN + b": ")
        while not reader.at_eof():
            writer.write(b"x")
            await asyncio.sleep(0.1)
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(drip, "127.0.0.1", 0) as server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        began = time.monotonic()
        async with asyncio.timeout(20):
            status = await asyncio.to_thread(canary.main, {}, [url, "--model", "m", "--timeout-s", "1"])
        assert time.monotonic() - began >= 1.0
        result = json.loads(capsys.readouterr().out)
        assert (status, result["ok"], result["reason"]) == (1, False, "not done after 1 s")
        await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.parametrize("trusts", [True, False])
async def test_tls(trusts: bool, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A certificate that it is not told to trust, or of another name, is status 1; what it trusts serves."""
    authority, stranger = trustme.CA(), trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served = authority.issue_cert("localhost")
    served.configure_cert(context)
    ca_file = tmp_path / "ca.pem"
    (authority if trusts else stranger).cert_pem.write_to_path(str(ca_file))

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _read(reader)
        writer.write(HEAD + TOKEN + b"data: [DONE]\n\n")
        writer.close()
        with suppress(OSError):  # the client closes without TLS's last words
            await writer.wait_closed()
        ended.set()

    ended = asyncio.Event()
    async with await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context) as server:
        port = server.sockets[0].getsockname()[1]
        flags = ["--model", "m", "--ca-file", str(ca_file)]
        status = await asyncio.to_thread(canary.main, {}, [f"https://localhost:{port}", *flags])
        result = json.loads(capsys.readouterr().out)
        assert (status, result["ok"]) == ((0, True) if trusts else (1, False))
        if trusts:
            await asyncio.wait_for(ended.wait(), 10)
        else:
            assert result["reason"].startswith("SSLCertVerificationError: ")
        status = await asyncio.to_thread(canary.main, {}, [f"https://127.0.0.1:{port}", *flags])
        assert (status, json.loads(capsys.readouterr().out)["ok"]) == (1, False)
        # The certificate itself, whose name is another one: as inside a cluster.
        only = tmp_path / "only.pem"
        (served if trusts else stranger.issue_cert("127.0.0.1")).cert_chain_pems[0].write_to_path(str(only))
        flags = ["--model", "m", "--certificate", str(only)]
        status = await asyncio.to_thread(canary.main, {}, [f"https://127.0.0.1:{port}", *flags])
        assert (status, json.loads(capsys.readouterr().out)["ok"]) == ((0, True) if trusts else (1, False))


async def test_models_that_take_no_chats_are_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    """One for embeddings may be listed first; one that was named is the one that counts."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET "):
            writer.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"data": [{"id": "vectors"}, {"id": "talks"}]}')
        else:
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            model = json.loads(await reader.readexactly(length))["model"]
            no = REFUSED % (400, b"unsupported_value", b"No chats.")
            writer.write(HEAD + TOKEN + b"data: [DONE]\n\n" if model == "talks" else no)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        url = "http://{}:{}".format(*server.sockets[0].getsockname())
        for flags, status, model in (([], 0, "talks"), (["--model", "vectors"], 1, "vectors")):
            assert await asyncio.to_thread(canary.main, {}, [url, *flags]) == status
            assert json.loads(capsys.readouterr().out)["model"] == model


async def test_a_key_that_cannot_be_sent(mesh: Mesh) -> None:
    """A line's end behind the key, as files have it, does no harm; one within it is a failure that does not show it."""
    done = await inferway("probe", mesh.url(), INFERWAY_PROBE_KEY=f"{KEY}\n")
    assert done.status == 0, done.out + done.err
    done = await inferway("probe", mesh.url(), INFERWAY_PROBE_KEY="sk-\nCANARY")
    assert (done.status, done.json["ok"], done.json["reason"]) == (1, False, "the key is no text for a header")
    assert "CANARY" not in done.out + done.err


@pytest.mark.parametrize("url", ["http://localhost:99999", "http://[::1", "http://" + "a" * 80, "http://a b:1"])
def test_no_url(url: str) -> None:
    """What is no URL is a wrong command line, or one line about it; never a traceback."""
    assert canary.main({}, [url, "--timeout-s", "1"]) in (1, 2)
