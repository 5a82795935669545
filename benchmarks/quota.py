"""What quotas add to a request: a reservation and a settlement with its ledger entry, in a real Redis on loopback.

    python -m benchmarks.quota [--requests 3000]

Alone, and with 64 and 256 requests that follow each other without a pause, of one tenant and of 16; under 1, 3 and 6
bounds, whose minutes are full of entries. The time is that of both calls together; CPU is that of this process, which
is the gateway's part and the clients' own loop, and of the server. The rows of the memory are the books without Redis.
On a machine that is busy with other things the quiet figures say more: of runs of 20 requests one after the other, the
quickest tenth.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import uvloop

from benchmarks.report import process_cpu_s, write_report
from gateway.core.quota.calls import Reserve, Settlement
from gateway.core.quota.policy import Bound, Kind
from gateway.quota.memory_books import MemoryBooks
from gateway.quota.redis_books import RedisBooks
from gateway.quota.redis_connection import redis_client
from gateway.quota.wire import encode
from inferway.redis_url import RedisUrl
from tests.support.valkey import Valkey

KINDS = (Kind.REQUESTS_PER_MINUTE, Kind.TOKENS_PER_MINUTE)
EVERY = tuple(Bound(scope, kind, 10**12) for scope in ("t", "k:abc", "m:small-*") for kind in KINDS)
LEASE_MS = 600_000
LIMIT_P50_US, LIMIT_CPU_US = 500, 250
RECORD = (
    ("request_id", "chatcmpl-0123456789abcdef01234567"),
    ("key", "abc"), ("model", "small-1"), ("worker", "10.0.0.1:9000"), ("outcome", "ok"),
    ("prompt_tokens", "812"), ("cached_tokens", "512"), ("completion_tokens", "204"), ("reasoning_tokens", "0"),
    ("received_ms", "1796025600123"),
)  # fmt: skip
Books = RedisBooks | MemoryBooks


async def fill(books: Books, tenants: int, bounds: Sequence[Bound]) -> None:
    """An entry in each second of the last minute."""
    for tenant in range(tenants):
        told = [Settlement(f"old{second}", bounds, 5, age_ms=second * 1000) for second in range(59, -1, -1)]
        await books.settle_many([(f"t{tenant}", each) for each in told])


async def measure(
    books: Books, pid: int | None, *, bounds: int, clients: int, tenants: int, requests: int
) -> dict[str, Any]:
    under = EVERY[:bounds]
    await fill(books, tenants, under)
    reserves, settles, stamps = [], [], [time.process_time()]

    async def client(number: int) -> None:
        tenant = f"t{number % tenants}"
        for turn in range(requests // clients):
            name = f"{bounds}-{clients}-{tenants}-{number}-{turn}"
            start = time.perf_counter()
            assert (await books.reserve(tenant, Reserve(name, under, 1016, LEASE_MS))).is_granted
            reserved = time.perf_counter()
            await books.settle(tenant, Settlement(name, under, 1016, record=RECORD))
            reserves.append((reserved - start) * 1e6)
            settles.append((time.perf_counter() - reserved) * 1e6)
            stamps.append(time.process_time())

    cpu, server_cpu = time.process_time(), process_cpu_s(pid) if pid else 0.0
    await asyncio.gather(*(client(number) for number in range(clients)))
    cpu, server_cpu = stamps[-1] - cpu, process_cpu_s(pid) - server_cpu if pid else 0.0
    cpu_us = [(after - before) * 1e6 for before, after in pairwise(stamps)]
    both = [one + other for one, other in zip(reserves, settles, strict=True)]
    return {
        "store": "redis" if pid else "memory",
        "bounds": bounds,
        "in_flight": clients,
        "tenants": tenants,
        "reserve_p50_us": round(statistics.median(reserves)),
        "reserve_p99_us": p99(reserves),
        "settle_p50_us": round(statistics.median(settles)),
        "settle_p99_us": p99(settles),
        "both_p50_us": round(statistics.median(both)),
        "gateway_cpu_us": round(cpu / len(both) * 1e6),
        "server_cpu_us": round(server_cpu / len(both) * 1e6),
        "quiet_p50_us": quiet(both) if clients == 1 else "",
        "quiet_cpu_us": quiet(cpu_us) if clients == 1 else "",
    }


async def ping_cpu_us(call: Callable[[], Awaitable[object]]) -> int:
    """CPU of this process for one answer, quiet as above."""
    stamps = [time.process_time()]
    for _ in range(600):
        await call()
        stamps.append(time.process_time())
    return quiet([(after - before) * 1e6 for before, after in pairwise(stamps)])


def quiet(values: Sequence[float]) -> int:
    """The median of each run of 20, and of these the one that a tenth are below."""
    medians = sorted(statistics.median(values[start : start + 20]) for start in range(0, len(values) - 19, 20))
    return round(medians[len(medians) // 10])


def p99(values: Sequence[float]) -> int:
    return round(sorted(values)[len(values) * 99 // 100])


async def run(requests: int) -> None:
    rows = []
    with Valkey() as server:
        # A busy machine is measured as slow here, not as away.
        books = RedisBooks(server.url, gateway_id="bench", timeout_ms=5_000)
        keeper = asyncio.create_task(books.run())
        assert await books.wait_up(10)
        for bounds in (1, 3, 6):
            for clients, tenants in ((1, 1), (64, 1), (64, 16), (256, 1), (256, 16)):
                server.call("FLUSHALL")
                size = {"bounds": bounds, "clients": clients, "tenants": tenants, "requests": requests}
                rows.append(await measure(books, server.pid, **size))
        keys, ping = books.keys("t0"), encode("PING")
        pings = [await ping_cpu_us(lambda: books._store.call(keys.books, ping))]
        async with redis_client(RedisUrl.parse(server.url)) as client:
            pings.append(await ping_cpu_us(client.ping))
        keeper.cancel()
        with suppress(asyncio.CancelledError):
            await keeper
    for bounds in (1, 3, 6):
        rows.append(await measure(MemoryBooks(), None, bounds=bounds, clients=1, tenants=1, requests=requests))
    write_report("quota", rows)
    alone = [row for row in rows if row["in_flight"] == 1 and row["store"] == "redis"]
    for name, limit in (("both_p50_us", LIMIT_P50_US), ("gateway_cpu_us", LIMIT_CPU_US)):
        figures = ", ".join(f"{row[name]} under {row['bounds']}" for row in alone)
        print(f"  added to a request, {name}: {figures} bounds (limit {limit})")
    print(f"  CPU of a PING, quiet: {pings[0]} us over this connection, {pings[1]} us with the client library")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=3_000)
    uvloop.run(run(parser.parse_args().requests))


if __name__ == "__main__":
    main()
