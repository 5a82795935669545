"""Handed cases on limits and on what is booked, against a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import ASK, CHAT, STREAM, first_event
from tests.support.client import Answer, send
from tests.support.probes import http_json, metric
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream
from tests.support.tenants import Account, bearer, tenants_file
from tests.support.valkey import Cluster, Valkey
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

WORKER = ("--engine", "scripted", "--scripts", str(CASES_FILE), "--max-running", "200")


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


def mesh_of(url: str, tenants: Path, *args: str, gateways: int = 1, worker: Sequence[str] = WORKER) -> Mesh:
    gateway_args = ["--tenants", str(tenants), "--redis", url, *args]
    return Mesh(workers=[worker], num_gateways=gateways, gateway_args=gateway_args)


async def ask(mesh: Mesh, tenant: str, request_id: str, *, gateway: int = 0, **fields: Any) -> Answer:
    address = mesh.gateways[gateway % len(mesh.gateways)].address
    return await send(address, CHAT, body={**ASK, **fields}, request_id=request_id, headers=bearer(tenant))


async def opened(mesh: Mesh, tenant: str, request_id: str, *, gateway: int = 0) -> EventStream:
    headers = {**bearer(tenant), "X-Request-Id": request_id}
    return await EventStream.open(mesh.gateways[gateway].address, STREAM, headers=headers)


def assert_over_the_limit(answer: Answer) -> None:
    assert answer.status == 429, answer.body
    assert answer.error["type"] == "rate_limit_error"
    assert answer.error["code"] == "rate_limit_exceeded"
    assert 1 <= int(answer.headers["Retry-After"]) <= 60
    assert int(answer.headers["retry-after-ms"]) >= 1


@case("QTA-01")
async def test_replicas_share_limits(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """Whatever gateway they come to: ten requests a minute, a thousand tokens a minute, five at once."""
    tenants = tenants_file(
        tmp_path,
        requests={"quota": {"requests_per_minute": 10}},
        tokens={"quota": {"tokens_per_minute": 1000}},
        parallel={"quota": {"parallel_requests": 5}},
    )
    with mesh_of(valkey.url, tenants, gateways=3) as mesh:
        for tenant in ("requests", "tokens"):
            answers = [await ask(mesh, tenant, f"QTA-01.{number}", gateway=number) for number in range(15)]
            assert [answer.status for answer in answers] == [200] * 10 + [429] * 5
            for answer in answers[10:]:
                assert_over_the_limit(answer)
        at_once = await asyncio.gather(
            *(ask(mesh, "parallel", f"QTA-06.{number}", gateway=number, max_tokens=30) for number in range(9))
        )
        assert sorted(answer.status for answer in at_once) == [200] * 5 + [429] * 4
        assert (await ask(mesh, "parallel", "QTA-01.1")).status == 200


@case("QTA-03")
async def test_a_cluster(case: Any, tmp_path: Path) -> None:
    """Limits of a key, its tenant and the model at once, on three masters: none fails, the tightest one holds."""
    quotas = {
        "quota": {"requests_per_minute": 50, "tokens_per_day": 100_000},
        "model_quotas": {"m-*": {"tokens_per_minute": 90_000}},
        "keys": {"k": {"quota": {"requests_per_minute": 4, "parallel_requests": 3}}},
    }
    names = [f"team-{number}" for number in range(6)]
    with Cluster() as cluster:
        owners = {cluster.owner(f"{{{name}}}").port for name in names}
        assert len(owners) > 1, "tenants are to be spread"
        with mesh_of(cluster.url, tenants_file(tmp_path, **dict.fromkeys(names, quotas))) as mesh:
            for name in names:
                answers = [await ask(mesh, name, f"QTA-03.{number}") for number in range(6)]
                assert [answer.status for answer in answers] == [200] * 4 + [429] * 2


@case("QTA-04")
async def test_a_stream_that_is_left_gives_its_place_back(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """One at once: the next is served within a second of the abort, and after many aborts nothing is held."""
    with mesh_of(valkey.url, tenants_file(tmp_path, t={"quota": {"parallel_requests": 1}})) as mesh:
        account = Account(valkey, "t")
        for number in range(20):
            stream = await opened(mesh, "t", f"QTA-04.{number}")
            if number % 2:
                await first_event(stream)
            assert (await ask(mesh, "t", "QTA-04.again")).status == 429
            stream.close()
            await until(lambda: account.leases() == 0, 1, "its place is free")
        answer = await ask(mesh, "t", "QTA-01.1")
        assert answer.status == 200


@case("QTA-06")
async def test_a_gateway_that_is_killed(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """Its three places are free within their lease though the tenant goes on; what its streams produced is booked."""
    tenants = tenants_file(tmp_path, t={"quota": {"parallel_requests": 4}})
    with mesh_of(valkey.url, tenants, "--quota-lease-s", "20", gateways=2) as mesh:
        account = Account(valkey, "t")
        streams = [await opened(mesh, "t", f"QTA-06.{number}") for number in range(3)]
        for stream in streams:
            await stream.wait_events(10)
        mesh.gateway.kill()
        for number in range(3):
            assert (await ask(mesh, "t", f"QTA-01.{number}", gateway=1)).status == 200
        await until(lambda: account.leases() == 0, 22, "the places of the dead gateway are free")
        await until(lambda: len(account.entries()) == 6, 22, "what it left behind is booked")
        left = [entry for entry in account.entries() if entry["part"]]
        assert {entry["request_id"] for entry in left} == {f"QTA-06.{number}" for number in range(3)}
        for entry, stream in zip(sorted(left, key=lambda entry: entry["request_id"]), streams, strict=True):
            # The first chunk names the role; what was under way when it was killed was produced as well.
            assert len(stream.events) - 1 <= int(entry["completion_tokens"]) <= len(stream.events) + 20
        at_once = await asyncio.gather(
            *(ask(mesh, "t", f"QTA-06.{number}", gateway=1, max_tokens=20) for number in range(4))
        )
        assert [answer.status for answer in at_once] == [200] * 4


@case("QTA-08")
async def test_what_was_not_produced_is_not_charged(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """Who leaves before the first token pays the prompt; who meets a failure pays what came before it."""
    with mesh_of(valkey.url, tenants_file(tmp_path, t={"quota": {"tokens_per_minute": 10_000}})) as mesh:
        account = Account(valkey, "t")
        stream = await opened(mesh, "t", "QTA-08.1")
        await until(lambda: Installation(mesh).engine_load() == 1, 5, "the engine has it")
        stream.close()
        await until(lambda: len(account.entries()) == 1, 5, "it is booked")
        failed = await ask(mesh, "t", "QTA-08.2", stream=True)
        assert failed.events[-1] == "[DONE]"
        await until(lambda: len(account.entries()) == 2, 5, "it is booked")
        left, broke = account.entries()
        assert (left["outcome"], left["completion_tokens"]) == ("client_closed_request", "0")
        assert int(left["prompt_tokens"]) > 0
        assert broke["completion_tokens"] == "10"
        assert broke["outcome"] != "ok"
        assert account.leases() == 0


@case("QTA-09")
async def test_the_store_is_away(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """Gone or silent: every answer comes at once, by the tenant's mode; a little after its return all is as before."""
    modes = ("local", "closed", "open")
    tenants = {mode: {"quota": {"requests_per_minute": 20}, "quota_outage": mode} for mode in modes}
    with mesh_of(valkey.url, tenants_file(tmp_path, **tenants), gateways=2) as mesh:
        page = mesh.url("/health/ready")
        await until(lambda: http_json(page)[1]["gateways"] == 2, 5, "they know of each other")

        async def statuses(tenant: str, count: int) -> list[int]:
            """None of them may take long: some twenty times what a decision may take."""
            async with asyncio.timeout(2 + count * 0.1):
                return [(await ask(mesh, tenant, f"QTA-09.{number}")).status for number in range(count)]

        for mode in modes:
            assert (await ask(mesh, mode, "QTA-09.0", gateway=1)).status == 200
            assert await statuses(mode, 3) == [200] * 3
        for away, back in ((valkey.stop, valkey.start), (valkey.pause, valkey.resume)):
            away()
            assert await statuses("closed", 15) == [503] * 15
            refused = await ask(mesh, "closed", "QTA-09.c")
            assert refused.error["code"] == "quota_unavailable"
            assert int(refused.headers["Retry-After"]) >= 1
            assert await statuses("open", 30) == [200] * 30
            answers = await statuses("local", 30)
            # Two gateways live: this one's slice is half of the limit.
            assert answers.count(200) <= 10
            assert set(answers) <= {200, 429}
            # A few calls must have failed before it is known to be away.
            await until(lambda: http_json(page)[1]["quota_store"] == "away", 3, "it is told")
            assert http_json(page)[0] == 200
            await until(lambda: metric(mesh.url("/metrics"), "inferway_gateway_quota_store_up") == 0, 3, "it is told")
            back()
            await until(lambda: http_json(page)[1]["quota_store"] == "ok", 5, "the store is back")
            await until(lambda: metric(mesh.url("/metrics"), "inferway_gateway_quota_store_up") == 1, 3, "it is told")


@pytest.mark.slow
@case("QTA-11")
async def test_a_retry_after_its_time_succeeds(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """Retry-After counts seconds, is no longer than the window, and is long enough."""
    with mesh_of(valkey.url, tenants_file(tmp_path, t={"quota": {"requests_per_minute": 2}})) as mesh:
        for number in range(2):
            answer = await ask(mesh, "t", f"QTA-11.{number}")
            assert answer.status == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == str(1 - number)
        refused = await ask(mesh, "t", "QTA-11.2")
        assert_over_the_limit(refused)
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        # What is told in milliseconds is told exactly; less than that is too early.
        wait_s = int(refused.headers["retry-after-ms"]) / 1000
        assert 50 < wait_s <= int(refused.headers["Retry-After"]) <= 60
        await asyncio.sleep(wait_s - 10)
        assert (await ask(mesh, "t", "QTA-11.3")).status == 429
        await asyncio.sleep(10)
        assert (await ask(mesh, "t", "QTA-11.4")).status == 200


@case("QTA-12")
async def test_streams_without_usage_are_counted(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """A hundred tokens a minute, sixty each: the second is the last one, and no client sees a usage chunk."""
    with mesh_of(valkey.url, tenants_file(tmp_path, t={"quota": {"tokens_per_minute": 100}})) as mesh:
        answers = [await ask(mesh, "t", f"QTA-12.{number}", stream=True) for number in range(10)]
        assert [answer.status for answer in answers] == [200] * 2 + [429] * 8
        assert all(answer.usage is None for answer in answers[:2])
        assert Account(valkey, "t").total("completion_tokens") == 100


@case("QTA-13")
async def test_parallel_requests_see_what_others_hold(case: Any, valkey: Valkey, tmp_path: Path) -> None:
    """Twenty at once with room for two: the others are refused, and once these are done there is room again."""
    with mesh_of(valkey.url, tenants_file(tmp_path, t={"quota": {"tokens_per_minute": 1000}})) as mesh:
        account = Account(valkey, "t")
        answers = await asyncio.gather(*(ask(mesh, "t", f"QTA-13.{number}", max_tokens=500) for number in range(20)))
        assert sorted(answer.status for answer in answers) == [200] * 2 + [429] * 18
        await until(lambda: account.leases() == 0, 1, "they are settled")
        assert sum(int(entry["units"]) for entry in account.entries()) == 200_000
        again = await asyncio.gather(*(ask(mesh, "t", f"QTA-13.a{number}", max_tokens=500) for number in range(20)))
        assert sorted(answer.status for answer in again) == [200] * 2 + [429] * 18
        await until(lambda: account.leases() == 0, 1, "they are settled")
