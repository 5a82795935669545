"""Handed cases on clients that leave or do not read, and on requests that must not meet."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import psutil
import pytest

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import ASK, CHAT, STREAM, first_event, log_line
from tests.support.raw_client import EventStream
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)


@case("DSC-01")
async def test_leaving_during_the_prefill(case: Any, installation: Installation) -> None:
    """The engine is told within a second, though it has not said anything yet."""
    stream = await installation.open(case["input"]["body"], "DSC-01.1")
    await until(lambda: installation.engine_saw("DSC-01.1"), 5, "the engine has it")
    stream.close()
    await until(lambda: installation.engine_saw("DSC-01.1", "abort"), 1, "abort within a second")
    await until(lambda: installation.engine_load() == 0, 1, "slot free within a second")
    line = await log_line(installation, "DSC-01.1")
    assert line["status"] == 499
    assert line["outcome"] == "client_closed_request"


@case("DSC-04")
async def test_leaving_after_the_first_event(case: Any, installation: Installation) -> None:
    """Each is aborted at once, and nothing of them shows up in a later answer."""
    for attempt in range(5):
        stream = await installation.open(STREAM, f"DSC-04.{attempt}")
        await first_event(stream)
        stream.close()
    for attempt in range(5):
        await until(lambda: installation.engine_saw(f"DSC-04.{attempt}", "abort"), 1, "abort")  # noqa: B023
    after = await installation.send(CHAT, body=STREAM, request_id="SSE-01.after")
    assert after.joined("content") == "Hello"


@case("DSC-06")
async def test_a_hundred_leave_quietly(case: Any, installation: Installation) -> None:
    """One log line each, no traceback, no task that nobody awaited."""
    streams = [await installation.open(STREAM, f"DSC-06.{index}") for index in range(100)]
    await asyncio.gather(*(first_event(stream) for stream in streams))
    for stream in streams:
        stream.close()
    await until(lambda: installation.engine_load() == 0, 5, "all slots free")
    for index in range(100):
        line = await log_line(installation, f"DSC-06.{index}")
        assert line["outcome"] == "client_closed_request"
    assert "Traceback" not in installation.gateway_log
    assert "never retrieved" not in installation.gateway_log


@case("DSC-07")
async def test_five_hundred_give_up(case: Any, installation: Installation) -> None:
    """Callers with a limit of 200 ms leave no request at a silent engine and no descriptor at the gateway."""
    gateway = psutil.Process(installation.mesh.gateway.pid)
    before = gateway.num_fds()

    async def impatient(index: int) -> None:
        stream = await installation.open(ASK, f"DSC-07.{index}")
        await asyncio.sleep(0.2)  # the caller's own limit
        stream.close()

    await asyncio.gather(*(impatient(index) for index in range(500)))
    await until(lambda: installation.engine_load() == 0, 5, "engine empty")
    await until(lambda: gateway.num_fds() <= before + 5, 5, "no descriptors left behind")


@case("DSC-08")
async def test_all_choices_are_cancelled(case: Any, installation: Installation) -> None:
    """A client that leaves takes all its choices with it."""
    stream = await installation.open({**STREAM, "n": 4}, "DSC-08.1")
    await first_event(stream)
    assert len(installation.engine_saw("DSC-08.1")) == 4
    stream.close()
    await until(lambda: len(installation.engine_saw("DSC-08.1", "abort")) == 4, 1, "four aborts")


@case("DSC-09")
async def test_slow_readers_are_bounded(case: Any, installation: Installation) -> None:
    """Fifty clients that do not read a flood are cut, and cost a bounded piece of memory until then."""
    gateway = psutil.Process(installation.mesh.gateway.pid)
    before = peak = gateway.memory_info().rss
    streams = []
    for index in range(50):
        stream = await installation.open(STREAM, f"DSC-09.{index}")
        stream.pause()
        streams.append(stream)

    def lines() -> list[dict[str, Any]]:
        return [line for line in installation.request_lines() if line["request_id"].startswith("DSC-09.")]

    def all_ended() -> bool:
        nonlocal peak
        peak = max(peak, gateway.memory_info().rss)
        return len(lines()) == 50

    await until(all_ended, 30, "all are cut")
    for stream in streams:
        stream.close()
    assert {line["outcome"] for line in lines()} == {"client_too_slow"}
    # 4 MiB of client buffer each, and what Python keeps of it.
    assert peak - before < 50 * (8 << 20), f"{(peak - before) >> 20} MiB for 50 slow readers"


@case("ISO-01")
async def test_nonces_stay_with_their_request(case: Any, installation: Installation) -> None:
    """Of 2,000 streams of 20 tenants, 200 at a time and every seventh broken off, none gets another's text or id."""
    await echo_nonces(installation, 2_000)


@pytest.mark.slow
@pytest.mark.timeout(600)
@case("ISO-01")
async def test_ten_thousand_nonces_stay_with_their_request(case: Any, installation: Installation) -> None:
    """The same with the case's own 10,000 requests."""
    await echo_nonces(installation, 10_000)


async def echo_nonces(installation: Installation, requests: int) -> None:
    async def one(index: int) -> None:
        nonce = f"nonce-{index:06d}"
        body = {**STREAM, "messages": [{"role": "user", "content": nonce}]}
        headers = {"X-Request-Id": f"ISO-01.{index}", "Authorization": f"Bearer tenant-{index % 20}"}
        stream = await EventStream.open(installation.address, body, headers=headers)
        leaves = index % 7 == 0
        if leaves:
            await first_event(stream)
            stream.close()
        await stream.done
        text = stream.text()
        assert set(re.findall(r"nonce-\d{6}", text)) <= {nonce}
        assert stream.header("x-request-id") == f"ISO-01.{index}"
        if not leaves:
            assert text.count(nonce) == 20

    for start in range(0, requests, 200):
        await asyncio.gather(*(one(index) for index in range(start, start + 200)))


@case("ISO-03")
async def test_cache_domains_are_apart(case: Any, installation: Installation) -> None:
    """A prompt is found in the cache by its own tenant and by no other."""
    body = {"model": "m-text", "messages": [{"role": "user", "content": "shared words " * 300}]}
    cached = []
    for key in ("one", "one", "two"):
        headers = {"Authorization": f"Bearer {key}"}
        answer = await installation.send(CHAT, body=body, request_id="iso-three.1", headers=headers)
        cached.append(answer.usage["prompt_tokens_details"]["cached_tokens"])
    assert cached[0] == 0
    assert cached[1] > 0
    assert cached[2] == 0
    salts = [record["cache_salt"] for record in installation.engine_saw("iso-three.1")]
    assert salts[0] == salts[1] != salts[2]
