"""Series are bounded whatever callers, tenants and adapters are called."""

from __future__ import annotations

from random import Random

from aiohttp import web

from gateway.core.sse import Usage
from gateway.core.tenants import Caller
from gateway.http_server import HttpServer
from gateway.metrics import Metrics
from gateway.middleware import Exchange, Front
from inferway.metrics import Registry
from router.core.dispatcher import Dispatcher
from router.core.messages import WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from router.metrics import RouterMetrics
from tests.support.raw_client import connection
from worker.core.orphans import Orphans
from worker.metrics import WorkerMetrics

NAMES = 600


def series(registry: Registry) -> int:
    return len([line for line in registry.render().splitlines() if line and not line.startswith(b"#")])


async def test_of_the_gateway() -> None:
    """Every request has a tenant, a model that is served, a path, a method and headers of its own."""
    registry = Registry("gateway")
    metrics = Metrics(registry)

    async def caller_of(authorization: str) -> Caller:
        return Caller(authorization)

    async def handler(request: web.BaseRequest, exchange: Exchange) -> web.StreamResponse:
        exchange.asks(request.headers["X-Model"], stream=False, max_tokens=None)
        exchange.usage = Usage(3, 2)
        return web.Response(text="ok")

    routes = {"/v1/chat/completions": {"POST": handler}, "/v1/models/": {"GET": handler}}
    front = Front(routes, metrics, caller_of, lambda _: True, lambda *_: None, 1.0)
    server = HttpServer(front, max_header_bytes=8190, keepalive_s=5, on_refused=front.refused)
    runner = web.ServerRunner(server)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    host, port = runner.addresses[0][:2]
    async with connection(f"{host}:{port}") as (reader, writer):
        for number in range(NAMES):
            headers = f"Host: a{number}\r\nAuthorization: t{number}\r\nX-Model: m{number}\r\nUser-Agent: u{number}\r\n"
            for line in (
                "POST /v1/chat/completions",
                f"GET /v1/models/{number}",
                f"GET /scan/{number}.php?{number}",
                f"{('DELETE', 'PATCH', 'PUT', 'PROPFIND')[number % 4]} /v1/chat/completions",
            ):
                writer.write(f"{line} HTTP/1.1\r\n{headers}Content-Length: 0\r\n\r\n".encode())
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
    await runner.cleanup()
    text = registry.render().decode()
    assert sum(line.startswith("inferway_gateway_tenant_requests_total{") for line in text.splitlines()) == 201
    assert sum(line.startswith("inferway_gateway_requests_total{") for line in text.splitlines()) == 501
    assert 'inferway_gateway_requests_total{model="other",outcome="ok"} 100.0' in text
    assert sum(line.startswith("inferway_gateway_http_responses_total{") for line in text.splitlines()) <= 5
    # Of a model two histograms of 17 series, four counters; of a tenant four counters.
    assert series(registry) < 501 * (2 * 18 + 4) + 201 * 4 + 200


def test_of_the_router() -> None:
    """A worker with thousands of adapters, each with requests that wait."""
    dispatcher = Dispatcher(routing=routing_of("default"), rng=Random(0), first_lease_id=1, limits=QueueLimits())
    models = {f"m:{number}": 4 for number in range(NAMES)}
    dispatcher.worker_up(WorkerInfo("w", "1", "w:1", models, 0, 0, None, 1000.0))
    registry = Registry("router")
    metrics = RouterMetrics(registry, dispatcher)
    for model in models:
        metrics.cancelled(model)
        metrics.computed(model, predicted=2, actual=1)
        metrics.cancelled(f"{model} that is not served")
    assert series(registry) < 500 * 11 + 150


def test_of_the_worker() -> None:
    """Adapters that come and go all the time."""
    registry = Registry("worker")
    metrics = WorkerMetrics(registry)
    for number in range(NAMES):
        for tally in (metrics.prompt_tokens, metrics.cached_tokens, metrics.completion_tokens):
            tally[f"m:{number}"] += 1
    metrics.flush(None, Orphans())
    assert series(registry) < 501 * 3 + 100
    assert b'inferway_worker_prompt_tokens_total{model="other"} 100.0' in registry.render()
