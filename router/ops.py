"""The HTTP side of the router, for probes and scrapers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass

from aiohttp import web

from inferway.metrics import CONTENT_TYPE


@dataclass(frozen=True, slots=True)
class WorkerLine:
    address: str
    worker_id: str | None
    status: str


@dataclass(frozen=True, slots=True)
class Readiness:
    """`status` is "ok" when the router decides with full knowledge, else the reason why not."""

    status: str
    workers: list[WorkerLine]


def ops_app(readiness: Callable[[], Readiness], render_metrics: Callable[[], bytes]) -> web.Application:
    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_request: web.Request) -> web.Response:
        now = readiness()
        return web.json_response(asdict(now), status=200 if now.status == "ok" else 503)

    async def metrics(_request: web.Request) -> web.Response:
        return web.Response(body=render_metrics(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", metrics)
    return app
