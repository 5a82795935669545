"""`python -m inferway drain` on running meshes; a router with several models and pools."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from inferway.api.v1 import router_pb2, router_pb2_grpc
from router.app import App
from router.sources import DnsName
from tests.support.client import Answer, send
from tests.support.command import Done, inferway
from tests.support.kubernetes import KubernetesStub, endpoint, endpoint_slice
from tests.support.processes import Mesh, Process
from tests.support.raw_client import EventStream
from tests.support.router_harness import StubWorker, connected, gateway, router, status
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {**ASK, "stream": True}
SCRIPTS = {"hold": [{"text": "t"}, {"sleep_ms": 60_000}, {"text": "x"}, {"finish": "stop"}]}


def router_of(mesh: Mesh) -> Process:
    assert mesh.router is not None
    return mesh.router


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Each test leaves both workers in service."""
    scripts = tmp_path_factory.mktemp("scripts") / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    workers = [["--engine", "scripted", "--scripts", str(scripts), "--name", name] for name in "ab"]
    with Mesh(workers=workers, router_args=["--slow-start-s", "0"], gateway_args=["--choose-workers"]) as found:
        yield found


async def drain(mesh: Mesh, *arguments: str) -> Done:
    return await inferway("drain", *arguments, "--routers", router_of(mesh).address)


async def hold(mesh: Mesh, worker: str) -> EventStream:
    """A stream that has begun on a worker and does not end by itself."""
    headers = {"X-Request-Id": "hold.1", "x-inferway-worker": worker}
    stream = await EventStream.open(mesh.gateway.address, STREAM, headers=headers)
    await stream.wait_events(2)
    return stream


async def serving(mesh: Mesh, requests: int = 12) -> set[str]:
    """The workers that have served so many requests."""
    before = len(mesh.gateway.events("request"))
    for _ in range(requests):
        answer: Answer = await send(mesh.gateway.address, CHAT, body=ASK)
        assert answer.status == 200
    await until(lambda: len(mesh.gateway.events("request")) >= before + requests)
    return {line["worker_id"] for line in mesh.gateway.events("request")[before:]}


async def states(mesh: Mesh) -> dict[str, int]:
    """The status of each worker in a snapshot of the router."""
    async with grpc.aio.insecure_channel(router_of(mesh).address) as channel:
        call = router_pb2_grpc.RouterStub(channel).Snapshot(router_pb2.SnapshotRequest())
        snapshot = await call.read()
        call.cancel()
        return {worker.worker_id: worker.status for worker in snapshot.workers}


async def test_a_worker_is_taken_out_and_back(mesh: Mesh) -> None:
    """Nothing new goes there while its stream runs on; progress is told until nothing is left; it is taken back."""
    running = await hold(mesh, "a")
    first = await drain(mesh, "a")
    name = router_of(mesh).events("listening")[0]["router_id"]
    assert (first.status, first.out) == (0, f"{name}: a gets nothing new; 1 request left\n")
    assert await states(mesh) == {"a": router_pb2.WORKER_STATUS_DRAINING, "b": router_pb2.WORKER_STATUS_READY}
    assert await serving(mesh) == {"b"}
    assert not running.done.done()

    late = await drain(mesh, "a", "--wait", "0.2")
    assert late.status == 1
    waiting = asyncio.create_task(drain(mesh, mesh.workers[0].address, "--wait", "60"))
    await asyncio.sleep(1.5)  # it is looking by now
    assert not waiting.done()
    running.close()
    done = await waiting
    assert (done.status, done.out.splitlines()) == (
        0,
        [f"{name}: a gets nothing new; 1 request left", f"{name}: a gets nothing new; nothing runs there"],
    )
    back = await drain(mesh, "a", "--undo")
    assert (back.status, back.out) == (0, f"{name}: a gets requests\n")
    assert await serving(mesh) == {"a", "b"}


async def test_a_worker_that_is_started_anew_stays_out(mesh: Mesh) -> None:
    """Whoever comes back under its name gets nothing before it is taken back."""
    assert (await drain(mesh, "a")).status == 0
    mesh.workers[0].kill()
    away = await drain(mesh, "a", "--json")
    await asyncio.to_thread(mesh.start_worker_again, 0)
    await until(lambda: sum(line["worker_id"] == "a" for line in router_of(mesh).events("worker_ready")) == 2)
    assert (await states(mesh))["a"] == router_pb2.WORKER_STATUS_DRAINING
    assert await serving(mesh) == {"b"}
    assert away.json["routers"][0]["drained"] is True
    assert (await drain(mesh, "a", "--undo")).status == 0
    await asyncio.to_thread(mesh.wait_ready)
    assert await serving(mesh, 20) == {"a", "b"}


async def test_what_is_said_in_json() -> None:
    """One document, with every router that answered."""
    async with StubWorker("b").serving() as worker, router(worker.address) as app:
        await until(lambda: status(app, "b") == "ready")
        done = await inferway("drain", "b", "--json", "--wait", "10", "--routers", app.address)
        state = {"worker_id": "b", "drained": True, "status": "draining", "requests_in_flight": 0, "requests": 0}
        one = {"address": app.address, "router_id": "router-1", **state, "done": True}
        assert done.status == 0
        assert done.json == {"worker": "b", "done": True, "routers": [one]}


async def test_what_is_wrong_is_said_in_a_sentence() -> None:
    """An unknown worker with those that there are, a router that is away, a command line that makes no sense."""
    async with (
        StubWorker("a").serving() as a,
        StubWorker("b").serving() as b,
        router(a.address, b.address) as app,
    ):
        await until(lambda: status(app, "a") == status(app, "b") == "ready")
        unknown = await inferway("drain", "c", "--routers", app.address)
        sentence = f"drain: {app.address}: there is no worker 'c'; there are: a, b\n"
        assert (unknown.status, unknown.out, unknown.err) == (1, "", sentence)
        away = await inferway("drain", "b", "--routers", f"{app.address},127.0.0.1:1")
        assert away.status == 1
        assert away.out == "router-1: b gets nothing new; nothing runs there\n"
        assert "drain: 127.0.0.1:1: " in away.err
        for arguments, sentence in (
            (["--undo"], "the name or the address of a worker is needed"),
            (["a", "--undo", "--wait", "1"], "--undo and --wait cannot be given together"),
            (["a", "--wait", "-1"], "--wait: must be at least 0"),
        ):
            wrong = await inferway("drain", *arguments, "--routers", app.address)
            assert wrong.status == 2
            assert sentence in wrong.err
        assert (status(app, "a"), status(app, "b")) == ("ready", "draining")


async def test_the_internal_token_is_needed(tmp_path: Path) -> None:
    """Without the mesh's token nobody takes a worker out."""
    token = tmp_path / "token"
    token.write_text("secret\n")
    flags = ("--internal-token-file", str(token))
    async with (
        StubWorker("a").serving("secret") as worker,
        router(worker.address, internal_token_file=str(token)) as app,
    ):
        await until(lambda: status(app) == "ready")
        refused = await inferway("drain", "a", "--routers", app.address)
        assert refused.status == 1
        assert "the internal token is missing or wrong" in refused.err
        assert status(app) == "ready"
        assert (await inferway("drain", "a", "--routers", app.address, *flags)).status == 0
        assert status(app) == "draining"


async def test_a_drain_outlives_reports_and_names() -> None:
    """Neither a report, nor the end of its stream, nor an address that goes and comes back undoes it."""
    answers: list[str] = []

    async def resolver(name: DnsName) -> list[str]:
        return answers

    worker = StubWorker("a")
    async with router("dns:workers.test:1", resolver=resolver) as app, connected(app) as stub:

        async def order(order: router_pb2.DrainOrder, name: str = "a") -> router_pb2.DrainResponse:
            response: router_pb2.DrainResponse = await stub.Drain(router_pb2.DrainRequest(worker=name, order=order))
            return response

        async with worker.serving():
            answers[:] = [worker.address]
            await until(lambda: status(app) == "ready")
            assert (await order(router_pb2.DRAIN_ORDER_UNSPECIFIED)).drained is False
            assert (await order(router_pb2.DRAIN_ORDER_DRAIN)).done is True
            worker.report(num_requests_running=3)
            await until(lambda: app.dispatcher.worker("a").report.num_requests_running == 3)  # type: ignore[union-attr]
            told = await order(router_pb2.DRAIN_ORDER_UNSPECIFIED)
            assert (told.drained, told.done, told.requests_in_flight, told.requests) == (True, False, 0, 3)
        await until(lambda: status(app) == "lost")
        assert (await order(router_pb2.DRAIN_ORDER_UNSPECIFIED)).done is True
        async with worker.serving():
            await until(lambda: status(app) == "draining")
            answers.clear()
            await until(lambda: status(app) == "unknown")
            gone = await order(router_pb2.DRAIN_ORDER_UNSPECIFIED)
            assert (gone.drained, gone.done, gone.status) == (True, True, router_pb2.WORKER_STATUS_UNSPECIFIED)
            answers[:] = [worker.address]
            await until(lambda: status(app) == "draining")
            await order(router_pb2.DRAIN_ORDER_UNDO)
            assert status(app) == "ready"
        for name in ("", "x" * 257):
            with pytest.raises(grpc.aio.AioRpcError) as failure:
                await order(router_pb2.DRAIN_ORDER_DRAIN, name)
            assert failure.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_drain_outlives_routers_and_workers() -> None:
    """A worker tells a router that is started anew, a router its worker; each router keeps the order that it got."""
    scripted = ("--engine", "scripted", "--name", "a", "--listen")
    with Process("worker", *scripted, "127.0.0.1:0") as worker:

        async def told(app: App, *more: str) -> None:
            assert (await inferway("drain", "a", *more, "--routers", app.address)).status == 0

        async with router(worker.address) as first:
            await until(lambda: status(first) == "ready")
            await told(first)
            async with router(worker.address) as second:
                await until(lambda: status(second) == "draining")
                assert second.dispatcher.is_drained("a")
                await told(second, "--undo")
                assert (status(first), status(second)) == ("draining", "ready")
        async with router(worker.address) as third:
            await until(lambda: status(third) == "ready")
            await told(third)
            worker.kill()
            await until(lambda: status(third) == "lost")
            with Process("worker", *scripted, worker.address) as again:
                await until(lambda: status(third) == "draining")
                async with router(again.address) as fourth:
                    await until(lambda: status(fourth) == "draining")
                again.kill()
                await until(lambda: status(third) == "lost")
                await told(third, "--undo")
            with Process("worker", *scripted, worker.address):
                await until(lambda: status(third) == "ready")


@pytest.mark.slow
async def test_an_order_that_a_worker_could_not_be_told() -> None:
    """Taken back while the worker is out of reach, it stays taken back when the same process is met again."""
    with Process("worker", "--engine", "scripted", "--name", "a", "--listen", "127.0.0.1:0") as worker:
        async with router(worker.address) as app:
            await until(lambda: status(app) == "ready")
            assert (await inferway("drain", "a", "--routers", app.address)).status == 0
            worker.popen.send_signal(signal.SIGSTOP)
            try:
                assert (await inferway("drain", "a", "--undo", "--routers", app.address)).status == 0
                await until(lambda: status(app) == "lost", 20)
            finally:
                worker.popen.send_signal(signal.SIGCONT)
            await until(lambda: status(app) == "ready", 20)
        async with router(worker.address) as other:
            await until(lambda: status(other) == "ready")


async def test_several_models_and_pools_in_one_router() -> None:
    """Addresses, names and services side by side, with models and block sizes of their own: each finds its pool."""

    async def resolver(name: DnsName) -> list[str]:
        return [named.address]

    given = StubWorker("given", models="xy", block_size=4, max_running=8)
    named = StubWorker("named", models="y", block_size=16, max_running=8)
    listed = StubWorker("listed", models="z", block_size=64, max_running=8)
    with KubernetesStub() as api:
        async with (
            given.serving(),
            named.serving(),
            listed.serving(),
            router(
                given.address, "dns:pool.test:1", "k8s:mesh/workers", resolver=resolver, kubernetes_api=api.url
            ) as app,
            gateway(app) as gw,
        ):
            api.put(endpoint_slice("s", [endpoint("127.0.0.1", "u")], port=listed.port))
            names = ("given", "named", "listed")
            await until(lambda: [status(app, name) for name in names] == ["ready"] * 3)
            served = await served_models(gw, {"x": 4, "y": 12, "z": 4})
            assert served == {"x": {"given"}, "y": {"given", "named"}, "z": {"listed"}}
            assert {queue.model for queue in app.dispatcher.queues()} == {"x", "y", "z"}
            api.delete("s")
            await until(lambda: status(app, "listed") == "unknown")
            assert await served_models(gw, {"x": 2}) == {"x": {"given"}}


async def served_models(gw: Any, requests: dict[str, int]) -> dict[str, set[str]]:
    """Which workers have got so many requests for each model, one after the other."""
    served: dict[str, set[str]] = {model: set() for model in requests}
    for model, count in requests.items():
        held = []
        for _ in range(count):
            ticket = len(gw.leases) + 1
            await gw.submit(ticket, model=model, block_hashes=[ticket])
            held.append(await gw.lease(ticket))
            served[model].add(held[-1].worker_id)
        for lease in held:
            await gw.release(lease.lease_id)
    return served
