"""What probes and scrapers ask: /health, /health/ready and /metrics. None of them asks another process anything.

A service may have further pages there.
"""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from inferway.exposition import content_type_for

OK = "ok"
SHUTTING_DOWN = "shutting_down"

# Makes the page of metrics in the content type that it is given.
Scrape = Callable[[str], Awaitable[bytes]]
# 15,000 series of workers become a twentieth in a tenth of the time that writing them takes.
_GZIP_LEVEL = 1


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether new requests should come here: `status` is "ok", or says why not.

    `details` is what a person wants to know beside it; both are the body of /health/ready.
    """

    status: str
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_ready(self) -> bool:
        return self.status == OK


def health_response() -> web.Response:
    return json_response({"status": OK}, 200)


def readiness_response(readiness: Readiness) -> web.Response:
    return json_response({"status": readiness.status, **readiness.details}, 200 if readiness.is_ready else 503)


async def metrics_response(request: web.BaseRequest, scrape: Scrape) -> web.Response:
    """In the format that the scraper asks for, and packed for one that unpacks; neither holds up the loop."""
    content_type = content_type_for(request.headers.get("Accept", ""))
    body = await scrape(content_type)
    headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
    if _takes_gzip(request.headers.get("Accept-Encoding", "")):
        body = await asyncio.to_thread(gzip.compress, body, _GZIP_LEVEL)
        headers["Content-Encoding"] = "gzip"
    return web.Response(body=body, headers=headers)


class OpsServer:
    """A listener for these three, and `pages`, where a service's own port speaks gRPC."""

    def __init__(
        self,
        listener: socket.socket,
        readiness: Callable[[], Readiness],
        scrape: Scrape,
        *,
        pages: Iterable[web.RouteDef] = (),
    ) -> None:
        self._listener = listener
        app = _app(readiness, scrape)
        app.add_routes(pages)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()

    async def close(self) -> None:
        await self._runner.cleanup()
        self._listener.close()


def _app(readiness: Callable[[], Readiness], scrape: Scrape) -> web.Application:
    async def health(_request: web.Request) -> web.Response:
        return health_response()

    async def ready(_request: web.Request) -> web.Response:
        return readiness_response(readiness())

    async def metrics(request: web.Request) -> web.Response:
        return await metrics_response(request, scrape)

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", metrics)
    return app


def json_response(body: Mapping[str, Any], status: int) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")


def _takes_gzip(accept_encoding: str) -> bool:
    choices = [choice.replace(" ", "").lower().partition(";") for choice in accept_encoding.split(",")]
    return any(name == "gzip" and said not in ("q=0", "q=0.0", "q=0.00", "q=0.000") for name, _, said in choices)
