"""The HTTP side of the port for admins: who asks, what for, and in what shape the answer and the refusal go back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec
from aiohttp import web

from inferway import logs
from inferway.errors import ApiError, Reason, invalid

from ..core.ids import is_request_id
from ..directory.documents import AWAY_ERRORS, Unreadable
from ..http_server import SERVER, error_response
from ..identity import new_request_id
from ..middleware import read_json_body
from ..quota.wire import StoreAway
from .calls import Call, Handler, Result, in_shape
from .credentials import AdminCredentials
from .endpoints import ENDPOINTS, PREFIX, Endpoint, NoMatch, match

log = logging.getLogger("gateway.admin")

_MAX_BODY_BYTES = 1 << 20
_BODY_TIMEOUT_S = 10.0
# Longer than any answer of a Redis that is well.
_ANSWER_TIMEOUT_S = 10.0


class AdminFront:
    """Called by the HTTP server for every request that its parser accepted."""

    def __init__(self, credentials: AdminCredentials, handlers: Mapping[str, Handler]) -> None:
        """`handlers` has one for each endpoint of the table, by its id."""
        assert set(handlers) == {endpoint.id for endpoint in ENDPOINTS}
        self._credentials = credentials
        self._handlers = handlers

    async def __call__(self, request: web.BaseRequest) -> web.StreamResponse:
        given = request.headers.get("X-Request-Id", "")
        request_id = given if is_request_id(given) else new_request_id()
        begun = time.monotonic()
        by: str | None = None
        try:
            by = self._who(request)
            result = await self._result(request, by)
            response = web.Response(
                body=msgspec.json.encode(result.body), status=result.status, content_type="application/json"
            )
            # An answer may hold a key.
            response.headers.update({"Cache-Control": "no-store", "x-request-id": request_id, "Server": SERVER})
        except ApiError as error:
            response = error_response(error, request_id)
            if error.reason in (Reason.PAYLOAD_TOO_LARGE, Reason.REQUEST_TIMEOUT):
                response.force_close()
        except Exception:
            log.exception("admin_request_failed", extra={"fields": {"request_id": request_id}})
            response = error_response(ApiError(Reason.INTERNAL_ERROR, "An internal error occurred."), request_id)
        logs.event(
            log,
            "admin_request",
            request_id=request_id,
            by=by,
            method=request.method[:20],
            path=request.path[:200],
            status=response.status,
            ms=round((time.monotonic() - begun) * 1000, 3),
        )
        return response

    def _who(self, request: web.BaseRequest) -> str:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        by = self._credentials.who(token.strip()) if scheme.lower() == "bearer" else None
        if by is None:
            message = "The admin token is missing or not valid. Send it as 'Authorization: Bearer TOKEN'."
            raise ApiError(Reason.INVALID_API_KEY, message)
        return by

    async def _result(self, request: web.BaseRequest, by: str) -> Result:
        found = match(request.method, request.path)
        if isinstance(found, NoMatch):
            if not found.allowed:
                message = f"There is nothing at {request.path[:200]}; every path begins with {PREFIX}."
                raise ApiError(Reason.UNKNOWN_URL, message)
            allowed = ", ".join(found.allowed)
            message = f"{request.path[:200]} takes {allowed}, not {request.method[:20]}."
            raise ApiError(Reason.METHOD_NOT_ALLOWED, message, extra_headers={"Allow": allowed})
        endpoint = found.endpoint
        call = Call(by, found.places, await _body(request, endpoint), _query(request, endpoint))
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await self._handlers[endpoint.id](call)
        except Unreadable as error:
            message = f"This version does not understand what is stored: {error}. Replace it with PUT."
            raise ApiError(Reason.CONFLICT, message) from error
        except (*AWAY_ERRORS, StoreAway) as error:
            logs.event(log, "admin_store_away", level=logging.WARNING, error=str(error))
            message = "Redis does not answer. What was asked for may have been done or not: ask again."
            raise ApiError(Reason.AUTH_UNAVAILABLE, message, retry_after_s=1.0) from error


async def _body(request: web.BaseRequest, endpoint: Endpoint) -> Any:
    """In the shape of the endpoint; of a patch as it came, but an object. Raises ApiError."""
    if endpoint.body is None and not endpoint.is_patch:
        return None
    text = await read_json_body(request, limit_bytes=_MAX_BODY_BYTES, timeout_s=_BODY_TIMEOUT_S)
    try:
        raw = msgspec.json.decode(text or b"{}")
    except (msgspec.DecodeError, RecursionError) as error:
        raise invalid(None, f"The body is not valid JSON: {error}.") from None
    if not isinstance(raw, dict):
        raise invalid(None, "The body must be a JSON object.")
    return raw if endpoint.body is None else in_shape(raw, endpoint.body)


def _query(request: web.BaseRequest, endpoint: Endpoint) -> Any:
    """Raises ApiError (400), also for parameters that the endpoint has not."""
    given = dict(request.query)
    names = endpoint.query.__struct_fields__ if endpoint.query is not None else ()
    for name in given:
        if name not in names:
            raise invalid(name[:100], f"There is no parameter '{name[:100]}' here.")
    if endpoint.query is None:
        return None
    try:
        return msgspec.convert(given, endpoint.query, strict=False)
    except msgspec.ValidationError as error:
        sentence, _, place = str(error).partition(" - at ")
        name = place.strip("`").removeprefix("$.")
        raise invalid(name, f"The parameter '{name}': {sentence.replace('`', chr(39))}.") from None
