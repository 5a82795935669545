"""What probes and scrapers ask: /health, /health/ready and /metrics. None of them asks another process anything.

A service may have further pages there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from aiohttp import web

from inferway.metrics import CONTENT_TYPE

OK = "ok"
SHUTTING_DOWN = "shutting_down"


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


def metrics_response(exposition: bytes) -> web.Response:
    return web.Response(body=exposition, headers={"Content-Type": CONTENT_TYPE})


class OpsServer:
    """A listener for these three, and `pages`, where a service's own port speaks gRPC."""

    def __init__(
        self,
        listener: socket.socket,
        readiness: Callable[[], Readiness],
        render: Callable[[], bytes],
        *,
        pages: Iterable[web.RouteDef] = (),
    ) -> None:
        self._listener = listener
        app = _app(readiness, render)
        app.add_routes(pages)
        self._runner = web.AppRunner(app, access_log=None)

    async def start(self) -> None:
        await self._runner.setup()
        await web.SockSite(self._runner, self._listener).start()

    async def close(self) -> None:
        await self._runner.cleanup()
        self._listener.close()


def _app(readiness: Callable[[], Readiness], render: Callable[[], bytes]) -> web.Application:
    async def health(_request: web.Request) -> web.Response:
        return health_response()

    async def ready(_request: web.Request) -> web.Response:
        return readiness_response(readiness())

    async def metrics(_request: web.Request) -> web.Response:
        return metrics_response(render())

    app = web.Application()
    app.router.add_get("/health", health)
    app.router.add_get("/health/ready", ready)
    app.router.add_get("/metrics", metrics)
    return app


def json_response(body: Mapping[str, Any], status: int) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
