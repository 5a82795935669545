"""A lean HTTP/1.1 client for streams: keeps when each event arrived, and can refuse to read."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, cast


class EventStream(asyncio.Protocol):
    """Sends one POST on a fresh connection and splits the answer into events, chunk headers removed.

    `events` holds (monotonic arrival, payload) of each `data:` event; `done` resolves when the connection or the
    answer ends.
    """

    def __init__(self, host: str, path: str, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        data = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._request = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data
        self._buffer = b""
        self.head = b""
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
    ) -> EventStream:
        host, _, port = address.rpartition(":")
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(lambda: cls(address, path, body, headers or {}), host, int(port))
        return protocol

    @property
    def status(self) -> int:
        return int(self.head.split(b" ", 2)[1]) if self.head else 0

    def payloads(self) -> list[bytes]:
        return [payload for _, payload in self.events]

    def chunks(self) -> list[dict[str, Any]]:
        return [json.loads(payload) for payload in self.payloads() if payload != b"[DONE]"]

    def text(self) -> str:
        deltas = [choice["delta"] for chunk in self.chunks() for choice in chunk.get("choices", ())]
        return "".join(delta.get("content") or "" for delta in deltas)

    def close(self) -> None:
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
