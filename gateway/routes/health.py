"""/health (live), /health/ready and /metrics. None of them asks another process anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from aiohttp import web

from inferway import metrics

from ..middleware import Exchange, Handler


class Readiness(NamedTuple):
    """Whether new requests should come here, and what a person wants to know beside it."""

    ready: bool
    body: dict[str, Any]


async def live(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
    return _json({"status": "ok"}, 200)


def make_ready(readiness: Callable[[], Readiness]) -> Handler:
    async def ready(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
        state = readiness()
        return _json(state.body, 200 if state.ready else 503)

    return ready


async def expose_metrics(_request: web.BaseRequest, _exchange: Exchange) -> web.StreamResponse:
    return web.Response(body=metrics.render(), headers={"Content-Type": metrics.CONTENT_TYPE})


def _json(body: dict[str, Any], status: int) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
