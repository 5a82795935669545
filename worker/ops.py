"""The HTTP side of a worker, for probes and scrapers."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from inferway.metrics import CONTENT_TYPE, render


def ops_app(status: Callable[[], str], flush_metrics: Callable[[], None]) -> web.Application:
    """`status` is "ok" when requests are taken, else the reason why not: "starting" or "shutting_down"."""

    async def health(_request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def ready(_request: web.Request) -> web.Response:
        now = status()
        return web.json_response({"status": now}, status=200 if now == "ok" else 503)

    async def metrics(_request: web.Request) -> web.Response:
        flush_metrics()
        return web.Response(body=render(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", metrics)
    return app
