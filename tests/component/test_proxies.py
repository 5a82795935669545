"""The real Envoy and the real nginx, as they are configured for the mesh, in front of real gateways."""

from __future__ import annotations

import asyncio
import json
import ssl
import statistics
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import h2.connection
import h2.errors
import h2.events
import httpx2
import openai
import pytest
import trustme
from aiohttp import web

from tests.support.client import Answer, send
from tests.support.fronts import PROXIES, Front, Proxy, need
from tests.support.json_lines import JsonLines
from tests.support.probes import http_json, metric
from tests.support.processes import Mesh, Process, engine_load
from tests.support.raw_client import EventStream, connection
from tests.support.waiting import until, wait_until

pytestmark = pytest.mark.timeout(120)

GATEWAY = ("--heartbeat-s", "0.5", "--drain-delay-s", "3", "--drain-limit-s", "20")
CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}
LIMIT = str(1 << 20)
JSON = {"Content-Type": "application/json"}
TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
SCRIPTS: dict[str, Any] = {
    "two": [{"text": "a"}, {"sleep_ms": 700}, {"text": "b"}],
    "slow": [{"text": "t ", "repeat": 200, "gap_ms": 50}],
    "silent": [{"sleep_ms": 2500}, {"text": "a"}, {"sleep_ms": 2500}, {"text": "b"}],
    "late": [{"sleep_ms": 2500}, {"text": "a"}],
    "full": [{"grpc_error": {"code": "RESOURCE_EXHAUSTED", "details": "no room"}}],
    "second": [{"text": "t ", "repeat": 20, "gap_ms": 50}],
}


class Setup:
    """One mesh, what its engine has recorded, and both proxies in front of its gateway."""

    def __init__(self, mesh: Mesh, record: Path, fronts: dict[str, Front], tls: dict[str, Front], ca: Path) -> None:
        self.mesh, self.fronts, self.tls, self.ca = mesh, fronts, tls, ca
        self._record = JsonLines(record)

    def saw(self, request_id: str, event: str = "generate") -> list[dict[str, Any]]:
        return [line for line in self._record.read() if line.get("request_id") == request_id and line["event"] == event]

    def steps(self, request_id: str) -> int:
        """Steps in which the engine has made tokens of a request."""
        keys = {line["key"] for line in self.saw(request_id)}
        return sum(bool(keys.intersection(line["keys"])) for line in self._record.read() if line["event"] == "step")


def scripted(folder: Path, *flags: str) -> list[str]:
    scripts = folder / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    return ["--engine", "scripted", "--scripts", str(scripts), "--record", str(folder / "record.jsonl"), *flags]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    need(*PROXIES)
    folder = tmp_path_factory.mktemp("proxies")
    ca = trustme.CA()
    ca.cert_pem.write_to_path(folder / "ca.pem")
    certificate = ca.issue_cert("localhost", "127.0.0.1")
    certificate.private_key_pem.write_to_path(folder / "key.pem")
    with (folder / "cert.pem").open("wb") as file:
        file.writelines(pem.bytes() for pem in certificate.cert_chain_pems)
    told = ("--drain-delay-s", "3")
    secure = ("--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"))
    worker = scripted(folder, "--record-steps", "--max-running", "100")
    with Mesh(workers=[worker], gateway_args=GATEWAY, num_gateways=2) as mesh:
        at = [gateway.address for gateway in mesh.gateways]
        with (
            Front("envoy", folder, at, *told) as envoy,
            Front("nginx", folder, at, *told) as nginx,
            Front("envoy", folder, at, *secure) as envoy_tls,
            Front("nginx", folder, at, *secure) as nginx_tls,
        ):
            plain, tls = {"envoy": envoy, "nginx": nginx}, {"envoy": envoy_tls, "nginx": nginx_tls}
            yield Setup(mesh, folder / "record.jsonl", plain, tls, folder / "ca.pem")


each_proxy = pytest.mark.parametrize("proxy", PROXIES)


def assert_error(answer: Answer, status: int, code: str | None) -> None:
    """One of the proxy's own answers has OpenAI's shape."""
    assert answer.status == status, answer.body
    assert answer.headers["Content-Type"].startswith("application/json")
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["code"] == code


@each_proxy
async def test_the_first_token_comes_before_the_second_is_made(proxy: Proxy, setup: Setup) -> None:
    """Neither holds an event back until there are more."""
    request_id = f"two.{proxy}"
    stream = await EventStream.open(setup.fronts[proxy].address, STREAM, headers={"X-Request-Id": request_id})
    await until(lambda: stream.text() == "a", what="the first text")
    assert setup.steps(request_id) == 1
    await stream.done
    assert stream.text() == "ab"
    assert stream.header("X-Accel-Buffering") == "no"


@each_proxy
async def test_a_leaving_client_reaches_the_engine(proxy: Proxy, setup: Setup) -> None:
    """The engine is told within 200 ms, by the median of five."""
    took = []
    for number in range(5):
        request_id = f"slow.{proxy}.{number}"
        stream = await EventStream.open(setup.fronts[proxy].address, STREAM, headers={"X-Request-Id": request_id})
        await stream.wait_events(2)
        stream.close()
        left = time.time()
        await until(lambda: setup.saw(request_id, "abort"), what="the engine is told")  # noqa: B023
        took.append(setup.saw(request_id, "abort")[0]["time"] - left)
    assert statistics.median(took) < 0.2, took
    await until(lambda: engine_load(setup.mesh.workers[0]) == 0, what="every slot is free")


async def test_heartbeats_keep_a_silent_stream(setup: Setup, tmp_path: Path) -> None:
    """Silence of twice the proxy's patience is survived with heartbeats, and without them it is told."""
    patience = ("--heartbeat-s", "0.5", "--idle-timeout-s", "1.2")

    async def ask(proxy: Proxy, address: str) -> None:
        stream, whole = await asyncio.gather(
            EventStream.open(address, STREAM, headers={"X-Request-Id": f"silent.{proxy}"}),
            send(address, CHAT, body=ASK, request_id=f"late.{proxy}"),
        )
        assert_error(whole, 504, "upstream_timeout")
        await stream.done
        assert stream.text() == "ab"
        assert stream.payloads()[-1] == b"[DONE]"

    at = [setup.mesh.gateway.address]
    with Front("envoy", tmp_path, at, *patience) as envoy, Front("nginx", tmp_path, at, *patience) as nginx:
        await asyncio.gather(ask("envoy", envoy.address), ask("nginx", nginx.address))


@each_proxy
async def test_ids_and_trace_context_arrive(proxy: Proxy, setup: Setup) -> None:
    """The caller's id and traceparent are the engine's; one that is not well-formed is replaced, on all hops."""
    address = setup.fronts[proxy].address
    request_id = f"own.{proxy}.0f8fad5b-d9cb-469f-a165-70867728950e"
    answer = await send(address, CHAT, body=ASK, request_id=request_id, headers={"traceparent": TRACEPARENT})
    assert answer.headers["X-Request-Id"] == request_id
    (line,) = setup.saw(request_id)
    assert line["traceparent"] == TRACEPARENT
    for bad in ("not well formed", "x" * 129, ""):
        answer = await send(address, CHAT, body=ASK, request_id=bad)
        made = answer.headers.getall("X-Request-Id")
        assert len(made) == 1
        assert made[0] != bad
        assert len(setup.saw(made[0])) == 1


INSIDE = """
    /metrics /health/ready / /v1 /.invalid /admin/keys /stats /nginx_status //metrics
    /v1/../metrics /v1/%2e%2e/metrics /v1/..%2fmetrics /v1/./../health/ready
"""


@each_proxy
@pytest.mark.parametrize("path", INSIDE.split())
async def test_what_is_inside_stays_there(proxy: Proxy, path: str, setup: Setup) -> None:
    """Metrics, readiness and whatever else is not named are a 404 in OpenAI's shape, however they are spelled."""
    status, error = await say_raw(setup.fronts[proxy], f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n")
    assert (status, error["code"]) == (404, "unknown_url")


async def say_raw(front: Front, text: str) -> tuple[int, Any]:
    """The status and the error of what is answered to these bytes, which is of OpenAI's shape."""
    async with connection(front.address) as (reader, writer):
        writer.write(text.encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert b"content-type: application/json" in head, head
        length = int(head.partition(b"content-length: ")[2].split(b"\r\n")[0])
        body = json.loads(await reader.readexactly(length))
    return int(head.split(b" ")[1]), body.get("error")


@pytest.mark.parametrize(
    "text",
    [
        "garbage\r\n\r\n",
        "OPTIONS nowhere HTTP/1.1\r\nHost: here\r\n\r\n",
        "POST /v1/models HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: br, chunked\r\n\r\n0\r\n\r\n",
        "GET /v1/models%00 HTTP/1.1\r\nHost: here\r\n\r\n",
        "POST /v1/models HTTP/1.1\r\nHost: here\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
@each_proxy
async def test_what_is_not_http_is_the_callers_mistake(proxy: Proxy, text: str, setup: Setup) -> None:
    """Whatever part of it is wrong, it is a 400 in OpenAI's shape, which no client repeats."""
    status, error = await say_raw(setup.fronts[proxy], text)
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", None)


@each_proxy
async def test_a_request_line_without_end(proxy: Proxy, setup: Setup) -> None:
    """One above the limit of headers is told as such, though nothing of it has been understood."""
    status, error = await say_raw(setup.fronts[proxy], f"GET /v1/models?{'a' * 20000} HTTP/1.1\r\nHost: here\r\n\r\n")
    assert (status, error["code"]) == (431, "headers_too_large")


@each_proxy
async def test_a_websocket_is_refused(proxy: Proxy, setup: Setup) -> None:
    """An attempt is told in OpenAI's shape that there is none."""
    upgrade = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    status, error = await say_raw(setup.fronts[proxy], f"GET /v1/realtime HTTP/1.1\r\nHost: here\r\n{upgrade}\r\n")
    assert (status, error["type"]) in ((400, "invalid_request_error"), (404, "invalid_request_error"))


@each_proxy
async def test_http_1_0_without_a_host(proxy: Proxy, setup: Setup) -> None:
    """Some probes speak nothing newer, and need not name one."""
    assert await say_raw(setup.fronts[proxy], "GET /v1/models HTTP/1.0\r\n\r\n") == (200, None)


@each_proxy
async def test_health_is_the_proxys_own(proxy: Proxy, tmp_path: Path) -> None:
    """It answers without any gateway; what needs one is a 503 that says when to come back."""
    need(proxy)
    with Front(proxy, tmp_path, ["127.0.0.1:1"]) as front:
        answer = await send(front.address, "GET /health")
        assert (answer.status, answer.json) == (200, {"status": "ok"})
        refused = await send(front.address, CHAT, body=ASK, request_id="asked")
        assert_error(refused, 503, "overloaded")
        assert refused.headers["Retry-After"] == "1"
        assert refused.headers["X-Request-Id"] == "asked"


@pytest.fixture(scope="module")
def small_gateway() -> Iterator[Process]:
    with Process(
        "gateway", "--listen", "127.0.0.1:0", "--max-body-bytes", LIMIT, "--workers", "127.0.0.1:1"
    ) as gateway:
        yield gateway


@each_proxy
async def test_the_limit_of_bodies(proxy: Proxy, small_gateway: Process, tmp_path: Path) -> None:
    """Above it, announced or not, a body is refused in OpenAI's shape; one at the limit reaches the gateway."""
    need(proxy)
    at_limit = b" " * int(LIMIT)

    async def above() -> AsyncIterator[bytes]:
        yield at_limit
        yield b" "

    with Front(proxy, tmp_path, [small_gateway.address], "--max-body-bytes", LIMIT) as front:
        assert_error(await send(front.address, CHAT, raw=at_limit), 400, None)
        assert_error(await send(front.address, CHAT, raw=at_limit + b" "), 413, "payload_too_large")
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"http://{front.address}/v1/chat/completions", data=above(), headers=JSON) as response,
        ):
            assert response.status == 413
            assert (await response.json())["error"]["code"] == "payload_too_large"


@each_proxy
async def test_the_limit_of_headers(proxy: Proxy, setup: Setup) -> None:
    """One that is too large, or several that are together, are refused in OpenAI's shape."""
    address = setup.fronts[proxy].address
    for headers in ({"x-one": "a" * 17000}, {"x-one": "a" * 9000, "x-two": "b" * 9000}):
        assert_error(await send(address, "GET /v1/models", headers=headers), 431, "headers_too_large")
    assert (await send(address, "GET /v1/models", headers={"x-one": "a" * 12000})).status == 200


@each_proxy
async def test_what_may_have_been_processed_is_not_repeated(proxy: Proxy, setup: Setup) -> None:
    """A gateway that dies before its answer is a 502, sent once; one that cannot be reached is passed over."""
    address, request_id = setup.fronts[proxy].address, f"late.{proxy}.once"
    asked = asyncio.create_task(send(address, CHAT, body=ASK, request_id=request_id))
    await until(lambda: setup.saw(request_id), what="the engine has it")
    (busy,) = (index for index, gateway in enumerate(setup.mesh.gateways) if in_flight(gateway))
    setup.mesh.gateways[busy].kill()
    lost = await asked
    assert_error(lost, 502, "internal_error")
    assert lost.headers["X-Request-Id"] == request_id
    # Long ones too, and many at once, before the proxy can know.
    long = json.dumps(ASK).ljust(1_500_000).encode()
    answers = await asyncio.gather(
        *(send(address, CHAT, raw=long, request_id=f"after.{number}") for number in range(20))
    )
    assert Counter(answer.status for answer in answers) == {200: 20}
    assert len(setup.saw(request_id)) == 1
    await asyncio.to_thread(start_again, setup.mesh, busy)


def in_flight(gateway: Process) -> float:
    return metric(f"http://{gateway.address}/metrics", "inferway_gateway_requests_in_flight")


@each_proxy
async def test_honest_refusals_are_passed_on(proxy: Proxy, setup: Setup) -> None:
    """503 and 400 of a gateway arrive as they are, are asked for once, and take nobody out."""
    address = setup.fronts[proxy].address

    def lines() -> int:
        return sum(len(gateway.events("request")) for gateway in setup.mesh.gateways)

    before = lines()
    for number in range(10):
        refused = await send(address, CHAT, body=ASK, request_id=f"full.{proxy}.{number}")
        assert_error(refused, 503, "overloaded")
        assert int(refused.headers["Retry-After"]) >= 1
        assert_error(await send(address, CHAT, body={**ASK, "messages": 1}), 400, None)
    await until(lambda: lines() - before >= 20, what="all are in the log")
    assert lines() - before == 20
    assert (await send(address, CHAT, body=ASK)).status == 200


@asynccontextmanager
async def mirror() -> AsyncIterator[tuple[str, list[Any]]]:
    """A server that keeps what it was sent and answers with headers that are nobody's business."""
    seen = []

    async def answer(request: web.BaseRequest) -> web.Response:
        if request.path != "/health/ready":
            seen.append(request.headers)
        inside = {"x-envoy-upstream-service-time": "5", "X-Powered-By": "x", "Via": "1.1 x", "Server": "inferway"}
        return web.Response(text="{}", headers={**inside, "x-inferway-model": "m"})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        host, port = runner.addresses[0]
        yield f"{host}:{port}", seen
    finally:
        await runner.cleanup()


@each_proxy
async def test_headers_at_the_edge(proxy: Proxy, tmp_path: Path) -> None:
    """Claims of clients do not go in, what is inside does not go out, and what is meant for the other side does."""
    need(proxy)
    claims = {"Forwarded": "for=1.2.3.4", "X-Forwarded-For": "1.2.3.4", "X-Real-IP": "1.2.3.4"}
    claims |= {"X-Forwarded-Host": "evil", "X-Forwarded-Proto": "gopher"}
    if proxy == "envoy":
        # Where they would be obeyed: nginx has no use for them.
        claims |= {"x-inferway-given": "evil"}
        claims |= {"x-envoy-upstream-rq-timeout-ms": "1", "x-envoy-retry-on": "5xx", "x-envoy-max-retries": "9"}
    kept = {"Authorization": "Bearer key", "traceparent": TRACEPARENT, "tracestate": "a=b", "x-inferway-worker": "A"}
    async with mirror() as (address, seen):
        with await asyncio.to_thread(Front(proxy, tmp_path, [address]).__enter__) as front:
            answer = await send(front.address, "GET /v1/models", headers={**claims, **kept}, request_id="id.1")
    (arrived,) = seen
    assert {name: arrived[name] for name in kept} == kept
    assert arrived["X-Request-Id"] == "id.1"
    assert not [name for name, value in claims.items() if arrived.get(name) == value]
    assert not [name for name in arrived if name.lower().startswith("x-envoy-")]
    assert arrived["X-Forwarded-Proto"] == "http"
    assert not {"via", "x-powered-by", "x-envoy-upstream-service-time"} & {name.lower() for name in answer.headers}
    assert answer.headers["Server"] == "inferway"
    assert answer.headers["x-inferway-model"] == "m"


@each_proxy
async def test_the_official_client_over_tls_and_http2(proxy: Proxy, setup: Setup) -> None:
    """The protocol is negotiated; streams and answers in one piece are what they are without a proxy."""
    context = ssl.create_default_context(cafile=str(setup.ca))
    versions: list[str] = []

    async def note(response: httpx2.Response) -> None:
        versions.append(response.http_version)

    async with (
        httpx2.AsyncClient(http2=True, verify=context, event_hooks={"response": [note]}) as http,
        openai.AsyncOpenAI(
            base_url=f"https://{setup.tls[proxy].address}/v1", api_key="any", http_client=http, max_retries=0
        ) as client,
    ):
        messages: Any = [{"role": "user", "content": "one two three"}]
        streams = [
            await client.chat.completions.create(model="m-text", messages=messages, stream=True) for _ in range(5)
        ]
        for stream in streams:
            texts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
            assert "".join(texts) == "one two three"
        whole = await client.chat.completions.create(model="m-text", messages=messages)
        assert whole.choices[0].message.content == "one two three"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("none/of this")
    assert set(versions) == {"HTTP/2"}


@each_proxy
async def test_a_stream_reset_within_its_connection(proxy: Proxy, setup: Setup) -> None:
    """Over HTTP/2 a client may leave one stream and keep the connection: the engine is told, the next is served."""
    context = ssl.create_default_context(cafile=str(setup.ca))
    context.set_alpn_protocols(["h2"])
    async with connection(setup.tls[proxy].address, context) as streams:
        await _leave_one_stream(setup, proxy, *streams)


async def _leave_one_stream(
    setup: Setup, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    http2 = h2.connection.H2Connection()
    http2.initiate_connection()
    seen: list[h2.events.Event] = []

    def ask(request_id: str) -> int:
        stream, body = http2.get_next_available_stream_id(), json.dumps(STREAM).encode()
        line = [
            (":method", "POST"),
            (":scheme", "https"),
            (":authority", "localhost"),
            (":path", "/v1/chat/completions"),
        ]
        http2.send_headers(stream, [*line, ("content-type", "application/json"), ("x-request-id", request_id)])
        http2.send_data(stream, body, end_stream=True)
        return stream

    async def until_seen(kind: type[h2.events.Event], stream: int) -> None:
        while not any(isinstance(event, kind) and getattr(event, "stream_id", None) == stream for event in seen):
            writer.write(http2.data_to_send())
            seen.extend(http2.receive_data(await reader.read(1 << 16)))

    request_id = f"slow.{proxy}.http2"
    left = ask(request_id)
    await until_seen(h2.events.DataReceived, left)
    http2.reset_stream(left, h2.errors.ErrorCodes.CANCEL)
    writer.write(http2.data_to_send())
    await until(lambda: setup.saw(request_id, "abort"), 5, "the engine is told")
    await until_seen(h2.events.StreamEnded, ask("second.http2"))


async def test_gateways_restarted_one_after_the_other(setup: Setup) -> None:
    """Under load through both proxies every stream ends with [DONE] and every status is 200."""
    mesh, fronts = setup.mesh, setup.fronts
    addresses = [gateway.address for gateway in mesh.gateways]
    answers: dict[Proxy, list[Answer]] = {proxy: [] for proxy in PROXIES}
    stop = asyncio.Event()

    async def keep_asking(proxy: Proxy) -> None:
        while not stop.is_set():
            answers[proxy].append(
                await send(fronts[proxy].address, CHAT, body=STREAM, request_id=f"second.{proxy}.{len(answers[proxy])}")
            )

    def each_has(more: int) -> Callable[[], bool]:
        before = {proxy: len(given) for proxy, given in answers.items()}
        return lambda: all(len(answers[proxy]) >= before[proxy] + more for proxy in PROXIES)

    async with asyncio.TaskGroup() as load:
        for proxy in PROXIES:
            for _ in range(8):
                load.create_task(keep_asking(proxy))
        await until(each_has(8), what="streams are served")
        for index, address in enumerate(addresses):
            # As an orchestrator does: nginx is told who is left, Envoy sees it by itself.
            fronts["nginx"].reload([one for one in addresses if one != address])
            assert await asyncio.to_thread(mesh.gateways[index].stop) == 0
            await asyncio.to_thread(start_again, mesh, index)
            fronts["nginx"].reload(addresses)
            await until(each_has(16), what="all are served, the new one being there")
        stop.set()
    for given in answers.values():
        assert Counter(answer.status for answer in given) == {200: len(given)}
        assert all(answer.joined("content") == "t " * 20 for answer in given)
        assert all(answer.events[-1] == "[DONE]" for answer in given)
    for gateway in mesh.gateways:
        await until(lambda: gateway.events("request"), what="the new one serves")  # noqa: B023


def start_again(mesh: Mesh, index: int) -> None:
    """Another gateway at the address of one that has ended; returns when it is ready."""
    old = mesh.gateways[index]
    routers = ",".join(router.address for router in mesh.routers)
    mesh.gateways[index] = Process("gateway", "--listen", old.address, "--routers", routers, *GATEWAY)
    old.__exit__()
    wait_until(lambda: http_json(f"http://{old.address}/health/ready")[0] == 200, what="the new one is ready")
