"""Handed cases on what stands before the gateway: keepalive through the real proxies."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from inferway.cli.front import main
from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import CHAT, STREAM
from tests.support.client import send
from tests.support.fronts import PROXIES, Front, Proxy, need
from tests.support.json_lines import JsonLines
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def behind(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[Proxy, Front]]:
    """Both proxies before the shared installation, with the flags of the mark `told`."""
    need(*PROXIES)
    installation: Installation = request.getfixturevalue("installation")
    flags = getattr(request, "param", ())
    at = [installation.address]
    with Front("envoy", tmp_path, at, *flags) as envoy, Front("nginx", tmp_path, at, *flags) as nginx:
        yield {"envoy": envoy, "nginx": nginx}


@pytest.mark.slow
@pytest.mark.parametrize("behind", [("--idle-timeout-s", "5", "--heartbeat-s", "2")], indirect=True)
@case("PKA-01")
async def test_silence_through_impatient_proxies(case: Any, behind: dict[Proxy, Front]) -> None:
    """Heartbeats come twice in what the proxies wait, twenty seconds before the first token and after it."""
    body = case["input"]["body"]
    answers = await asyncio.gather(
        *(send(front.address, CHAT, body=body, request_id=f"PKA-01.{proxy}") for proxy, front in behind.items())
    )
    for answer in answers:
        assert answer.joined("content") == "a"
        assert answer.body.endswith(b"data: [DONE]\n\n")
        gaps = [later - sooner for (sooner, _), (later, _) in pairwise(answer.arrivals)]
        assert max(gaps) < 2 + 1, "a heartbeat each second, and a machine that is busy"
        assert answer.body.count(b": heartbeat\n\n") >= 20


@pytest.mark.slow
@case("PKA-03")
async def test_events_pass_one_by_one(case: Any, tmp_path: Path) -> None:
    """Each arrives alone, within 100 ms of the step that made it; the first is as soon as without a proxy."""
    need(*PROXIES)
    record = tmp_path / "record.jsonl"
    worker = ["--engine", "scripted", "--scripts", str(CASES_FILE), "--record", str(record), "--record-steps"]
    with Mesh(workers=[worker]) as mesh:
        at = [mesh.gateway.address]
        with Front("envoy", tmp_path, at) as envoy, Front("nginx", tmp_path, at) as nginx:
            addresses = {"direct": at[0], "envoy": envoy.address, "nginx": nginx.address}
            wall_minus_monotonic = time.time() - time.monotonic()
            asked = {name: time.monotonic() for name in addresses}
            streams = {
                name: await EventStream.open(address, STREAM, headers={"X-Request-Id": f"PKA-03.{name}"})
                for name, address in addresses.items()
            }
            await asyncio.gather(*(stream.done for stream in streams.values()))
        lines = JsonLines(record).read()
    first = {}
    for name, stream in streams.items():
        assert stream.text() == "x" * 40
        arrived = [at + wall_minus_monotonic for at, payload in stream.events if b'"content":"x"' in payload]
        assert len(arrived) == 40
        (key,) = (line["key"] for line in lines if line["event"] == "generate" and line["request_id"].endswith(name))
        made = [line["time"] for line in lines if line["event"] == "step" and key in line["keys"]]
        late = [came - began for came, began in zip(arrived, made, strict=False)]
        # All but one in ten, which the machine may hold up.
        assert statistics.quantiles(late, n=10)[-1] < 0.1, (name, late)
        first[name] = arrived[0] - wall_minus_monotonic - asked[name]
    assert first["envoy"] < first["direct"] + 0.1
    assert first["nginx"] < first["direct"] + 0.1


@case("PKA-04")
def test_the_shipped_configurations(case: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """No limit of a route, patience above the heartbeats, nothing buffered, HTTP/1.1 to gateways."""
    assert main({}, ["envoy"]) == 0
    listener = yaml.safe_load(capsys.readouterr().out)["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = [route["route"] for route in manager["route_config"]["virtual_hosts"][0]["routes"] if "route" in route]
    assert {route["timeout"] for route in routes} == {"0s"}
    patience = {manager["stream_idle_timeout"], *(route["idle_timeout"] for route in routes)}
    assert min(float(value.removesuffix("s")) for value in patience) > 15
    assert main({}, ["nginx"]) == 0
    directives = [line.strip() for line in capsys.readouterr().out.splitlines()]
    for needed in ("proxy_buffering off;", "proxy_http_version 1.1;", 'proxy_set_header Connection "";', "gzip off;"):
        assert needed in directives
    (read_timeout,) = (line for line in directives if line.startswith("proxy_read_timeout "))
    assert int(read_timeout.split()[1].removesuffix("ms;")) > 15_000


@pytest.mark.slow
@case("PKA-04")
async def test_two_minutes_through_each(case: Any, behind: dict[Proxy, Front]) -> None:
    """A stream that is longer than the usual limits of a minute ends with [DONE]."""
    answers = await asyncio.gather(
        *(
            send(front.address, CHAT, body=STREAM, request_id=f"PKA-04.{proxy}", timeout_s=170)
            for proxy, front in behind.items()
        )
    )
    assert [answer.joined("content") for answer in answers] == ["x" * 130] * 2
    assert all(answer.events[-1] == "[DONE]" for answer in answers)
