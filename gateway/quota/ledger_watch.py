"""Looks at how long the ledgers have grown, so that somebody is told before they fill the store.

Of all gateways one looks, whichever holds the lease; the gauges of the others are 0, so that sums over gateways are
right.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from inferway import logs
from inferway.ledger import stream_pattern, tenant_of
from inferway.lifecycle import end_if_cancelled
from inferway.metrics import Registry

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 30.0
_LEASE_MS = 75_000
_FULL_RATIO = 0.8
_SCAN = 1000


class LedgerMetrics:
    def __init__(self, registry: Registry) -> None:
        gauge = registry.gauge
        self.entries = gauge("ledger_entries", "Entries in the streams of all tenants.")
        self.longest = gauge("ledger_longest_entries", "Entries in the longest stream of a tenant.")
        self.oldest = gauge("ledger_oldest_seconds", "Age of the oldest entry in a stream.")
        self.over = gauge("ledger_tenants_over_alarm", "Tenants whose stream is longer than --ledger-alarm-entries.")
        self.memory = gauge("redis_memory_used_ratio", "Memory of the fullest Redis over its maxmemory; 0: no limit.")

    def set(self, seen: Seen) -> None:
        self.entries.set(seen.entries)
        self.longest.set(seen.longest)
        self.oldest.set(seen.oldest_s)
        self.over.set(seen.over)
        self.memory.set(seen.memory_ratio)


@dataclass(slots=True)
class Seen:
    entries: int = 0
    longest: int = 0
    oldest_s: float = 0.0
    over: int = 0
    memory_ratio: float = 0.0


class LedgerWatch:
    """`run` it as a task."""

    def __init__(
        self, redis: Redis | RedisCluster, prefix: str, gateway_id: str, alarm_entries: int, metrics: LedgerMetrics
    ) -> None:
        """`redis` returns bytes."""
        self._redis: Any = redis
        self._prefix = prefix
        self._gateway_id = gateway_id
        self._alarm_entries = alarm_entries
        self._metrics = metrics
        # Told already, and still so.
        self._alarmed: set[str] = set()
        self._is_full = False

    async def run(self) -> None:
        while True:
            try:
                seen = await self.look() if await self._is_mine() else Seen()
                self._metrics.set(seen)
            except Exception as error:
                # That the store is away others say; looking goes on when it is back.
                logs.event(log, "ledger_not_seen", level=logging.DEBUG, problem=str(error))
                self._metrics.set(Seen())
            end_if_cancelled()
            await asyncio.sleep(_LOOK_EVERY_S)

    async def look(self) -> Seen:
        """At all streams and all servers; says in the log what has become too much since the last time."""
        seen = Seen()
        alarmed = set()
        now = time.time()
        async for key in self._redis.scan_iter(match=stream_pattern(self._prefix), count=_SCAN):
            tenant = tenant_of(self._prefix, key.decode(errors="replace"))
            if tenant is None:
                continue
            entries = int(await self._redis.xlen(key))
            seen.entries += entries
            seen.longest = max(seen.longest, entries)
            if first := await self._redis.xrange(key, count=1):
                seen.oldest_s = max(seen.oldest_s, now - int(first[0][0].split(b"-")[0]) / 1000)
            if entries > self._alarm_entries:
                alarmed.add(tenant)
                if tenant not in self._alarmed:
                    logs.event(log, "ledger_long", level=logging.WARNING, tenant=tenant, entries=entries)
        self._alarmed = alarmed
        seen.over = len(alarmed)
        seen.memory_ratio = await self._memory_ratio()
        is_full = seen.memory_ratio > _FULL_RATIO
        if is_full and not self._is_full:
            logs.event(log, "redis_memory_high", level=logging.WARNING, used_ratio=round(seen.memory_ratio, 3))
        self._is_full = is_full
        return seen

    async def _is_mine(self) -> bool:
        """Whether this gateway is the one that looks; holds on to that while it does."""
        key = f"{self._prefix}:ledger-watch"
        if await self._redis.set(key, self._gateway_id, px=_LEASE_MS, nx=True):
            return True
        if await self._redis.get(key) != self._gateway_id.encode():
            return False
        await self._redis.pexpire(key, _LEASE_MS)
        return True

    async def _memory_ratio(self) -> float:
        everywhere = {"target_nodes": RedisCluster.PRIMARIES} if isinstance(self._redis, RedisCluster) else {}
        info = await self._redis.info("memory", **everywhere)
        # Several servers answer by their names.
        servers = [info] if "used_memory" in info else list(info.values())
        return max(
            (server["used_memory"] / server["maxmemory"] for server in servers if server["maxmemory"]), default=0.0
        )
