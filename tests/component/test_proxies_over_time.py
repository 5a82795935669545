"""What proxies do over minutes, with many streams, when gateways get other addresses, and when they are stopped."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from inferway.cli.ports import free_ports
from tests.support.client import send
from tests.support.dns import NameServer
from tests.support.fronts import PROXIES, Front, Proxy, need
from tests.support.processes import Mesh, Process
from tests.support.raw_client import EventStream
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}
SCRIPTS: dict[str, Any] = {
    "long": [{"text": "a"}, {"sleep_ms": 540_000}, {"text": "b", "repeat": 50, "gap_ms": 1000}],
    "many": [{"text": "x", "repeat": 20, "gap_ms": 1000}],
    "much": [{"text": "x" * 1000, "repeat": 30_000, "gap_ms": 1}],
    "few": [{"text": "x", "repeat": 50, "gap_ms": 100}],
}


def scripted(folder: Path, *flags: str) -> list[str]:
    (folder / "scripts.json").write_text(json.dumps(SCRIPTS))
    return ["--engine", "scripted", "--scripts", str(folder / "scripts.json"), *flags]


@pytest.mark.timeout(800)
async def test_ten_minutes_mostly_silent(tmp_path: Path) -> None:
    """With the defaults of proxies and heartbeats a stream of ten minutes, nine of them silent, ends with [DONE]."""
    need(*PROXIES)
    patient = ["--request-deadline-s", "700", "--stall-s", "700"]
    with Mesh(workers=[scripted(tmp_path)], gateway_args=patient) as mesh:
        at = [mesh.gateway.address]
        with Front("envoy", tmp_path, at) as envoy, Front("nginx", tmp_path, at) as nginx:
            answers = await asyncio.gather(
                *(
                    send(front.address, CHAT, body=STREAM, request_id=f"long.{front.proxy}", timeout_s=750)
                    for front in (envoy, nginx)
                )
            )
    for answer in answers:
        assert answer.joined("content") == "a" + "b" * 50
        assert answer.events[-1] == "[DONE]"
        assert answer.body.count(b": heartbeat\n\n") >= 30


@pytest.mark.parametrize("proxy", PROXIES)
async def test_more_streams_than_defaults_allow(proxy: Proxy, tmp_path: Path) -> None:
    """Of 1,200 at once none is refused and none is cut."""
    need(proxy)
    with (
        Mesh(workers=[scripted(tmp_path, "--max-running", "1200")]) as mesh,
        Front(proxy, tmp_path, [mesh.gateway.address]) as front,
    ):
        streams = []
        for number in range(1200):
            streams.append(await EventStream.open(front.address, STREAM, headers={"X-Request-Id": f"many.{number}"}))
        await until(lambda: all(stream.head for stream in streams), 60, "all have begun")
        assert not any(stream.done.done() for stream in streams), "all at once"
        await asyncio.gather(*(stream.done for stream in streams))
        assert Counter(stream.status for stream in streams) == {200: 1200}
        assert {stream.text() for stream in streams} == {"x" * 20}


@pytest.mark.parametrize("proxy", PROXIES)
async def test_who_does_not_read_is_known_to_the_gateway(proxy: Proxy, tmp_path: Path) -> None:
    """What a client does not read waits at the gateway, which cuts it at its limit; the proxy takes little of it."""
    need(proxy)
    limits = ["--coalesce-bytes", "65536", "--client-buffer-bytes", "1000000"]
    with (
        Mesh(workers=[scripted(tmp_path)], gateway_args=limits) as mesh,
        Front(proxy, tmp_path, [mesh.gateway.address]) as front,
    ):
        stream = await EventStream.open(
            front.address, STREAM, headers={"X-Request-Id": "much.1"}, receive_buffer_bytes=16384
        )
        await stream.wait_events(2)
        stream.pause()
        await until(lambda: mesh.gateway.events("request"), 60, "it is cut")
        (line,) = mesh.gateway.events("request")
        assert line["outcome"] == "client_too_slow"
        stream.close()


@pytest.mark.parametrize("proxy", PROXIES)
async def test_a_name_gets_another_address(proxy: Proxy, tmp_path: Path) -> None:
    """Requests follow the name, without anybody telling the proxy."""
    need(proxy)
    with Mesh(workers=[scripted(tmp_path)]) as mesh:
        second = f"127.0.0.2:{mesh.gateway.port}"
        routers = ",".join(router.address for router in mesh.routers)
        with Process("gateway", "--listen", second, "--routers", routers) as other:
            async with NameServer(["127.0.0.1"]) as names:
                name = f"gateways.test:{mesh.gateway.port}"
                front = Front(proxy, tmp_path, [name], "--dns-server", names.address)
                with await asyncio.to_thread(front.__enter__):

                    async def is_served_by(gateway: Process) -> bool:
                        before = len(gateway.events("request"))
                        answer = await send(front.address, CHAT, body=ASK)
                        await asyncio.sleep(0.1)
                        return answer.status == 200 and len(gateway.events("request")) > before

                    async def follows(gateway: Process) -> None:
                        async with asyncio.timeout(30):
                            while not await is_served_by(gateway):
                                await asyncio.sleep(0.1)

                    await follows(mesh.gateway)
                    assert not other.events("request")
                    names.addresses = ["127.0.0.2"]
                    await follows(other)


@pytest.mark.parametrize("proxy", PROXIES)
async def test_stopping_a_proxy(proxy: Proxy, tmp_path: Path) -> None:
    """Told to finish it takes nothing new on a new connection, and what runs goes on to its end."""
    need(proxy)
    admin = f"127.0.0.1:{free_ports({'admin': 0})['admin']}"
    flags = ("--admin", admin) if proxy == "envoy" else ()
    with (
        Mesh(workers=[scripted(tmp_path)]) as mesh,
        Front(proxy, tmp_path, [mesh.gateway.address], *flags) as front,
    ):
        stream = await EventStream.open(front.address, STREAM, headers={"X-Request-Id": "few.1"})
        await stream.wait_events(2)
        if proxy == "nginx":
            front.process.popen.send_signal(signal.SIGQUIT)
            await until(lambda: not front.listens(), what="the port is closed")
        else:
            assert (await send(admin, "POST /healthcheck/fail")).status == 200
            told = await send(front.address, CHAT, body=ASK)
            assert told.status == 200
            assert told.headers["Connection"] == "close"
        await stream.done
        assert stream.text() == "x" * 50
        assert stream.payloads()[-1] == b"[DONE]"
        if proxy == "nginx":
            assert await asyncio.to_thread(front.process.popen.wait, 10) == 0
