"""One connection to a Redis server that all calls of this gateway share.

Calls made in one turn of the loop leave in one write, and answers come back in the order of the calls: no pool, no
waiting for a connection, and a fifth of the CPU that a client library takes for a call. A call that nobody waits
for any more, because it was cancelled or took too long, keeps its place, so that the answers after it find theirs.

One timer watches the oldest call. When it fires it looks a second time a moment later before it gives up: after a loop
that was busy for long, timers come before the answers that have arrived meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import deque
from ssl import SSLContext
from typing import Any, NamedTuple, cast

import hiredis

from inferway.redis_url import Address

_SECOND_LOOK_S = 0.005


class StoreAway(Exception):
    """Redis cannot answer now. `reason` is a word for metrics and logs: "timeout", "connection", "READONLY", ...

    `in_doubt`: what was asked may have been done all the same.
    """

    def __init__(self, reason: str, *, in_doubt: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.in_doubt = reason, in_doubt


class StoreRefused(StoreAway):
    """Redis is well, and cannot do this: what it holds of this tenant is not what it should be. Nothing else is."""


class _Waiting(NamedTuple):
    answer: asyncio.Future[Any]
    deadline: float


class Wire(asyncio.Protocol):
    """Owned by whoever connected it, who must `close` it. Answers that are errors come as hiredis.ReplyError."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None
        self._reader = hiredis.Reader()
        self._waiting: deque[_Waiting] = deque()
        self._unsent: list[bytes] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_second_look = False
        # Set when the connection has ended, whoever ended it.
        self.lost = asyncio.Event()

    @classmethod
    async def connect(cls, address: Address, *, timeout_s: float, tls: SSLContext | None) -> Wire:
        """Raises OSError."""
        loop = asyncio.get_running_loop()
        _, wire = await loop.create_connection(lambda: cls(timeout_s), address.host, address.port, ssl=tls)
        return wire

    def call(self, command: bytes) -> asyncio.Future[Any]:
        """Send an encoded command; the future raises StoreAway when no answer comes in time or the connection ends."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.is_set():
            answer.set_exception(StoreAway("connection"))
            return answer
        deadline = self._loop.time() + self._timeout_s
        if not self._unsent:
            self._loop.call_soon(self._send)
        self._unsent.append(command)
        self._waiting.append(_Waiting(answer, deadline))
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._look)
        return answer

    def close(self, reason: str = "connection") -> None:
        """End the connection; whoever still waits is told the reason."""
        if self._transport is not None:
            self._transport.abort()
        self._end(reason)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        while True:
            try:
                reply = self._reader.gets()
            except hiredis.ProtocolError:
                self.close("protocol")
                return
            if reply is False or not self._waiting:
                return
            answer = self._waiting.popleft().answer
            if not answer.done():
                answer.set_result(reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end("connection")

    def _send(self) -> None:
        unsent, self._unsent = self._unsent, []
        if self._transport is not None and not self.lost.is_set():
            self._transport.write(b"".join(unsent) if len(unsent) > 1 else unsent[0])

    def _look(self) -> None:
        """Give up the calls that are too old, and come back for the next."""
        self._timer = None
        now = self._loop.time()
        for waiting in self._waiting:
            if waiting.answer.done():
                continue
            if waiting.deadline > now:
                self._is_second_look = False
                self._timer = self._loop.call_at(waiting.deadline, self._look)
                return
            if not self._is_second_look:
                self._is_second_look = True
                self._timer = self._loop.call_at(now + _SECOND_LOOK_S, self._look)
                return
            waiting.answer.set_exception(StoreAway("timeout", in_doubt=True))
        self._is_second_look = False

    def _end(self, reason: str) -> None:
        self.lost.set()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, deque()
        for call in waiting:
            if not call.answer.done():
                call.answer.set_exception(StoreAway(reason, in_doubt=True))


def encode(*words: str | bytes | int) -> bytes:
    """A command as Redis reads it."""
    return cast(bytes, hiredis.pack_command(cast(Any, words)))
