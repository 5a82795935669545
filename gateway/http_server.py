"""The HTTP listener: aiohttp's server with JSON errors on every path, the parser's own included.

The low-level server is used instead of an Application because every request, matched or not, goes through one
handler (`middleware.Front`), which owns errors, ids and the request log.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from aiohttp.web_protocol import RequestHandler

from inferway.errors import ApiError, Reason

from .identity import new_request_id

log = logging.getLogger(__name__)

# Instead of the versions of Python and aiohttp.
SERVER = "inferway"
# What aiohttp's parser says of the 129th header; it has no class of its own for it.
_TOO_MANY = "Too many headers"


def error_response(error: ApiError, request_id: str) -> web.Response:
    # What a message quotes may hold bytes that are no text.
    error.message = error.message.encode("utf-8", "replace").decode()
    headers = {**error.headers(), "x-request-id": request_id, "Server": SERVER}
    return web.Response(
        status=error.status,
        body=msgspec.json.encode(error.body()),
        headers=headers,
        content_type="application/json",
    )


class _JsonErrors(RequestHandler):
    """What the HTTP parser refuses gets the error object, too."""

    __slots__ = ("_on_refused",)

    def __init__(self, *args: Any, on_refused: Callable[[ApiError, str], None] | None, **options: Any) -> None:
        super().__init__(*args, **options)
        self._on_refused = on_refused

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        if isinstance(exc, LineTooLong):
            error = ApiError(Reason.HEADERS_TOO_LARGE, "A header or the request line is above the size limit.")
        elif isinstance(exc, HttpProcessingError) and _TOO_MANY in exc.message:
            error = ApiError(Reason.HEADERS_TOO_LARGE, "There are more headers than the 128 that are read.")
        elif isinstance(exc, HttpProcessingError):
            error = ApiError(Reason.INVALID_REQUEST, "The request is not valid HTTP/1.1.")
        elif isinstance(exc, ConnectionError):
            # The client left just before its answer began: recorded already, and nobody reads what follows.
            error = ApiError(Reason.CLIENT_CLOSED_REQUEST, "The client has gone.")
        else:
            # A fault of ours that no handler saw: middleware.Front ends every other.
            log.error("request_failed_outside_its_handler", exc_info=exc)
            error = ApiError(Reason.INTERNAL_ERROR, "An internal error occurred.")
        request_id = new_request_id()
        if self._on_refused is not None and error.reason is not Reason.CLIENT_CLOSED_REQUEST:
            self._on_refused(error, request_id)
        response = error_response(error, request_id)
        response.force_close()
        return response


class HttpServer(web.Server):
    """Accepts on listening sockets until told to stop."""

    def __init__(
        self,
        handler: Any,
        *,
        max_header_bytes: int,
        keepalive_s: float,
        on_refused: Callable[[ApiError, str], None] | None = None,
    ) -> None:
        """`on_refused` is told of every error that no handler has seen, with the id that its answer has."""
        super().__init__(handler, handler_cancellation=True, access_log=None)
        self._protocol_options: dict[str, Any] = {
            "access_log": None,
            "on_refused": on_refused,
            "keepalive_timeout": keepalive_s,
            # A compressed body is refused (middleware.read_json_body), not unpacked.
            "auto_decompress": False,
            "max_line_size": max_header_bytes,
            "max_field_size": max_header_bytes,
            # The rest of a body that was refused is not worth reading for long.
            "lingering_time": 1.0,
        }

    def __call__(self) -> RequestHandler:
        return _JsonErrors(self, loop=asyncio.get_running_loop(), **self._protocol_options)
