"""docker-compose.yml on a real engine: it serves through Envoy, and what dies is told and comes back."""

from __future__ import annotations

import asyncio
import json
import time
import urllib.error
import urllib.request
from itertools import pairwise
from typing import Any

import pytest

from tests.support.containers import Mesh, figure, services
from tests.support.probes import http_json
from tests.support.raw_client import EventStream
from tests.support.waiting import until, wait_until

CHAT, EMBEDDINGS, SLOW = "smollm2-135m-instruct", "all-minilm-l6-v2", "slow"
# Starting again what died: its own start, the engine's pause before it, and the others' noticing.
COMES_BACK_S = 60.0


def ask(mesh: Mesh, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Status and body, whatever they are."""
    headers = {"Authorization": f"Bearer {mesh.key}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://{mesh.address}/v1/{path}", json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def question(model: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "Say one two three four five six seven"}],
        **fields,
    }


async def stream(mesh: Mesh, model: str, **fields: Any) -> EventStream:
    headers = {"Authorization": f"Bearer {mesh.key}"}
    body = question(model, stream=True, ignore_eos=True, **fields)
    return await EventStream.open(mesh.address, body, headers=headers)


def serves(mesh: Mesh, model: str = CHAT) -> bool:
    try:
        return ask(mesh, "chat/completions", question(model, max_tokens=1))[0] == 200
    except OSError:
        return False


def restarts(mesh: Mesh, service: str) -> int:
    count: int = mesh.inspect(service)["RestartCount"]
    return count


async def test_the_first_token_comes_before_the_second_is_made(mesh: Mesh) -> None:
    """Through Envoy, tokens that are made one a second arrive one a second."""
    events = await stream(mesh, SLOW, max_tokens=4)
    await events.done
    times = [at for at, payload in events.events if b'"content":"' in payload and b'"content":""' not in payload]
    assert len(times) == 4
    gaps = [later - earlier for earlier, later in pairwise(times)]
    # One step late and one early still are half a second apart.
    assert min(gaps) > 0.5
    assert events.payloads()[-1] == b"[DONE]"


async def test_a_completion_streams(mesh: Mesh) -> None:
    """The real model answers through Envoy, and the stream has a regular end."""
    started = time.monotonic()
    events = await stream(mesh, CHAT, max_tokens=64)
    await asyncio.wait_for(events.done, 60)
    assert events.status == 200
    assert events.header("Server") == "inferway"
    assert events.text()
    assert events.payloads()[-1] == b"[DONE]"
    first = next(at for at, payload in events.events if b'"content":"' in payload and b'"content":""' not in payload)
    figure(
        f"first token of {CHAT} through Envoy: {(first - started) * 1000:.0f} ms, all 64: "
        f"{(events.events[-1][0] - started) * 1000:.0f} ms"
    )


def test_texts_are_embedded(mesh: Mesh) -> None:
    """The worker with the embedding model answers in the same mesh."""
    status, body = ask(mesh, "embeddings", {"model": EMBEDDINGS, "input": ["one", "two"]})
    assert status == 200
    assert [len(one["embedding"]) for one in body["data"]] == [384, 384]


def test_nothing_but_the_contract_is_reachable(mesh: Mesh) -> None:
    """Without a key nobody is served, and metrics and readiness stay inside."""
    assert http_json(f"http://{mesh.address}/v1/models")[0] == 401
    for path in ("/metrics", "/health/ready"):
        assert http_json(f"http://{mesh.address}{path}")[0] == 404


@pytest.mark.parametrize("service", ["front", "gateway", "router", "worker", "embedder", "redis", "prometheus"])
def test_containers_have_no_needless_rights(mesh: Mesh, service: str) -> None:
    """The engine itself says so: not root, no capabilities, a root file system that cannot be written."""
    seen = mesh.inspect(service)
    assert seen["Config"]["User"].partition(":")[0] not in ("", "0", "root")
    assert seen["HostConfig"]["ReadonlyRootfs"]
    assert seen["HostConfig"]["CapDrop"] == ["ALL"]
    bound = [one for ports in seen["HostConfig"]["PortBindings"].values() for one in ports]
    assert {one["HostIp"] for one in bound} <= {"127.0.0.1"}


def test_prometheus_sees_all_of_them(mesh: Mesh) -> None:
    """Every service is a target that is up, also a worker that nobody named; rules are read."""

    def targets() -> list[tuple[str, str]]:
        found = http_json(f"{mesh.prometheus}/api/v1/targets")[1]["data"]["activeTargets"]
        return sorted((one["labels"]["job"], one["health"]) for one in found)

    expected = [("gateway", "up"), ("router", "up"), ("worker", "up"), ("worker", "up"), ("worker", "up")]
    wait_until(lambda: targets() == expected, 60, "all targets up")
    groups = http_json(f"{mesh.prometheus}/api/v1/rules")[1]["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len(rules) > 10
    assert {rule["health"] for rule in rules} <= {"ok", "unknown"}


def test_grafana_has_the_dashboards(mesh: Mesh) -> None:
    """The data source and the three dashboards are there, to be seen without logging in."""
    if not mesh.has_grafana:
        pytest.skip(f"no image {services()['grafana']['image']} here: it comes from a registry only")
    found = http_json(f"{mesh.grafana}/api/search?type=dash-db")[1]
    assert {one["uid"] for one in found} == {"inferway-platform", "inferway-routing", "inferway-tenant"}


async def test_a_worker_is_killed(mesh: Mesh) -> None:
    """Its stream ends with the error in-band and [DONE]; the engine starts it again, and the mesh serves."""
    before = restarts(mesh, "worker")
    events = await stream(mesh, CHAT, max_tokens=2000)
    await events.wait_events(5, 60)
    killed = time.monotonic()
    await asyncio.to_thread(mesh.kill, "worker")
    await asyncio.wait_for(events.done, 60)
    *_, error, done = events.payloads()
    assert done == b"[DONE]"
    assert json.loads(error)["error"]["code"] == "worker_failed"
    told = events.events[-2][0] - events.events[-3][0]
    await asyncio.to_thread(wait_until, lambda: serves(mesh), COMES_BACK_S, "the mesh serves")
    figure(
        f"worker killed in mid-stream: told in-band {told:.1f} s after the last token, served again after "
        f"{time.monotonic() - killed:.1f} s"
    )
    assert restarts(mesh, "worker") == before + 1


async def test_a_gateway_is_killed(mesh: Mesh) -> None:
    """Its streams are cut without an end; until it is back and has met the workers, callers are told so."""
    before = restarts(mesh, "gateway")
    events = await stream(mesh, SLOW, max_tokens=30)
    await events.wait_events(2, 60)
    killed = time.monotonic()
    await asyncio.to_thread(mesh.kill, "gateway")
    await asyncio.wait_for(events.done, 60)
    assert events.payloads()[-1] != b"[DONE]"
    seen: list[tuple[int, Any]] = []

    def is_back() -> bool:
        seen.append(ask(mesh, "chat/completions", question(CHAT, max_tokens=1)))
        return seen[-1][0] == 200

    await asyncio.to_thread(wait_until, is_back, COMES_BACK_S, "the mesh serves")
    figure(f"gateway killed in mid-stream: its stream was cut, served again after {time.monotonic() - killed:.1f} s")
    # Envoy's words while nobody listens, and where a connection broke; then a gateway's own while it starts: it has met
    # no worker, or one of another model only.
    answers = {
        (503, "overloaded"),
        (502, "internal_error"),
        (503, "model_not_ready"),
    }
    assert {(status, body["error"]["code"]) for status, body in seen[:-1]} <= answers
    assert restarts(mesh, "gateway") == before + 1


async def test_a_router_is_away(mesh: Mesh) -> None:
    """Streams go on, new requests are served without it, and it is used again when it is back."""
    events = await stream(mesh, SLOW, max_tokens=8)
    await events.wait_events(2, 60)
    await asyncio.to_thread(mesh.compose, "kill", "router")
    await until(lambda: mesh.ready()["fallback"], 60, "the gateway serves without a router")
    assert serves(mesh)
    await asyncio.to_thread(mesh.compose, "start", "router")
    await asyncio.wait_for(events.done, 60)
    assert events.payloads()[-1] == b"[DONE]"
    await until(lambda: not mesh.ready()["fallback"], COMES_BACK_S, "the gateway uses the router")
    assert serves(mesh)


async def test_stopping_waits_for_streams(mesh: Mesh) -> None:
    """A stream that runs while Envoy and the gateway are stopped gets all of its tokens."""
    events = await stream(mesh, SLOW, max_tokens=8)
    await events.wait_events(2, 60)
    started = time.monotonic()
    await asyncio.to_thread(mesh.compose, "stop", "front", "gateway", timeout_s=150)
    took = time.monotonic() - started
    await asyncio.wait_for(events.done, 60)
    assert events.payloads()[-1] == b"[DONE]"
    assert len([one for one in events.payloads() if b'"content":"' in one]) >= 8
    for service in ("front", "gateway"):
        assert mesh.inspect(service)["State"]["ExitCode"] == 0
    figure(f"Envoy and the gateway stopped with a stream of 8 s: {took:.1f} s, nothing lost")
    await asyncio.to_thread(mesh.compose, "start", "gateway", "front", timeout_s=120)
    await asyncio.to_thread(wait_until, lambda: serves(mesh), COMES_BACK_S, "the mesh serves")


def test_secrets_stay(mesh: Mesh) -> None:
    """Bringing everything up again makes no new secrets, so keys that were given out stay valid."""
    mesh.compose("run", "--rm", "-T", "secrets")
    assert mesh.compose("exec", "-T", "gateway", "cat", "/etc/inferway/secrets/api-key") == mesh.key
