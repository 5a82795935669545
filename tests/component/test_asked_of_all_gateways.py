"""What is asked of all gateways over the channel, on one server and on a cluster: lists, kills, and who is silent."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import count
from typing import Any

import pytest

from gateway.admin.running import WORD, Running
from gateway.core.tenants import Caller
from gateway.directory.changes import Changes
from gateway.in_flight import InFlight, Selection
from gateway.middleware import Exchange
from gateway.quota.redis_connection import redis_client
from inferway.errors import ApiError
from inferway.redis_url import RedisUrl
from tests.support.valkey import Cluster, Valkey, wait_for_answer
from tests.support.waiting import until

CHANNEL = "test:dir:changed"
_NUMBERS = count(1)


@pytest.fixture(scope="module", params=[Valkey, pytest.param(Cluster, marks=pytest.mark.slow)])
def server(request: pytest.FixtureRequest) -> Iterator[Valkey | Cluster]:
    with request.param() as server:
        yield server


class Gateway:
    """What of a gateway answers questions; `told` is what its requests were ended with."""

    def __init__(self, url: str) -> None:
        parsed = RedisUrl.parse(url)
        self.clients = [redis_client(parsed, timeout_s=1.0) for _ in range(2)]
        self.changes = Changes(self.clients[1], CHANNEL)
        self.in_flight = InFlight()
        self.running = Running(f"g{next(_NUMBERS)}", self.in_flight, self.clients[0], "test", CHANNEL)
        self.told: list[ApiError] = []

    def add(self, request_id: str, tenant: str = "t", age: float = 0.0) -> None:
        exchange = Exchange(
            request_id, time.monotonic() - age, "/v1/chat/completions", caller=Caller(tenant, "k"), model="m"
        )
        exchange.task, exchange.stop = asyncio.current_task(), self.told.append
        self.in_flight.add(exchange)


@asynccontextmanager
async def gateway(url: str, *, answers: bool = True) -> AsyncIterator[Gateway]:
    """One that hears the channel; with `answers` false it does not answer."""
    one = Gateway(url)
    if answers:
        one.changes.on(WORD, one.running.on_message)
    tasks = [asyncio.create_task(one.changes.run()), asyncio.create_task(one.running.run())]
    try:
        await until(lambda: one.changes.is_listening)
        yield one
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in one.clients:
            await client.aclose()


async def test_all_answer(server: Valkey | Cluster) -> None:
    """Whoever is asked, the list is the same, and a kill reaches all that it selects and nothing else."""
    async with AsyncExitStack() as stack:
        one, two, three = [await stack.enter_async_context(gateway(server.url)) for _ in range(3)]
        one.add("a", age=3)
        two.add("a", age=2)
        two.add("b", tenant="other", age=1)
        for asked in (one, two, three):
            found = await asked.running.list(Selection())
            assert (found.gateways, found.silent, found.left_out) == (3, 0, 0)
            assert [(gateway_id, flight.request_id) for gateway_id, flight in found.flights] == [
                (one.running.gateway_id, "a"),
                (two.running.gateway_id, "a"),
                (two.running.gateway_id, "b"),
            ]
        found = await three.running.kill(Selection(request_id="a"))
        assert (found.killed, found.gateways, found.silent) == (2, 3, 0)
        assert (len(one.told), len(two.told)) == (1, 1)
        assert (await one.running.kill(Selection(tenant_id="nobody"))).killed == 0


async def test_who_is_silent_is_counted(server: Valkey | Cluster) -> None:
    """And nobody waits for long; what the others say is there."""
    async with gateway(server.url) as one, gateway(server.url, answers=False) as deaf:
        one.add("a")
        deaf.add("b")
        found = await one.running.list(Selection())
        assert (found.gateways, found.silent, len(found.flights)) == (1, 1, 1)


async def test_nonsense_on_the_channel_is_passed_over(server: Valkey | Cluster) -> None:
    """It is told in the log; the next question is answered."""
    async with gateway(server.url) as one, gateway(server.url) as two:
        redis: Any = one.clients[0]
        for text in ("", "{}", "no json", '{"id": "x", "do": "everything", "selection": {}, "gateway_id": "g"}'):
            await redis.publish(CHANNEL, f"{WORD} {text}")
        assert (await two.running.list(Selection())).gateways == 2


async def test_answers_do_not_stay(server: Valkey | Cluster) -> None:
    """What was answered has an end in Redis."""
    async with gateway(server.url) as one, gateway(server.url) as two:
        await one.running.list(Selection())
        redis: Any = one.clients[0]
        keys = [key async for key in redis.scan_iter(match="test:dir:answers:*")]
        assert keys
        for key in keys:
            assert 0 < await redis.ttl(key) <= 10
        assert two.told == []


async def test_a_lost_server_is_found_again(server: Valkey | Cluster) -> None:
    """While it is away only the one that is asked answers, and says so."""
    nodes = server.nodes if isinstance(server, Cluster) else [server]
    async with gateway(server.url) as one, gateway(server.url) as two:
        one.add("a")
        with contextlib.ExitStack() as resumed:
            for node in nodes:
                node.pause()
                resumed.callback(wait_for_answer, node)
                resumed.callback(node.resume)
            found = await one.running.list(Selection())
            assert (found.gateways, found.silent, len(found.flights)) == (1, None, 1)

        async def both() -> bool:
            found = await two.running.list(Selection())
            return (found.gateways, found.silent, len(found.flights)) == (2, 0, 1)

        async with asyncio.timeout(30):
            while not await both():
                await asyncio.sleep(0.1)
