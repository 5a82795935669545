"""Bad input: the right status and the error object, nothing at the engine, no traceback, no hung connection."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import Mesh
from tests.support.raw_client import connection

pytestmark = pytest.mark.timeout(120)

GOOD = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bad") / "record.jsonl"


@pytest.fixture(scope="module")
def mesh(record: Path) -> Iterator[Mesh]:
    worker = ["--engine", "scripted", "--record", str(record), "--capability", "max_model_len=1000"]
    limits = ["--max-body-bytes", "100000", "--body-timeout-s", "1"]
    with Mesh(workers=[worker], gateway_args=limits) as mesh:
        yield mesh


async def exchange(mesh: Mesh, data: bytes, *, close_writing: bool = False, timeout_s: float = 10.0) -> bytes:
    """Send raw bytes and read what comes until the server closes, or one whole answer with a length has come."""
    received = b""
    with suppress(ConnectionResetError):
        async with asyncio.timeout(timeout_s), connection(mesh.gateway.address) as (reader, writer):
            writer.write(data)
            if close_writing:
                writer.write_eof()
            while piece := await reader.read(65536):
                received += piece
                head, separator, body = received.partition(b"\r\n\r\n")
                length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
                if separator and length and len(body) >= int(length[0].split(b":")[1]):
                    break
    return received


def post(body: bytes, *headers: str, path: str = "/v1/chat/completions") -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *headers]
    if not any(header.lower().startswith("content-type") for header in headers):
        lines.append("Content-Type: application/json")
    return "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape") + body


def parts(answer: bytes) -> tuple[int, dict[str, object]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1."), answer[:200]
    assert b"x-request-id: " in head.lower()
    assert b"application/json" in head.lower()
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split(b" ", 2)[1]), error


def good(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


CHAT_HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
HUGE_LENGTH = CHAT_HEAD + b"Content-Type: application/json\r\nContent-Length: 99999999999\r\n\r\n{"
INVALID_UTF8 = b'{"model":"m-text","messages":[{"role":"user","content":"\xff\xfe"}]}'
HALF_A_PAIR = b'{"model":"m-text","messages":[{"role":"user","content":"\\udc00"}]}'
SNIPPETS = (b"null", b"[", b"}", b"\\ud800", b"1e999", b'"', b"\x00", b"-1")
FORM = "Content-Type: application/x-www-form-urlencoded"
LONG = [{"role": "user", "content": "z" * 50_000}]

NESTED: dict[str, object] = {"name": "f"}
for _ in range(700):
    NESTED = {"name": "f", "parameters": NESTED}

CASES: list[tuple[str, bytes, int, str | None, str | None]] = [
    ("not JSON", post(b"hello"), 400, None, None),
    ("empty body", post(b""), 400, None, None),
    ("truncated JSON", post(good()[:-5]), 400, None, None),
    ("invalid UTF-8", post(INVALID_UTF8), 400, None, None),
    ("half a surrogate pair", post(HALF_A_PAIR), 400, "messages[0].content", None),
    ("wrong type", post(good(temperature="hot")), 400, "temperature", None),
    ("unknown model", post(good(model="nobody")), 404, "model", "model_not_found"),
    ("over-long prompt", post(good(messages=LONG)), 400, "messages", "context_length_exceeded"),
    ("huge body", post(b"[" + b" " * 200_000 + b"]"), 413, None, "payload_too_large"),
    ("huge announced body", HUGE_LENGTH, 413, None, "payload_too_large"),
    ("form content", post(b"a=b", FORM), 415, None, "unsupported_media_type"),
    ("unknown path", post(good(), path="/v1/responses"), 404, None, "unknown_url"),
    ("wrong method", b"GET /v1/chat/completions HTTP/1.1\r\nHost: x\r\n\r\n", 405, None, "method_not_allowed"),
    ("body that stops coming", post(good())[:-10], 408, None, "request_timeout"),
    ("a huge header", post(good(), "X-Long: " + "a" * 40_000), 431, None, "headers_too_large"),
    ("many headers", post(good(), "\r\n".join(f"X-{n}: a" for n in range(200))), 431, None, "headers_too_large"),
    ("not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 tls hello\r\n\r\n", 400, None, None),
    ("bad chunk size", CHAT_HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n", 400, None, None),
    ("two lengths", CHAT_HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400, None, None),
    ("nested deeply", post(good(chat_template_kwargs={"x": NESTED})), 400, None, None),
    ("an integer without end", post(good().replace(b'"m-text"', b'"m-text", "n": 1' + b"0" * 400)), 400, "n", None),
    ("bytes in the content type", post(good(), "Content-Type: text/\udcff"), 415, None, "unsupported_media_type"),
    ("a compressed body", post(good(), "Content-Encoding: gzip"), 415, None, "unsupported_media_type"),
    ("kwargs over messages", post(good(chat_template_kwargs={"messages": []})), 400, "chat_template_kwargs", None),
    ("logit_bias beyond the vocabulary", post(good(logit_bias={"99999999": 1})), 400, "logit_bias", None),
]


@pytest.mark.parametrize(("case", "data", "status", "param", "code"), CASES, ids=[case[0] for case in CASES])
async def test_bad_input(
    case: str, data: bytes, status: int, param: str | None, code: str | None, mesh: Mesh, record: Path
) -> None:
    """Each kind of nonsense gets its row of the error table, and nothing reaches the engine."""
    before = record.read_text()
    observed, error = parts(await exchange(mesh, data))
    assert observed == status, (case, error)
    assert error["param"] == param
    if code is not None:
        assert error["code"] == code
    assert record.read_text() == before
    assert "Traceback" not in mesh.gateway.log_text()


async def test_a_client_that_breaks_off_is_no_error_of_ours(mesh: Mesh) -> None:
    """A body cut by a closed connection leaves one line with 499 and no traceback."""
    assert await exchange(mesh, post(good())[:-10], close_writing=True) == b""
    assert "Traceback" not in mesh.gateway.log_text()


async def test_mutated_bodies_never_hurt(mesh: Mesh) -> None:
    """Random damage to a good body gives 200 or a 4xx with an error object, and the gateway keeps serving."""
    rng = random.Random(7)
    seed = good(stop=["a"], temperature=0.5, logit_bias={"1": 2}, stream=False, max_tokens=3, n=1)

    async def one() -> None:
        body = bytearray(seed)
        for _ in range(rng.randint(1, 4)):
            position = rng.randrange(len(body))
            match rng.randrange(4):
                case 0:
                    body[position] = rng.randrange(256)
                case 1:
                    del body[position : position + rng.randint(1, 20)]
                case 2:
                    body[position:position] = rng.choice(
                        [b"null", b"[", b"}", b"\\ud800", b"1e999", b'"', b"\x00", b"-1"]
                    )
                case _:
                    body[position:position] = body[: rng.randint(1, 30)]
        answer = await exchange(mesh, post(bytes(body)))
        status = int(answer.split(b" ", 2)[1])
        assert status == 200 or 400 <= status < 500, (bytes(body), answer)

    for _ in range(40):
        await asyncio.gather(*(one() for _ in range(25)))
    assert "Traceback" not in mesh.gateway.log_text()
    assert (await exchange(mesh, post(good()))).startswith(b"HTTP/1.1 200")


async def test_many_requests_on_one_connection(mesh: Mesh) -> None:
    """Pipelined requests, good and bad, are answered in order on one connection."""
    received = b""
    async with asyncio.timeout(10), connection(mesh.gateway.address) as (reader, writer):
        writer.write(post(good()) + post(good(temperature=9)) + post(good()))
        while received.count(b"HTTP/1.1 ") < 3 or not received.endswith(b"}"):
            received += await reader.read(65536)
    assert [int(part.split(b" ", 1)[0]) for part in received.split(b"HTTP/1.1 ")[1:]] == [200, 400, 200]


async def test_expect_100_continue(mesh: Mesh) -> None:
    """A client that asks first is told to go on, or is refused before it sends its body."""
    body = good()
    head = post(body, "Expect: 100-continue").removesuffix(body)
    async with asyncio.timeout(10), connection(mesh.gateway.address) as (reader, writer):
        writer.write(head)
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    too_large = head.replace(b"Content-Length: %d" % len(body), b"Content-Length: 9999999")
    assert (await exchange(mesh, too_large)).startswith(b"HTTP/1.1 413")


async def test_http_1_0_clients_get_a_plain_stream(mesh: Mesh) -> None:
    """Without chunked encoding a stream is its events and then the end of the connection."""
    body = good(stream=True)
    request = post(body, "Connection: close").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    for wish in (request, request.replace(b"Connection: close", b"Connection: keep-alive")):
        head, _, events = (await exchange(mesh, wish)).partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower()
        assert events.startswith(b"data: {")
        assert events.endswith(b"data: [DONE]\n\n")


async def test_http_1_0_clients_are_never_told_to_go_on(mesh: Mesh) -> None:
    """They know no answer before the answer; their Expect is ignored."""
    request = post(good(), "Expect: 100-continue", "Connection: close").replace(b"HTTP/1.1", b"HTTP/1.0", 1)
    assert (await exchange(mesh, request)).startswith(b"HTTP/1.0 200")
