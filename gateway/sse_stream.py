"""An event stream to one client, its frames written straight to the transport.

A frame costs one chunk header and one `transport.write`: no task, no queue. What the client does not read waits
in the transport's buffer; its size is the measure of how slow the client is (`backlog_bytes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from aiohttp import web

from .http_server import SERVER

_HEADERS = {
    "Server": SERVER,
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    # Proxies of the nginx kind hold a stream back without it.
    "X-Accel-Buffering": "no",
}


class SseStream:
    """Not open until `open`; frames are whole events."""

    def __init__(self, request: web.BaseRequest, *, high_water_bytes: int) -> None:
        self._request = request
        self._high_water = high_water_bytes
        self._response: web.StreamResponse | None = None
        self._transport: asyncio.Transport | None = None
        self._chunked = False

    @property
    def response(self) -> web.StreamResponse | None:
        """The response that has begun, or None while the status line is unspent."""
        return self._response

    async def open(self, headers: Mapping[str, str]) -> None:
        """Send the status line and headers. Raises ConnectionError when the client has gone."""
        response = web.StreamResponse(headers={**_HEADERS, **headers})
        self._chunked = self._request.version >= (1, 1)
        if self._chunked:
            response.enable_chunked_encoding()
        else:
            response.force_close()  # nothing else tells where the stream ends
        await response.prepare(self._request)
        transport = self._request.transport
        if transport is None:
            raise ConnectionResetError("the client has gone")
        transport.set_write_buffer_limits(high=self._high_water)
        self._response, self._transport = response, transport

    @property
    def ready(self) -> bool:
        """Open, with a client that keeps up."""
        return self._transport is not None and self._transport.get_write_buffer_size() <= self._high_water

    @property
    def backlog_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def write(self, frame: bytes) -> None:
        """Hand a frame to the transport; nothing happens once the client has gone."""
        transport = self._transport
        assert transport is not None, "open first"
        if transport.is_closing():
            return
        transport.write(b"%x\r\n%b\r\n" % (len(frame), frame) if self._chunked else frame)

    async def drained(self) -> None:
        """Wait until the client has read down to the low-water mark."""
        assert self._response is not None
        payload_writer = self._response._payload_writer
        if payload_writer is not None:
            await payload_writer.drain()

    def cut(self) -> None:
        """Drop the connection and what waits in it."""
        if self._transport is not None:
            self._transport.abort()
