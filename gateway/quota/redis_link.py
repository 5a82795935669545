"""One server, and whether it can be asked: the breaker in front of it.

A link is up while its connection stands and its calls succeed. Three failures in a row, a lost connection or a server
that does not take writes take it down: every call then fails at once. A link that is down tries again by itself, at
once and then every second, with a connection of its own and a write that changes nothing; no request waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from ssl import SSLContext
from typing import Any

import hiredis

from inferway import logs
from inferway.redis_url import Address, RedisUrl

from .wire import StoreAway, StoreRefused, Wire, encode

log = logging.getLogger(__name__)

FAILURES = 3
PROBE_S = 1.0
_CLOSED = "closed"
# A connection and what is said first; the calls of requests have a shorter time.
_CONNECT_S = 1.0
_ASKING = encode("ASKING")
# While a slot moves, some of a tenant's keys are here and some there. That is no fault of the server.
_ON_ITS_WAY = "TRYAGAIN"
# Nor is a script that fails over what it finds: calls for others go on.
_OF_ONE_TENANT = ("WRONGTYPE", "ERR")


class RedisLink:
    """`find` says where the server is now: one behind sentinels moves. Owned by one task, `run`."""

    def __init__(
        self,
        url: RedisUrl,
        find: Callable[[], Awaitable[Address]],
        *,
        timeout_s: float,
        tls: SSLContext | None,
        scripts: Sequence[bytes],
        probe: bytes | None,
    ) -> None:
        self._url, self._find, self._timeout_s, self._tls = url, find, timeout_s, tls
        self._greeting = [*_credentials(url), *(encode("SCRIPT", "LOAD", script) for script in scripts)]
        self._scripts = scripts
        self._probe = probe or encode("PING")
        self._wire: Wire | None = None
        self._failures = 0
        self._name = self.host = ""
        self.up = asyncio.Event()
        # Why it is down; "" while it is up.
        self.away = "connection"

    async def call(self, command: bytes, *, is_asking: bool = False) -> Any:
        """The answer, or hiredis.ReplyError where it says that another server has the key. Raises StoreAway.

        `is_asking`: the key is on its way to this server, which takes only commands that say they know.
        """
        wire = self._wire
        if wire is None:
            raise StoreAway(self.away)
        try:
            reply = await self._send(wire, command, is_asking)
            if isinstance(reply, hiredis.ReplyError) and _word(reply) == "NOSCRIPT":
                # Somebody has emptied the server's scripts. The command has not been done.
                await asyncio.gather(*(wire.call(encode("SCRIPT", "LOAD", script)) for script in self._scripts))
                reply = await self._send(wire, command, is_asking)
            if isinstance(reply, hiredis.ReplyError):
                word = _word(reply)
                if word in ("MOVED", "ASK"):
                    return reply
                if self._failures == 0 and word != _ON_ITS_WAY:
                    logs.event(log, "redis_refused", level=logging.WARNING, server=self._name, answer=str(reply))
                raise StoreRefused(word) if word in _OF_ONE_TENANT else StoreAway(word)
        except StoreRefused:
            self._failures = 0
            raise
        except StoreAway as error:
            if error.reason != _ON_ITS_WAY:
                self._failed(wire, error.reason)
            raise
        self._failures = 0
        return reply

    async def run(self) -> None:
        """Keeps the connection until it is cancelled."""
        try:
            while True:
                wire = await self._try()
                if wire is None:
                    await asyncio.sleep(PROBE_S)
                    continue
                self._wire, self._failures, self.away = wire, 0, ""
                self.up.set()
                logs.event(log, "redis_up", server=self._name)
                await wire.lost.wait()
                self._down("connection")
                if self.away not in ("connection", "READONLY"):
                    await asyncio.sleep(PROBE_S)
        finally:
            wire = self._wire
            self._down(_CLOSED)
            if wire is not None:
                wire.close()

    @staticmethod
    async def _send(wire: Wire, command: bytes, is_asking: bool) -> Any:
        if is_asking:
            # Both leave in one write, and nothing comes between them.
            _, reply = await asyncio.gather(wire.call(_ASKING), wire.call(command))
            return reply
        return await wire.call(command)

    async def _try(self) -> Wire | None:
        wire = None
        try:
            async with asyncio.timeout(_CONNECT_S):
                address = await self._find()
                self._name, self.host = str(address), address.host
                wire = await Wire.connect(address, timeout_s=self._timeout_s, tls=self._tls)
                for reply in await asyncio.gather(*map(wire.call, [*self._greeting, self._probe])):
                    if isinstance(reply, hiredis.ReplyError):
                        raise StoreAway(_word(reply))
        except (StoreAway, OSError) as error:
            if wire is not None:
                wire.close()
            self.away = error.reason if isinstance(error, StoreAway) else "connection"
            return None
        except asyncio.CancelledError:
            if wire is not None:
                wire.close()
            raise
        return wire

    def _failed(self, wire: Wire, reason: str) -> None:
        if wire is not self._wire:
            return
        self._failures += 1
        # A replica never takes writes: who is the master now is asked at once.
        if self._failures >= FAILURES or reason == "READONLY":
            self._down(reason)
            wire.close(reason)

    def _down(self, reason: str) -> None:
        if self._wire is None:
            return
        self._wire, self.away = None, reason
        self.up.clear()
        if reason != _CLOSED:
            logs.event(log, "redis_away", level=logging.WARNING, server=self._name, reason=reason)


async def ask(address: Address, url: RedisUrl, tls: SSLContext | None, *commands: bytes) -> list[Any]:
    """Answers over a connection of its own. Raises OSError or StoreAway."""
    async with asyncio.timeout(_CONNECT_S):
        wire = await Wire.connect(address, timeout_s=_CONNECT_S, tls=tls)
        with contextlib.closing(wire):
            greeting = [] if url.mode == "sentinel" else _credentials(url)
            replies = await asyncio.gather(*map(wire.call, [*greeting, *commands]))
    for reply in replies:
        if isinstance(reply, hiredis.ReplyError):
            raise StoreAway(_word(reply))
    return replies[len(greeting) :]


def _word(error: hiredis.ReplyError) -> str:
    """What kind of error an answer is."""
    return str(error).partition(" ")[0]


def _credentials(url: RedisUrl) -> list[bytes]:
    commands = []
    if url.password:
        commands.append(encode("AUTH", *([url.username] if url.username else []), str(url.password)))
    if url.db:
        commands.append(encode("SELECT", url.db))
    return commands
