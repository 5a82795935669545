"""/health (live), /health/ready and /metrics, on the port for clients."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from inferway import ops

from ..middleware import Exchange, Routes


def ops_routes(readiness: Callable[[], ops.Readiness], scrape: ops.Scrape) -> Routes:
    async def health(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
        return ops.health_response()

    async def ready(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
        return ops.readiness_response(readiness())

    async def metrics(request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
        return await ops.metrics_response(request, scrape)

    return {"/health": {"GET": health}, "/health/ready": {"GET": ready}, "/metrics": {"GET": metrics}}
