"""Follows SGLang's KV events over its two local sockets: one that publishes, one that answers for what was missed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import zmq
import zmq.asyncio

from inferway import logs
from inferway.blocks import KvEvent

from .kv_events import KvMirror
from .options import events_endpoint, replay_endpoint

log = logging.getLogger(__name__)

# A replay of the 10,000 batches that SGLang keeps takes far less; without an answer the batches count as lost.
_REPLAY_LIMIT_S = 5.0
_END_OF_REPLAY = b"\xff" * 8


class KvFeed:
    """Sockets are open from the start, before SGLang makes its ends, so that nothing is missed."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._mirror: KvMirror
        self._tell: Callable[[list[KvEvent]], None]
        self._context = zmq.asyncio.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.set_hwm(0)
        self._events.subscribe(b"")
        self._events.connect(events_endpoint(folder))

    async def run(self, mirror: KvMirror, tell: Callable[[list[KvEvent]], None]) -> None:
        """Until cancelled; raises msgspec.DecodeError when SGLang's format is another one."""
        self._mirror, self._tell = mirror, tell
        await self._replay()
        while True:
            _, number, payload = await self._events.recv_multipart()
            await self._take(int.from_bytes(number, "big"), payload)

    def close(self) -> None:
        self._context.destroy(linger=0)

    async def _take(self, number: int, payload: bytes) -> None:
        events = self._mirror.feed(number, payload)
        if events is None:
            logs.event(log, "kv_events_missed", expected=self._mirror.next_number, got=number)
            await self._replay()
            events = self._mirror.feed(number, payload)
        if events is None:
            self._lost(number)
            events = self._mirror.feed(number, payload)
        if events:
            self._tell(events)

    async def _replay(self) -> None:
        """Ask for everything from the next number on, and take it."""
        socket = self._context.socket(zmq.DEALER)
        try:
            socket.connect(replay_endpoint(self._folder))
            await socket.send_multipart((b"", self._mirror.next_number.to_bytes(8, "big")))
            async with asyncio.timeout(_REPLAY_LIMIT_S):
                while (frames := await socket.recv_multipart())[2] != _END_OF_REPLAY:
                    number = int.from_bytes(frames[2], "big")
                    if number > self._mirror.next_number:
                        self._lost(number)
                    if events := self._mirror.feed(number, frames[3]):
                        self._tell(events)
        except TimeoutError:
            logs.event(log, "kv_events_replay_unanswered", level=logging.WARNING)
        finally:
            socket.close(linger=0)

    def _lost(self, number: int) -> None:
        logs.event(log, "kv_events_lost", level=logging.WARNING, expected=self._mirror.next_number, got=number)
        self._tell(self._mirror.skip_to(number))
