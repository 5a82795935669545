"""What is announced of changes: a subscription that knows when it may have missed some."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from inferway import logs
from inferway.lifecycle import end_if_cancelled

from .documents import AWAY_ERRORS, Client

log = logging.getLogger(__name__)

# Redis is asked for a sign of life this often, and is lost when there is none for a few times as long.
_PING_S = 1.0
_SILENT_S = 3.0
_RETRY_S = (0.1, 1.0)


class Changes:
    """`run` listens until it is cancelled. Handlers are called on the event loop and must not raise."""

    def __init__(self, redis: Client, channel: str) -> None:
        """The client must have this subscription for its only use."""
        self._redis: Any = redis
        self._channel = channel
        self._handlers: dict[str, list[Callable[[str], None]]] = {}
        self._missed: list[Callable[[], None]] = []
        # Whether what is announced now is heard.
        self.is_listening = False

    def on(self, word: str, handler: Callable[[str], None]) -> None:
        """Call it with the rest of every message that begins with this word."""
        self._handlers.setdefault(word, []).append(handler)

    def on_missed(self, handler: Callable[[], None]) -> None:
        """Call it when messages may have been missed: whenever listening has begun and has ended."""
        self._missed.append(handler)

    async def run(self) -> None:
        pause = _RETRY_S[0]
        while True:
            end_if_cancelled()
            began = time.monotonic()
            try:
                await self._listen()
            except AWAY_ERRORS as error:
                if self.is_listening:
                    fault = f"{type(error).__name__}: {error}"
                    logs.event(log, "changes_lost", error=fault, level=logging.WARNING)
            finally:
                self._listening(False)
            # A cluster's nodes may have other parts by now: they are found anew.
            with suppress(*AWAY_ERRORS):
                await self._redis.aclose()
            pause = _RETRY_S[0] if time.monotonic() - began > _SILENT_S else min(2 * pause, _RETRY_S[1])
            await asyncio.sleep(pause)

    async def _listen(self) -> None:
        """Until the connection is lost, which raises."""
        await self._redis.initialize()
        pubsub = self._redis.pubsub()
        try:
            await pubsub.subscribe(self._channel)
            heard = pinged = time.monotonic()
            while True:
                end_if_cancelled()
                message = await pubsub.get_message(timeout=_PING_S)
                now = time.monotonic()
                if message is not None:
                    heard = now
                    if message["type"] == "subscribe":
                        self._listening(True)
                    elif message["type"] == "message":
                        self._dispatch(message["data"].decode("utf-8", "replace"))
                elif now - heard > _SILENT_S:
                    raise TimeoutError(f"silent for {_SILENT_S:g} s")
                if now - pinged >= _PING_S:
                    await pubsub.ping()
                    pinged = now
        finally:
            await pubsub.aclose()

    def _dispatch(self, message: str) -> None:
        word, _, rest = message.partition(" ")
        for handler in self._handlers.get(word, ()):
            handler(rest)

    def _listening(self, is_listening: bool) -> None:
        if self.is_listening == is_listening:
            return
        self.is_listening = is_listening
        logs.event(log, "changes_heard" if is_listening else "changes_not_heard")
        for handler in self._missed:
            handler()
