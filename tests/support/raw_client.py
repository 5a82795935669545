"""Lean HTTP/1.1 clients: bytes of one's own, and streams that keep when each event arrived and can refuse to read."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from tests.support.waiting import until


@asynccontextmanager
async def connection(
    address: str, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection for bytes of one's own; nothing of it is left when this ends, whatever its peer does."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), ssl=tls)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()


class EventStream(asyncio.Protocol):
    """Sends one POST on a fresh connection and splits the answer into events, chunk headers removed.

    `events` holds (monotonic arrival, payload) of each `data:` event, `body` an answer that is no stream; `done`
    resolves when the connection or the answer ends.
    """

    def __init__(self, host: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._request = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data
        self._buffer = b""
        self.head = b""
        self.body = b""
        self._body_length: int | None = None
        self.events: list[tuple[float, bytes]] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.on_event: Callable[[int], None] | None = None
        self.transport: asyncio.Transport

    @classmethod
    async def open(
        cls,
        address: str,
        body: Mapping[str, Any],
        *,
        path: str = "/v1/chat/completions",
        headers: Mapping[str, str] | None = None,
        receive_buffer_bytes: int | None = None,
    ) -> EventStream:
        """Connect and send; `receive_buffer_bytes` asks the kernel for another buffer than its own choice."""
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        peer = socket.socket()
        peer.setblocking(False)
        if receive_buffer_bytes is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        try:
            await loop.sock_connect(peer, (host, int(port)))
        except BaseException:
            peer.close()
            raise
        _, protocol = await loop.create_connection(lambda: cls(address, path, body, headers or {}), sock=peer)
        return protocol

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1]) if self.head else 0

    def header(self, name: str) -> str | None:
        """The value of a response header."""
        for line in self.head.decode("latin-1").split("\r\n")[1:]:
            key, _, value = line.partition(":")
            if key.lower() == name.lower():
                return value.strip()
        return None

    async def wait_events(self, count: int, seconds: float = 10.0) -> None:
        """Return once `count` events have come."""
        await until(lambda: len(self.events) >= count, seconds, f"{count} events, got {self.events[-3:]}")

    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.events]

    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.payloads() if payload != b"[DONE]"]

    def text(self) -> str:
        deltas = [choice["delta"] for chunk in self.chunks() for choice in chunk.get("choices", ())]
        return "".join(delta.get("content") or "" for delta in deltas)

    def pause(self) -> None:
        """Read nothing more: what comes stays in the kernel's buffers, and then in the sender's."""
        self.transport.pause_reading()

    def resume(self) -> None:
        self.transport.resume_reading()

    def close(self) -> None:
        """Break the connection off."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        self._buffer += data
        if not self.head:
            head, separator, rest = self._buffer.partition(b"\r\n\r\n")
            if not separator:
                return
            self.head, self._buffer = head, rest
            length = self.header("Content-Length")
            self._body_length = int(length) if length is not None else None
        if self._body_length is not None:
            if len(self._buffer) >= self._body_length:
                self.body = self._buffer
                self._finish()
                self.transport.close()
            return
        while (end := self._buffer.find(b"\n\n")) >= 0:
            event, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
            start = event.find(b"data: ")
            if start < 0:
                continue
            payload = event[start + 6 :]
            self.events.append((now, payload))
            if self.on_event is not None:
                self.on_event(len(self.events))
            if payload == b"[DONE]":
                self._finish()
                self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def _finish(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
