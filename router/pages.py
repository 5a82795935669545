"""What the router tells over HTTP beside health and metrics: its decisions."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from inferway.api.v1 import router_pb2
from inferway.grpc_util import InternalToken
from inferway.ops import json_response
from inferway.plain import plain

from .submission import MAX_NAME_CHARS


def decisions_page(explain: Callable[[str], router_pb2.ExplainResponse], token: InternalToken) -> web.RouteDef:
    """GET /decisions/REQUEST_ID: what `explain` says of it, as the command of this name prints it with --json.

    Whoever asks needs the mesh's token, if it has one, as over gRPC.
    """

    async def decisions(request: web.Request) -> web.Response:
        if not token.accepts([("authorization", request.headers.get("Authorization", ""))]):
            error = "the internal token is missing or wrong; send it as Authorization: Bearer TOKEN"
            return json_response({"error": error}, 401)
        request_id = request.match_info["request_id"]
        if len(request_id) > MAX_NAME_CHARS:
            error = f"a request id has at most {MAX_NAME_CHARS} characters, got {len(request_id)}"
            return json_response({"error": error}, 400)
        response = explain(request_id)
        known = [plain(response)] if response.decisions else []
        return json_response({"request_id": request_id, "routers": known}, 200 if known else 404)

    return web.get("/decisions/{request_id}", decisions)
