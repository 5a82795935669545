"""The books in a real Redis: the same as in memory, shared, fast to say that it is away, and back by themselves."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import replace

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.core.quota.books import QuotaBooks
from gateway.core.quota.calls import Reserve, Settlement, Verdict
from gateway.core.quota.policy import Bound, Kind
from gateway.quota.memory_books import MemoryBooks
from gateway.quota.redis_books import RedisBooks, StoreAway, TenantKeys
from gateway.quota.redis_connection import redis_client
from gateway.quota.redis_store import slot_of
from gateway.quota.wire import StoreRefused
from inferway.redis_url import RedisUrl
from tests.support.quota_operations import REMEMBER_MS, STARTS_MS, Step, steps
from tests.support.valkey import Cluster, Valkey, sentinel_url, sentinels, slot_of_key
from tests.support.waiting import until

NOW = STARTS_MS[0]
RPM = Bound("t", Kind.REQUESTS_PER_MINUTE, 1000)
TPM = Bound("k:a", Kind.TOKENS_PER_MINUTE, 10**9)
PAR = Bound("m:small-*", Kind.PARALLEL_REQUESTS, 1000)
BOUNDS = (RPM, TPM, PAR)
RECORD = (("model", "m"), ("outcome", "ok"))


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as running:
        yield running


@contextlib.asynccontextmanager
async def books_at(url: str, *, wait: bool = True, **options: object) -> AsyncIterator[RedisBooks]:
    # A machine that is busy with other tests is slow, not away; where being away is the subject, tests say less.
    books = RedisBooks(url, **({"gateway_id": "one", "timeout_ms": 5000} | options))
    task = asyncio.create_task(books.run())
    try:
        if wait:
            assert await books.wait_up(20), books.away
        yield books
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
async def books(server: Valkey) -> AsyncIterator[RedisBooks]:
    server.call("FLUSHALL")
    async with books_at(server.url) as made:
        yield made


def reserve(name: str, bounds: Sequence[Bound] = BOUNDS, *, units: int = 10, lease_ms: int = 600_000) -> Reserve:
    return Reserve(name, bounds, units, lease_ms)


async def used(books: RedisBooks, tenant: str = "acme", bounds: Sequence[Bound] = BOUNDS) -> list[int]:
    return [standing.used for standing in await books.standings(tenant, bounds)]


async def granted_soon(books: RedisBooks, tenant: str, call: Reserve) -> None:
    """Granted now, or as soon as what has changed has come round."""
    for _ in range(100):
        with contextlib.suppress(StoreAway):
            assert (await books.reserve(tenant, call)).is_granted
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{tenant} is away: {books.away}")


# The same as in memory


@settings(max_examples=25)
@given(st.sampled_from(STARTS_MS), steps())
def test_redis_and_memory_agree(server: Valkey, start_ms: int, sequence: Sequence[Step]) -> None:
    """Verdicts, waits, standings and duplicates, for whatever is called."""

    async def compare() -> None:
        server.call("FLUSHALL")
        now = start_ms
        here = MemoryBooks(clock=lambda: now, remember_ms=REMEMBER_MS)
        async with books_at(server.url, clock=lambda: now, remember_ms=REMEMBER_MS) as there:
            for step in sequence:
                now += step.after_ms
                match step.call:
                    case Reserve() as call:
                        assert await there.reserve("acme", call) == await here.reserve("acme", call)
                    case Settlement() as told:
                        assert await there.settle("acme", told) == await here.settle("acme", told)
                    case bounds:
                        assert await there.standings("acme", bounds) == await here.standings("acme", bounds)

    asyncio.run(compare())


async def test_calls_that_come_together_are_done_one_after_the_other(server: Valkey) -> None:
    """Hundreds at once, some of one id or told twice or in parts, as if each had come alone."""
    rng, now = random.Random(7), NOW
    bounds = (replace(RPM, most=150), replace(TPM, most=1500), replace(PAR, most=120))
    here = QuotaBooks()
    server.call("FLUSHALL")
    async with books_at(server.url, clock=lambda: now) as there:
        for _ in range(4):
            calls = [replace(reserve(f"r{rng.randrange(400)}", bounds), units=rng.randrange(20)) for _ in range(200)]
            verdicts = await asyncio.gather(*(there.reserve("acme", call) for call in calls))
            assert verdicts == [here.reserve(call, now_ms=now) for call in calls]
            told = [
                Settlement(
                    f"r{rng.randrange(60)}", bounds, rng.randrange(30), part=rng.choice(("", "one", "two", "three"))
                )
                for _ in range(150)
            ]
            done = await there.settle_many([("acme", each) for each in told])
            assert done == [here.settle(each, now_ms=now) for each in told]
            assert await there.standings("acme", bounds) == here.standings(bounds, now_ms=now)
            now += 20_000


async def test_a_tenant_of_ten_thousand_keys(books: RedisBooks) -> None:
    """How all of their bounds stand is told, in their order, although no script takes so many at once."""
    bounds = [Bound(f"k:{number}", Kind.REQUESTS_PER_MINUTE, 9) for number in range(10_000)]
    for place in (0, 9_999):
        assert (await books.reserve("many", reserve(f"r{place}", (bounds[place],)))).is_granted
    assert await used(books, "many", bounds) == [1, *[0] * 9_998, 1]


async def test_what_is_wrong_with_one_tenant_is_no_matter_of_others(server: Valkey, books: RedisBooks) -> None:
    """Its calls fail, however many; the server is not taken for being away."""
    server.call("SET", TenantKeys("inferway", "broken").leases, "no set")
    for number in range(10):
        with pytest.raises(StoreRefused):
            await books.reserve("broken", reserve(str(number)))
    assert books.away == ""
    assert (await books.reserve("acme", reserve("a"))).is_granted


async def test_redis_tells_the_time(server: Valkey, books: RedisBooks) -> None:
    """Nothing of a gateway's clock goes to the server: what is held runs out by the server's own."""
    assert (await books.reserve("acme", reserve("a", lease_ms=1))).is_granted
    await asyncio.sleep(0.01)
    assert await used(books) == [1, 0, 0]


# Nothing leaks, nothing is written twice


async def test_a_thousand_requests_leave_nothing_held(server: Valkey, books: RedisBooks) -> None:
    """Whether they were settled, or cancelled while they were being reserved and settled after."""
    rng = random.Random(3)

    async def request(number: int) -> None:
        call = asyncio.create_task(books.reserve("acme", reserve(f"r{number}")))
        if rng.random() < 0.3:
            await asyncio.sleep(0)
            call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
        await books.settle("acme", Settlement(f"r{number}", BOUNDS, 1, record=RECORD))

    await asyncio.gather(*(request(number) for number in range(1000)))
    keys = books.keys("acme")
    assert await used(books) == [1000, 1000, 0]
    assert server.call("ZCARD", keys.leases) == server.call("HLEN", keys.held) == b":0\r\n"
    assert server.call("XLEN", keys.ledger) == b":1000\r\n"


async def test_the_ledger_has_one_entry_a_settlement(server: Valkey, books: RedisBooks) -> None:
    """With the fields that were given and the server's time less the age, written with the booking or not at all."""
    told = Settlement("a", (), 5, age_ms=3_600_000, record=RECORD)
    assert await books.settle_many([("acme", told), ("acme", told), ("other", told)]) == [True, False, True]
    async with redis_client(RedisUrl.parse(server.url)) as client:
        ((entry, fields),) = await client.xrange(books.keys("acme").ledger)
    told_ms = int(entry.split(b"-")[0])
    assert fields[b"model"] == b"m"
    assert fields[b"outcome"] == b"ok"
    assert 0 <= told_ms - 3_600_000 - int(fields[b"finished_ms"]) < 1000


async def test_forget_drops_the_books_and_keeps_the_ledger(server: Valkey, books: RedisBooks) -> None:
    """A tenant that is gone leaves what is to be paid."""
    await books.reserve("acme", reserve("a"))
    await books.settle("acme", Settlement("b", BOUNDS, 5, record=RECORD))
    await books.forget("acme")
    assert await used(books) == [0, 0, 0]
    assert server.call("EXISTS", *books.keys("acme").all) == b":1\r\n"


# Several gateways


async def test_gateways_share_the_books_and_know_of_each_other(server: Valkey) -> None:
    """What one grants the other counts; who leaves is no longer counted, and who was away is known all the same."""
    server.call("FLUSHALL")
    few = (replace(RPM, most=10),)
    async with books_at(server.url, gateway_id="one", heartbeat_s=0.1) as one:
        async with books_at(server.url, gateway_id="two", heartbeat_s=0.1) as two:
            calls = (books.reserve("acme", reserve(f"{n}{id(books)}", few)) for n in range(20) for books in (one, two))
            verdicts: list[Verdict] = await asyncio.gather(*calls)
            assert sum(verdict.is_granted for verdict in verdicts) == 10
            await until(lambda: (one.gateways, two.gateways) == (2, 2))
        await until(lambda: one.gateways == 1)


# Redis is away


async def test_a_server_that_refuses_connections(server: Valkey) -> None:
    """Every call is told at once, and the first after it has come succeeds."""
    with Valkey(start=False) as late:
        async with books_at(late.url, wait=False) as books:
            for _ in range(5):
                with pytest.raises(StoreAway, match="connection"):
                    await books.reserve("acme", reserve("a"))
            assert (books.away, books.gateways) == ("connection", None)
            late.start()
            assert await books.wait_up(20)
            assert (await books.reserve("acme", reserve("a"))).is_granted
            await until(lambda: books.gateways == 1)


async def test_a_server_that_does_not_answer(server: Valkey) -> None:
    """After three calls in vain nobody waits, and nothing is sent, until a probe of the gateway's own is answered."""
    server.call("FLUSHALL")
    async with books_at(server.url, timeout_ms=100) as books:
        server.pause()
        try:
            for number in range(3):
                with pytest.raises(StoreAway, match="timeout"):
                    await books.settle("acme", Settlement(f"waited{number}", BOUNDS, 1))
            assert books.away == "timeout"
            with pytest.raises(StoreAway, match="timeout"):
                await books.settle("acme", Settlement("at once", BOUNDS, 1))
        finally:
            server.resume()
        assert await books.wait_up(20)
        # What was sent before the server stood still may have been done; told again it is known.
        for number in range(3):
            with contextlib.suppress(StoreAway):
                await books.settle("acme", Settlement(f"waited{number}", BOUNDS, 1))
        assert server.call("ZSCORE", books.keys("acme").settled, "at once") == b"$-1\r\n"


async def test_whoever_gathers_behind_a_call_in_vain_fails_with_it(server: Valkey) -> None:
    """A hundred at once are told together, not one after the other."""
    async with books_at(server.url, timeout_ms=100) as books:
        server.pause()
        try:
            calls = (books.reserve("acme", reserve(f"gathered{number}")) for number in range(100))
            answers = await asyncio.gather(*calls, return_exceptions=True)
        finally:
            server.resume()
        assert {type(answer) for answer in answers} == {StoreAway}
        assert await books.wait_up(20)
        assert server.call("HEXISTS", books.keys("acme").held, "gathered99") == b":0\r\n"


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_loop_that_was_busy_is_no_timeout(server: Valkey, run: Callable[[Coroutine[None, None, None]], None]) -> None:
    """An answer that has arrived meanwhile is an answer, whether the loop looks at its timers first or not."""

    async def be_busy() -> None:
        async with books_at(server.url, timeout_ms=500) as books:
            # Busy in a callback of a socket: after that a loop may look at its timers before it reads.
            loop, (here, there) = asyncio.get_running_loop(), socket.socketpair()

            def block() -> None:
                loop.remove_reader(here)
                server.resume()
                time.sleep(0.8)

            with here, there:
                loop.add_reader(here, block)
                server.pause()
                call = asyncio.create_task(books.reserve("acme", reserve("a")))
                await asyncio.sleep(0.01)
                there.send(b"x")
                assert (await call).is_granted

    run(be_busy())


@pytest.mark.parametrize(
    ("ill", "well", "reason"),
    [
        (("REPLICAOF", "127.0.0.1", 1), ("REPLICAOF", "NO", "ONE"), "READONLY"),
        (("CONFIG", "SET", "maxmemory", 1), ("CONFIG", "SET", "maxmemory", 0), "OOM"),
        (("CONFIG", "SET", "min-replicas-to-write", 1), ("CONFIG", "SET", "min-replicas-to-write", 0), "NOREPLICAS"),
    ],
)
async def test_a_server_that_refuses(ill: tuple[str], well: tuple[str], reason: str) -> None:
    """Whatever it says is its being away, and soon after it is well calls succeed again."""
    with Valkey() as server:
        async with books_at(server.url) as books:
            server.call(*ill)
            for _ in range(3):
                with pytest.raises(StoreAway):
                    await books.reserve("acme", reserve("a"))
            assert books.away == reason
            server.call(*well)
            assert await books.wait_up(20)
            assert (await books.reserve("acme", reserve("a"))).is_granted


async def test_a_server_that_was_killed_comes_back(server: Valkey) -> None:
    """With what was written to disk, and with scripts that are loaded anew."""
    with Valkey(is_durable=True) as durable:
        async with books_at(durable.url) as books:
            await books.reserve("acme", reserve("a"))
            durable.kill()
            with pytest.raises(StoreAway):
                await books.reserve("acme", reserve("b"))
            durable.start()
            assert await books.wait_up(20)
            assert await used(books) == [1, 10, 1]


async def test_scripts_that_are_gone_are_loaded_again(server: Valkey, books: RedisBooks) -> None:
    """Somebody empties them: no call fails."""
    server.call("SCRIPT", "FLUSH")
    verdicts = await asyncio.gather(*(books.reserve(f"tenant{n % 3}", reserve(f"r{n}")) for n in range(30)))
    assert all(verdict.is_granted for verdict in verdicts)


async def test_a_password(server: Valkey) -> None:
    """The right one lets in; a wrong one is told as what it is."""
    with Valkey("--requirepass", "right") as locked:
        async with books_at(locked.url.replace("//", "//:right@") + "/2") as books:
            assert (await books.reserve("acme", reserve("a"))).is_granted
        async with books_at(locked.url.replace("//", "//:wrong@"), wait=False) as books:
            await until(lambda: books.away == "WRONGPASS")


# Clusters and sentinels


async def test_a_cluster(caplog: pytest.LogCaptureFixture) -> None:
    """Limits of key, tenant and model at once, for tenants on every node: while slots move, without scripts, after a
    replica has taken over, and without a node, which the tenants of others do not notice."""
    with Cluster(replicas=1) as cluster:
        tenants = [f"tenant{number}" for number in range(30)]
        async with books_at(cluster.url) as books:

            def owner(tenant: str) -> Valkey:
                return cluster.owner(books.keys(tenant).books)

            async def request(name: str) -> None:
                verdicts = await asyncio.gather(*(books.reserve(tenant, reserve(name)) for tenant in tenants))
                assert all(verdict.is_granted for verdict in verdicts)
                told = [(tenant, Settlement(name, BOUNDS, 3, record=RECORD)) for tenant in tenants]
                assert all(await books.settle_many(told))

            await request("a")
            for tenant in tenants:
                for key in books.keys(tenant).all:
                    assert slot_of(key) == slot_of_key(cluster.nodes[0], key)
            assert {owner(tenant) for tenant in tenants} == set(cluster.nodes)

            for node in cluster.nodes:
                node.call("SCRIPT", "FLUSH")
            moved, other = tenants[0], next(node for node in cluster.nodes if node is not owner(tenants[0]))
            await books.reserve(moved, reserve("b"))
            with cluster.moving(books.keys(moved).books, other):
                assert (await books.reserve(moved, reserve("asked"))).standings[0].used == 3
            await request("b")
            assert await used(books, moved) == [3, 16, 1]

            idle, other = tenants[1], next(node for node in cluster.nodes if node is not owner(tenants[1]))
            with cluster.moving(books.keys(idle).books, other):
                for _ in range(4):
                    with pytest.raises(StoreAway, match="TRYAGAIN"):
                        await books.reserve(idle, reserve("c"))
                assert "redis_away" not in caplog.messages
            assert (await books.reserve(idle, reserve("c"))).is_granted

            first = next(tenant for tenant in tenants[2:] if owner(tenant) is cluster.nodes[0])
            cluster.fail_over()
            assert (await books.reserve(first, reserve("c"))).standings[0].used == 3

            lost = cluster.nodes[1]
            lonely = {tenant for tenant in tenants if owner(tenant) is lost}
            for node in (*cluster.nodes, *cluster.replicas):
                node.call("CONFIG", "SET", "cluster-require-full-coverage", "no")
            lost.kill()
            for tenant in tenants[2:]:
                if tenant in lonely:
                    with pytest.raises(StoreAway):
                        await books.reserve(tenant, reserve("d"))
                else:
                    # The map may still be the one of before the failover: whoever is sent wrong is sent right next.
                    await granted_soon(books, tenant, reserve("d"))
            assert books.away
        async with redis_client(RedisUrl.parse(cluster.url)) as client:
            stored = await client.hlen(books.keys(first).held)
            assert stored == 2


@pytest.mark.slow
async def test_sentinels() -> None:
    """The master is found through them, and the next one when it has died."""
    with sentinels() as ((master, _replica), watchers):
        async with books_at(sentinel_url(watchers)) as books:
            assert (await books.reserve("acme", reserve("a"))).is_granted
            master.kill()
            await until(lambda: books.away)
            assert await books.wait_up(30)
            assert (await books.reserve("acme", reserve("b"))).is_granted


async def test_a_client_for_what_is_rare(server: Valkey) -> None:
    """redis_client finds the same server."""
    server.call("SET", "x", "1")
    async with redis_client(RedisUrl.parse(server.url)) as client:
        assert await client.get("x") == b"1"
