"""Alarms before the ledgers fill the store, and sums for the admin API."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis.asyncio
from redis.asyncio.cluster import ClusterNode, RedisCluster

from gateway.quota.ledger_sums import add_ledger
from gateway.quota.ledger_watch import LedgerMetrics, LedgerWatch
from inferway.ledger import LedgerEntry, stream_key
from inferway.metrics import Registry
from inferway.usage import Sums
from tests.support.valkey import Cluster, Valkey
from tests.support.waiting import until


def watch(client: Any, gateway_id: str = "gw", alarm_entries: int = 10) -> tuple[LedgerWatch, Registry]:
    registry = Registry("gateway")
    return LedgerWatch(client, "inferway", gateway_id, alarm_entries, LedgerMetrics(registry)), registry


def gauge(registry: Registry, name: str) -> float | None:
    return registry.collectors.get_sample_value(f"inferway_gateway_{name}")


@contextlib.asynccontextmanager
async def client_of(valkey: Valkey) -> AsyncIterator[redis.asyncio.Redis]:
    client = redis.asyncio.Redis.from_url(valkey.url)
    yield client
    await client.aclose()


async def fill(client: Any, tenant: str, entries: int) -> None:
    for number in range(entries):
        await client.xadd(stream_key("inferway", tenant), {"n": number}, id=f"{number + 1}-0")


async def test_long_ledgers_and_a_full_store_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """When a tenant's stream passes the limit, and again only after it has been short; so with memory."""
    with Valkey() as valkey:
        async with client_of(valkey) as client:
            looking, _ = watch(client)
            await fill(client, "short", 3)
            await fill(client, "long", 11)
            await client.set("inferway:{long}:books", "no stream")
            seen = await looking.look()
            assert (seen.entries, seen.longest, seen.over, seen.memory_ratio) == (14, 11, 1, 0.0)
            assert seen.oldest_s > 1e9
            await looking.look()
            told = [record for record in caplog.records if record.message == "ledger_long"]
            assert [record.fields for record in told] == [{"tenant": "long", "entries": 11}]  # type: ignore[attr-defined]
            await client.xtrim(stream_key("inferway", "long"), maxlen=2, approximate=False)
            assert (await looking.look()).over == 0
            await client.xadd(stream_key("inferway", "long"), {"n": 1})
            used = (await client.info("memory"))["used_memory"]
            await client.config_set("maxmemory", int(used / 0.9))
            for _ in range(2):
                assert (await looking.look()).memory_ratio > 0.8
            assert caplog.messages.count("redis_memory_high") == 1
            await client.config_set("maxmemory", used * 10)
            assert 0 < (await looking.look()).memory_ratio < 0.8


async def test_one_gateway_looks() -> None:
    """The gauges of the others are 0; a store that is away ends nobody's looking."""
    with Valkey() as valkey:
        async with client_of(valkey) as client:
            await fill(client, "t", 5)
            both = [watch(client, name) for name in ("a", "b")]
            tasks = [asyncio.create_task(looking.run()) for looking, _ in both]
            await until(lambda: sorted(gauge(registry, "ledger_entries") or 0 for _, registry in both) == [0, 5])
            owner = (await client.get("inferway:ledger-watch")).decode()
            assert gauge(both["ab".index(owner)][1], "ledger_entries") == 5
            assert await client.pttl("inferway:ledger-watch") > 30_000
            valkey.stop()
            late, registry = watch(client, "late")
            tasks.append(asyncio.create_task(late.run()))
            await asyncio.sleep(0.2)
            assert not any(task.done() for task in tasks)
            assert gauge(registry, "ledger_entries") == 0
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)


@pytest.mark.slow
async def test_a_cluster_is_looked_at_as_a_whole() -> None:
    """The streams of all nodes, and the fullest of them."""
    with Cluster() as cluster:
        nodes = [ClusterNode("127.0.0.1", node.port) for node in cluster.nodes]
        client = RedisCluster(startup_nodes=nodes)
        tenants = [f"t{number}" for number in range(12)]
        for tenant in tenants:
            await fill(client, tenant, 2)
        cluster.nodes[1].call("CONFIG", "SET", "maxmemory", 10**9)
        looking, _ = watch(client)
        seen = await looking.look()
        assert (seen.entries, seen.longest) == (24, 2)
        assert 0 < seen.memory_ratio < 1
        await client.aclose()


async def test_a_ledger_is_summed() -> None:
    """From the time that is asked for, in chunks, up to a bound that is told."""
    with Valkey() as valkey:
        async with client_of(valkey) as client:
            for number in range(350):
                entry = LedgerEntry(reservation_id=str(number), tenant="acme", outcome="ok", prompt_tokens=2)
                record = {**dict(entry.record()), "finished_ms": str(1000 + number)}
                await client.xadd(stream_key("inferway", "acme"), record, id=f"{1000 + number}-0")
            for since, most, is_all, requests in (
                (None, 350, True, 350),
                (1100, 350, True, 250),
                (None, 349, False, 349),
            ):
                sums = Sums(("tenant",), since)
                assert await add_ledger(client, "inferway", "acme", sums, most=most) is is_all
                assert (sums.total.requests, sums.total.prompt_tokens) == (requests, 2 * requests)
            nobody = Sums(())
            assert await add_ledger(client, "inferway", "nobody", nobody)
            assert nobody.total.requests == 0
