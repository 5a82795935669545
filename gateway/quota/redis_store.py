"""Redis as quotas use it: one server, the master that sentinels name, or the cluster's node that has a key.

Each server is a `RedisLink`, which is up or down; a call goes to the link of its key and fails at once with StoreAway
while that is down. Of a cluster the map of slots is learned from any node that answers, corrected by what the nodes
answer, and read anew while one of them is away.
"""

from __future__ import annotations

import asyncio
import binascii
import contextlib
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import hiredis

from inferway.redis_url import Address, RedisUrl

from .redis_link import PROBE_S, RedisLink, ask
from .wire import StoreAway, encode

_SLOTS = 16384
# A slot that moves is met on two nodes, at most a few times.
_HOPS = 4
# After a first answer that a slot has moved, until the map is read anew: others may move with it.
_SETTLING_S = 0.05


class RedisStore:
    """Owned by one task, `run`; asked by every request."""

    def __init__(self, url: RedisUrl, *, timeout_s: float, scripts: Sequence[bytes], probe_key: str) -> None:
        self._url, self._timeout_s, self._scripts = url, timeout_s, scripts
        self._tls = ssl.create_default_context() if url.is_tls else None
        # Deletes what is never there: only who takes writes answers it.
        self._probe = None if url.mode == "cluster" else encode("DEL", probe_key)
        self._links: dict[Address, RedisLink] = {}
        self._tasks: dict[Address, asyncio.Task[None]] = {}
        self._group: asyncio.TaskGroup | None = None
        self._of_slot: list[RedisLink | None] = [None] * _SLOTS
        self._must_read = asyncio.Event()
        self._must_read.set()
        self._masters: frozenset[RedisLink] = frozenset()
        self._single: RedisLink | None = None
        if url.mode != "cluster":
            find = self._only_address if url.mode == "single" else self._master
            self._single = self._link(find, self._probe)

    @property
    def away(self) -> str:
        """Why it, or a part of it, cannot be asked; "" where all is well."""
        if self._single is not None:
            return self._single.away
        if not self._masters:
            return "CLUSTERDOWN"
        return next((link.away for link in self._masters if link.away), "")

    async def call(self, key: str, command: bytes) -> Any:
        """The answer to a command that is about this key, and others of its hash tag. Raises StoreAway."""
        if self._single is not None:
            reply = await self._single.call(command)
            if isinstance(reply, hiredis.ReplyError):
                raise StoreAway("MOVED")
            return reply
        return await self._call_cluster(slot_of(key), command)

    async def wait_up(self, timeout_s: float) -> bool:
        """Whether it could be asked within that time."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        # One wait for the states of several links.
        while self.away and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return not self.away

    async def run(self) -> None:
        """Keeps the connections until it is cancelled."""
        if self._single is not None:
            await self._single.run()
            return
        async with asyncio.TaskGroup() as self._group:
            while True:
                if self._must_read.is_set() or self.away:
                    self._must_read.clear()
                    await self._read_map()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(PROBE_S):
                        await self._must_read.wait()
                        await asyncio.sleep(_SETTLING_S)

    async def _call_cluster(self, slot: int, command: bytes) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._timeout_s
        link, is_asking = self._of_slot[slot], False
        for _ in range(_HOPS):
            if link is None:
                raise StoreAway("CLUSTERDOWN")
            reply = await link.call(command, is_asking=is_asking)
            if not isinstance(reply, hiredis.ReplyError):
                return reply
            word, _, where = str(reply).split(" ")
            is_asking = word == "ASK"
            link = self._at(_address(where, link))
            if not is_asking:
                self._of_slot[slot] = link
                self._must_read.set()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(deadline):
                    await link.up.wait()
        raise StoreAway("MOVED")

    async def _read_map(self) -> None:
        """Ask whoever answers first, those of the cluster before those that the URL names."""
        addresses = dict.fromkeys([*(a for a, link in self._links.items() if not link.away), *self._url.addresses])
        for address in addresses:
            try:
                (ranges,) = await ask(address, self._url, self._tls, encode("CLUSTER", "SLOTS"))
            except (StoreAway, OSError):
                continue
            of_slot: list[RedisLink | None] = [None] * _SLOTS
            for first, last, (host, port, *_), *_ in ranges:
                link = self._at(Address(host.decode() or address.host, port))
                of_slot[first : last + 1] = [link] * (last + 1 - first)
            self._of_slot = of_slot
            self._masters = frozenset(link for link in of_slot if link is not None)
            for gone in [a for a, link in self._links.items() if link not in self._masters]:
                del self._links[gone]
                self._tasks.pop(gone).cancel()
            return

    def _at(self, address: Address) -> RedisLink:
        """The link to this node of the cluster, made where there is none."""
        link = self._links.get(address)
        if link is None:
            assert self._group is not None, "the map is read, and calls are redirected, only while it runs"

            async def find() -> Address:
                return address

            link = self._links[address] = self._link(find, None)
            self._tasks[address] = self._group.create_task(link.run())
        return link

    async def _only_address(self) -> Address:
        return self._url.addresses[0]

    async def _master(self) -> Address:
        """As the first sentinel that answers knows it. Raises StoreAway."""
        command = encode("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._url.service)
        asked = [asyncio.ensure_future(ask(address, self._url, self._tls, command)) for address in self._url.addresses]
        try:
            for answer in asyncio.as_completed(asked):
                with contextlib.suppress(StoreAway, OSError):
                    (found,) = await answer
                    if found is not None:
                        return Address(found[0].decode(), int(found[1]))
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)
        raise StoreAway("no master")

    def _link(self, find: Callable[[], Awaitable[Address]], probe: bytes | None) -> RedisLink:
        return RedisLink(self._url, find, timeout_s=self._timeout_s, tls=self._tls, scripts=self._scripts, probe=probe)


def slot_of(key: str) -> int:
    """The slot of a key: that of what stands in its first braces, if anything does."""
    start = key.find("{")
    end = key.find("}", start + 1) if start >= 0 else -1
    tag = key[start + 1 : end] if end > start + 1 else key
    return binascii.crc_hqx(tag.encode(), 0) % _SLOTS


def _address(where: str, asked: RedisLink) -> Address:
    """HOST:PORT of a redirection; without a host it is the one that was asked."""
    host, _, port = where.rpartition(":")
    return Address(host or asked.host, int(port))
