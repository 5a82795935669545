"""A real router between real gRPC workers and a gateway's side of Dispatch, all on free ports of this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from inferway.api.v1 import router_pb2, worker_pb2
from inferway.config import Secret
from router.app import App
from router.sources import DnsName
from tests.support.router_harness import StubWorker, connected, gateway, in_flight, router, status, submit
from tests.support.waiting import PATIENCE_S, until

_SERVICE = "inferway.api.v1.Router"


async def get(app: App, path: str, authorization: str | None = None) -> tuple[int, str]:
    headers = {"Authorization": authorization} if authorization is not None else {}
    url = f"http://{app.ops_address}{path}"
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as response:
        return response.status, await response.text()


async def test_a_request_gets_a_lease_on_the_worker() -> None:
    """A lease names the ticket, a fresh lease id, the worker, its address and the prediction."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(7)
        lease = await gw.lease(7)
        assert (lease.worker_id, lease.worker_address) == ("a", worker.address)
        assert lease.lease_id > 0
        assert lease.predicted_ttft_ms == 9
        first = [router_pb2.FirstToken(lease_id=lease.lease_id, cached_tokens=0)]
        await gw.send(first_tokens=first, releases=[router_pb2.Release(lease_id=lease.lease_id)])
        await until(lambda: in_flight(app) == 0)


async def test_the_stream_is_seen_as_open_before_anything_is_decided() -> None:
    """Initial metadata come at once, so that a gateway knows that its router is there."""
    async with router("127.0.0.1:1") as app, connected(app) as stub:
        call = stub.Dispatch()
        async with asyncio.timeout(PATIENCE_S):
            await call.initial_metadata()
        call.cancel()


async def test_waiting_requests_leave_by_priority() -> None:
    """With the worker busy, the slot that falls free goes to the highest priority, then to who came first."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1)
        lease = await gw.lease(1)
        for ticket, priority in [(2, 0), (3, 9), (4, 5), (5, 9)]:
            await gw.submit(ticket, priority=priority)
        for ticket in (3, 5, 4, 2):
            await gw.release(lease.lease_id)
            lease = await gw.lease(ticket)
        assert gw.order == [1, 3, 5, 4, 2]


async def test_a_message_is_decided_as_a_whole() -> None:
    """Submissions of one message compete by priority, and their answers come in one reply."""
    async with StubWorker(max_running=2).serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await until(lambda: status(app) == "ready")
        await gw.send(submits=[submit(1, priority=0), submit(2, priority=9), submit(3, priority=8)])
        await gw.lease(3)
        assert gw.order == [2, 3]
        assert gw.replies == 1


async def test_tenants_share_by_their_weights() -> None:
    """A tenant of weight 2 gets two requests for each one of a tenant that has said nothing of its weight."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1, tenant_id="other")
        lease = await gw.lease(1)
        waiting = [submit(ticket, tenant_id="a") for ticket in range(2, 5)]
        waiting += [submit(ticket, tenant_id="b", tenant_weight=2.0) for ticket in range(5, 11)]
        await gw.send(submits=waiting)
        for count in range(2, 11):
            await gw.send(
                releases=[
                    router_pb2.Release(
                        lease_id=lease.lease_id, outcome=router_pb2.RELEASE_OUTCOME_OK, completion_tokens=4
                    )
                ]
            )
            await until(lambda: len(gw.order) == count)  # noqa: B023
            lease = gw.leases[gw.order[-1]]
        assert gw.order == [1, 2, 5, 6, 3, 7, 8, 4, 9, 10]


async def test_bounds_of_a_band_and_ageing_are_options() -> None:
    """A full priority refuses its own newcomers; a request that has waited long enough goes before higher ones."""
    values = {"queue_band_limit_requests": 2, "queue_ageing_s": 0.001, "queue_aged_share": 1.0}
    async with StubWorker().serving() as worker, router(worker.address, **values) as app, gateway(app) as gw:
        await gw.submit(1)
        lease = await gw.lease(1)
        await gw.submit(2, priority=0)
        await gw.submit(3, priority=0)
        await gw.submit(4, priority=0)
        assert "2 requests wait at priority 0, the limit is 2" in (await gw.rejection(4)).error.message
        await gw.submit(5, priority=9)
        await until(lambda: app.dispatcher.num_waiting == 3)
        await asyncio.sleep(0.02)  # more than the nine intervals that bring a request from 0 to 9
        for ticket in (2, 3, 5):
            await gw.release(lease.lease_id)
            lease = await gw.lease(ticket)
        assert gw.order == [1, 2, 3, 5]


async def test_a_cancelled_request_is_not_dispatched() -> None:
    """Cancel takes the ticket out of the queue; the next one gets the slot."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1)
        lease = await gw.lease(1)
        await gw.submit(2)
        await gw.submit(3)
        await gw.send(cancels=[2, 99])
        await gw.release(lease.lease_id)
        await gw.lease(3)
        assert gw.order == [1, 3]


async def test_a_request_expires_at_its_queue_timeout() -> None:
    """Without room in time the request is overloaded, with a time after which to come back."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1)
        await gw.lease(1)
        await gw.submit(2, queue_timeout_ms=50)
        error = (await gw.rejection(2)).error
        assert error.reason == "overloaded"
        assert error.retry_after_ms >= 1000


async def test_a_model_without_workers_waits_before_it_is_not_ready() -> None:
    """A request for a model that nobody serves is held for its queue timeout, then told so."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1, model="absent", queue_timeout_ms=50)
        assert (await gw.rejection(1)).error.reason == "model_not_ready"


async def test_a_request_outlasts_the_gap_before_its_worker_comes() -> None:
    """Submitted before any worker is there, a request is dispatched as soon as one is."""
    worker = StubWorker()
    async with worker.serving():
        pass  # takes a port that nobody else has
    async with router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1)
        await until(lambda: app.dispatcher.num_waiting == 1)
        async with worker.serving():
            assert (await gw.lease(1)).worker_id == "a"


async def test_requests_wait_until_every_worker_is_met_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes connections and says nothing is waited for until it closes them; where nobody listens, nothing."""
    monkeypatch.setattr("router.app._READY_WITHOUT_ALL_S", 3600.0)
    kept: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _reader, writer: kept.append(writer), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    async with (
        StubWorker().serving() as worker,
        router(worker.address, "127.0.0.1:1", f"{host}:{port}") as app,
        gateway(app) as gw,
    ):
        await gw.submit(1)
        await until(lambda: status(app) == "ready")
        await gw.submit(2, model="")
        await gw.rejection(2)
        assert gw.leases == {}
        silent.close()
        for writer in kept:
            writer.close()
        assert (await gw.lease(1)).worker_id == "a"


async def test_requests_do_not_wait_for_ever_for_a_worker_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """After some seconds those that are met get them."""
    monkeypatch.setattr("router.app._READY_WITHOUT_ALL_S", 0.5)
    kept: list[asyncio.StreamWriter] = []
    silent = await asyncio.start_server(lambda _reader, writer: kept.append(writer), "127.0.0.1", 0)
    host, port = silent.sockets[0].getsockname()
    async with StubWorker().serving() as worker, router(worker.address, f"{host}:{port}") as app, gateway(app) as gw:
        await gw.submit(1)
        assert (await gw.lease(1)).worker_id == "a"
    silent.close()
    for writer in kept:
        writer.close()


async def test_a_full_queue_refuses_the_newcomer_or_sheds_the_lowest() -> None:
    """The bound is per model; who is turned away is told the limit."""
    async with router("127.0.0.1:1", queue_limit_requests=2) as app, gateway(app) as gw, gateway(app) as other:
        await gw.submit(1, priority=1)
        await gw.submit(2, priority=1)
        await gw.submit(3, priority=1)
        refused = (await gw.rejection(3)).error
        assert refused.reason == "overloaded"
        assert "the limit is 2" in refused.message
        await other.submit(1, priority=2)
        assert (await gw.rejection(2)).error.reason == "overloaded"
        assert not other.rejections


async def test_the_end_of_a_stream_drops_its_requests_and_leases() -> None:
    """When a gateway goes, its slots fall free at once and others' requests take them."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        async with gateway(app) as leaving:
            await leaving.submit(1)
            await leaving.lease(1)
            await leaving.submit(2)
            await until(lambda: app.dispatcher.num_waiting == 1)
            await gw.submit(1)
            await until(lambda: app.dispatcher.num_waiting == 2)
        await gw.lease(1)
        assert (app.dispatcher.num_waiting, in_flight(app)) == (0, 1)


async def test_malformed_submissions_are_refused_by_ticket() -> None:
    """Each names its field, limit and value; the stream and its other requests go on."""
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"priority": 10}, "priority", "from 0 to 9, got 10"),
        ({"prompt_tokens": 0}, "prompt_tokens", "at least 1, got 0"),
        ({"expected_tokens": 0}, "expected_tokens", "at least 1, got 0"),
        ({"queue_timeout_ms": 0}, "queue_timeout_ms", "from 1 to 3600000, got 0"),
        ({"num_choices": 0}, "num_choices", "from 1 to 128, got 0"),
        ({"model": ""}, "model", "1 to 256 characters, got 0"),
        ({"request_id": "x" * 300}, "request_id", "1 to 256 characters, got 300"),
        ({"tenant_id": "x" * 300}, "tenant_id", "at most 256 characters, got 300"),
        ({"block_hashes": [1] * 10}, "block_hashes", "at most prompt_tokens (9), got 10"),
        ({"excluded_workers": ["w"] * 65}, "excluded_workers", "at most 64, got 65"),
        ({"tenant_weight": -1.0}, "tenant_weight", "from 0.001 to 1000.0, got -1.0"),
        ({"tenant_weight": 1e-4}, "tenant_weight", "from 0.001 to 1000.0, got 0.0001"),
        ({"tenant_weight": float("inf")}, "tenant_weight", "from 0.001 to 1000.0, got inf"),
        ({"tenant_weight": float("nan")}, "tenant_weight", "from 0.001 to 1000.0, got nan"),
        ({"num_choices": 2}, "n", "at most 1 choices at once, got 2"),
    ]
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await until(lambda: status(app) == "ready")
        for ticket, (values, param, sentence) in enumerate(cases, start=1):
            await gw.submit(ticket, **values)
            error = (await gw.rejection(ticket)).error
            assert error.reason in ("invalid_request", "unsupported_value")
            assert error.param == param
            assert sentence in error.message
        await gw.submit(100)
        await gw.lease(100)


async def test_a_worker_that_is_killed_and_comes_back_is_used_again() -> None:
    """A broken Watch is LOST at once; requests wait meanwhile; the new incarnation starts with empty books."""
    worker = StubWorker()
    async with worker.serving():
        pass  # takes a port that nobody else has
    async with router(worker.address) as app, gateway(app) as gw:
        async with worker.serving():
            await gw.submit(1)
            await gw.lease(1)
        await until(lambda: status(app) == "lost")
        assert in_flight(app) == 1
        await gw.submit(2)
        await until(lambda: app.dispatcher.num_waiting == 1)
        worker.description.instance_id = "2"
        async with worker.serving():
            assert (await gw.lease(2)).worker_address == worker.address
            assert in_flight(app) == 1


async def test_a_connection_that_breaks_and_resumes_keeps_the_leases() -> None:
    """The same incarnation still holds its slots: nothing is dispatched beyond them."""
    worker = StubWorker()
    async with worker.serving():
        pass  # takes a port that nobody else has
    async with router(worker.address) as app, gateway(app) as gw:
        async with worker.serving():
            await gw.submit(1)
            lease = await gw.lease(1)
        await until(lambda: status(app) == "lost")
        await gw.submit(2)
        async with worker.serving():
            await until(lambda: status(app) == "ready")
            assert app.dispatcher.num_waiting == 1
            await gw.release(lease.lease_id)
            await gw.lease(2)


async def test_a_draining_worker_gets_nothing_new() -> None:
    """A report with `draining` turns requests to the other worker and shows in the snapshot."""
    async with (
        StubWorker("a", max_running=8).serving() as a,
        StubWorker("b", max_running=8).serving() as b,
        router(a.address, b.address) as app,
        gateway(app) as gw,
    ):
        await until(lambda: status(app, "a") == status(app, "b") == "ready")
        a.report(draining=True)
        await until(lambda: status(app, "a") == "draining")
        for ticket in range(1, 6):
            await gw.submit(ticket)
            assert (await gw.lease(ticket)).worker_id == "b"


async def test_two_addresses_with_one_worker_id_count_once() -> None:
    """The second address of a worker_id is not used, and the router becomes ready all the same."""
    async with (
        StubWorker("a").serving() as first,
        StubWorker("a").serving() as second,
        router(first.address, second.address) as app,
    ):
        async with asyncio.timeout(PATIENCE_S):
            while (await get(app, "/health/ready"))[0] != 200:
                await asyncio.sleep(0.02)
        assert [worker.worker_id for worker in app.dispatcher.workers()] == ["a"]


class _HeldWorker(StubWorker):
    """Says what it is at once, and how it fares when it may."""

    def __init__(self, instance_id: str) -> None:
        super().__init__(instance_id=instance_id)
        self.is_watched, self.may_report = asyncio.Event(), asyncio.Event()

    async def Watch(self, request: worker_pb2.WatchRequest, context: Any) -> AsyncIterator[worker_pb2.WorkerReport]:
        self.is_watched.set()
        await self.may_report.wait()
        async for report in super().Watch(request, context):
            yield report


async def test_of_two_workers_with_one_name_one_stands_in_for_the_other() -> None:
    """Though both are met before either has reported, one is used; when it goes, the other is."""
    workers = [_HeldWorker("1"), _HeldWorker("2")]
    async with AsyncExitStack() as stack:
        stops = [await stack.enter_async_context(_stoppable(worker)) for worker in workers]
        app = await stack.enter_async_context(router(*(worker.address for worker in workers)))
        for worker in workers:
            await worker.is_watched.wait()
        for worker in workers:
            worker.may_report.set()
        await until(lambda: status(app) == "ready")

        def used() -> str:
            worker = app.dispatcher.worker("a")
            assert worker is not None
            return worker.info.address

        await until(lambda: sum(len(worker.watchers) for worker in workers) == 1, what="one is watched")
        (index,) = (index for index, worker in enumerate(workers) if worker.address == used())
        await stops[index]()
        await until(lambda: used() == workers[1 - index].address and status(app) == "ready")


@asynccontextmanager
async def _stoppable(worker: StubWorker) -> AsyncIterator[Callable[[], Awaitable[None]]]:
    """Served, until what is given is called."""
    async with AsyncExitStack() as serving:
        await serving.enter_async_context(worker.serving())
        yield serving.aclose


async def test_workers_are_found_by_name() -> None:
    """All addresses of a DNS name are workers; one that no longer resolves is drained, then dropped."""
    answers: list[str] = []

    async def resolver(name: DnsName) -> list[str]:
        assert name == DnsName("workers.test", 50051)
        return answers

    async with (
        StubWorker("a").serving() as a,
        StubWorker("b").serving() as b,
        router("dns:workers.test:50051", resolver=resolver) as app,
        gateway(app) as gw,
    ):
        answers[:] = [a.address, b.address]
        await until(lambda: status(app, "a") == status(app, "b") == "ready")
        for ticket in (1, 2):
            await gw.submit(ticket)
        leases = {(await gw.lease(ticket)).worker_id: gw.leases[ticket] for ticket in (1, 2)}
        answers[:] = [b.address]
        await until(lambda: status(app, "a") == "draining")
        await gw.release(leases["a"].lease_id)
        await until(lambda: status(app, "a") == "unknown")
        assert status(app, "b") == "ready"


async def test_a_name_is_resolved_by_the_system() -> None:
    """`dns:localhost:port` finds the worker that listens there."""
    async with StubWorker().serving() as worker, router(f"dns:localhost:{worker.port}") as app, gateway(app) as gw:
        await gw.submit(1)
        assert (await gw.lease(1)).worker_id == "a"


async def test_a_name_that_stops_resolving_keeps_its_workers() -> None:
    """When DNS fails, the last known addresses stay."""
    failing = False
    failed = asyncio.Event()

    async def resolver(name: DnsName) -> list[str]:
        if failing:
            failed.set()
            raise OSError(1, "no answer")
        return [worker.address]

    async with StubWorker().serving() as worker, router("dns:workers.test:1", resolver=resolver) as app:
        await until(lambda: status(app) == "ready")
        failing = True
        async with asyncio.timeout(PATIENCE_S):
            await failed.wait()
        assert status(app) == "ready"


async def test_snapshots_come_at_once_and_on_every_change() -> None:
    """The first snapshot is immediate; a worker that appears or drains makes one long before the interval."""
    worker = StubWorker(max_running=4)
    async with worker.serving(), router(worker.address) as app, connected(app) as stub:
        call = stub.Snapshot(router_pb2.SnapshotRequest(interval_ms=60_000))
        seen = []
        async with asyncio.timeout(PATIENCE_S):
            async for snapshot in call:
                assert snapshot.router_id == "router-1"
                (state,) = snapshot.workers
                assert state.address == worker.address
                seen.append(state.status)
                if state.status == router_pb2.WORKER_STATUS_READY:
                    assert (state.worker_id, list(state.models), state.max_running) == ("a", ["m"], 4)
                    worker.report(draining=True, num_requests_running=2)
                if state.status == router_pb2.WORKER_STATUS_DRAINING:
                    assert state.num_requests_running == 2
                    break
        call.cancel()
        assert seen[-2:] == [router_pb2.WORKER_STATUS_READY, router_pb2.WORKER_STATUS_DRAINING]


async def test_snapshots_show_breakers() -> None:
    """Releases that blame the worker open its breaker, which makes a snapshot; a request for that worker waits."""
    stub_worker = StubWorker(max_running=8)
    async with stub_worker.serving(), router(stub_worker.address) as app, gateway(app) as caller:
        await until(lambda: status(app) == "ready")
        for ticket in range(5):
            await caller.submit(ticket, pinned_worker="a")
            lease = await caller.lease(ticket)
            failed = router_pb2.Release(lease_id=lease.lease_id, outcome=router_pb2.RELEASE_OUTCOME_FAILED, died=True)
            await caller.send(releases=[failed])
        async with connected(app) as stub:
            async for snapshot in stub.Snapshot(router_pb2.SnapshotRequest(interval_ms=100)):
                (state,) = snapshot.workers
                if state.breaker == router_pb2.BREAKER_STATE_OPEN:
                    break
        assert (state.status, state.slots) == (router_pb2.WORKER_STATUS_READY, 8)
        await caller.submit(9, pinned_worker="a")
        await caller.lease(9)
        assert app.dispatcher.worker("a").breaker.state.value == "half_open"  # type: ignore[union-attr]


async def test_a_prompt_that_two_workers_died_of_is_refused() -> None:
    """Told apart by the hash in the submission, with the reason that gateways know."""
    one, two = (StubWorker(name, instance_id=name) for name in "ab")
    async with one.serving(), two.serving(), router(one.address, two.address) as app, gateway(app) as caller:
        await until(lambda: status(app, "a") == status(app, "b") == "ready")
        for ticket, name in enumerate("ab"):
            await caller.submit(ticket, pinned_worker=name, prompt_hash=77)
            lease = await caller.lease(ticket)
            assert lease.worker_id == name
            died = router_pb2.Release(lease_id=lease.lease_id, outcome=router_pb2.RELEASE_OUTCOME_FAILED, died=True)
            await caller.send(releases=[died])
        await caller.submit(7, prompt_hash=77)
        refused = await caller.rejection(7)
        assert refused.error.reason == "worker_failed"
        assert 0 < refused.error.retry_after_ms <= 60_000
        await caller.submit(8, prompt_hash=78)
        await caller.lease(8)


async def test_snapshots_show_queues_at_each_interval() -> None:
    """What waits shows with its number, tokens and age, without any change of membership."""
    async with router("127.0.0.1:1") as app, gateway(app) as gw, connected(app) as stub:
        await gw.submit(1)
        await gw.submit(2)
        await until(lambda: app.dispatcher.num_waiting == 2)
        call = stub.Snapshot(router_pb2.SnapshotRequest(interval_ms=100))
        async with asyncio.timeout(PATIENCE_S):
            first = await call.read()
            await call.read()
        call.cancel()
        (queue,) = first.queues
        assert (queue.model, queue.requests, queue.tokens) == ("m", 2, 18)


async def test_an_interval_out_of_range_is_refused() -> None:
    """The status names the field, the limits and the value."""
    async with router("127.0.0.1:1") as app, connected(app) as stub:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.Snapshot(router_pb2.SnapshotRequest(interval_ms=5)).read()
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details() == "interval_ms: must be 0 or from 100 to 60000, got 5"


async def test_a_wrong_internal_token_is_refused() -> None:
    """Without the token no call passes, nor a look at decisions over HTTP; with it both sides of the router do."""
    async with (
        StubWorker().serving(token="inside") as worker,
        router(worker.address, internal_token=Secret("inside")) as app,
        connected(app) as stub,
    ):
        await until(lambda: status(app) == "ready")
        for metadata in ((), (("authorization", "Bearer wrong"),)):
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await stub.Snapshot(router_pb2.SnapshotRequest(), metadata=metadata).read()
            assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
        call = stub.Snapshot(router_pb2.SnapshotRequest(), metadata=(("authorization", "Bearer inside"),))
        assert (await call.read()).router_id == "router-1"
        call.cancel()
        for token, expected in ((None, 401), ("Bearer wrong", 401), ("Bearer inside", 404)):
            assert (await get(app, "/decisions/nobody", token))[0] == expected


async def test_health_and_reflection_answer() -> None:
    """grpc.health.v1 turns SERVING once the workers are known, and reflection lists the service."""
    async with (
        StubWorker().serving() as worker,
        router(worker.address) as app,
        grpc.aio.insecure_channel(app.address) as channel,
    ):
        health = health_pb2_grpc.HealthStub(channel)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                response = await health.Check(health_pb2.HealthCheckRequest(service=_SERVICE))
                if response.status == health_pb2.HealthCheckResponse.SERVING:
                    break
                await asyncio.sleep(0.02)
        reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
        call = reflection.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        response = await call.read()
        assert _SERVICE in {service.name for service in response.list_services_response.service}
        call.cancel()


async def test_readiness_names_what_is_missing() -> None:
    """Not ready until the workers have answered, ready after, not ready while draining; the body names the workers."""
    worker = StubWorker()
    async with worker.serving():
        pass  # takes a port that nobody else has
    async with router(worker.address) as app:
        assert (await get(app, "/health"))[0] == 200
        code, body = await get(app, "/health/ready")
        assert code == 503
        assert f"starting: waiting for {worker.address}" in body
        async with worker.serving():
            async with asyncio.timeout(PATIENCE_S):
                while code != 200:
                    await asyncio.sleep(0.02)
                    code, body = await get(app, "/health/ready")
            assert '"worker_id":"a","status":"ready"' in body
            await app.drain()
            code, body = await get(app, "/health/ready")
            assert (code, "shutting_down" in body) == (503, True)


async def test_draining_lets_waiting_requests_finish() -> None:
    """A drain ends when nobody waits any more, not before."""
    async with StubWorker().serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1)
        lease = await gw.lease(1)
        await gw.submit(2)
        await until(lambda: app.dispatcher.num_waiting == 1)
        drain = asyncio.create_task(app.drain())
        await asyncio.sleep(0.05)
        assert not drain.done()
        await gw.release(lease.lease_id)
        await gw.lease(2)
        async with asyncio.timeout(PATIENCE_S):
            await drain


async def test_metrics_tell_decisions_queues_and_workers() -> None:
    """Every decision is counted once by model and outcome; unknown models share one label."""
    async with StubWorker(max_running=2).serving() as worker, router(worker.address) as app, gateway(app) as gw:
        await gw.submit(1, block_hashes=[1, 2])
        lease = await gw.lease(1)
        await gw.send(first_tokens=[router_pb2.FirstToken(lease_id=lease.lease_id, cached_tokens=4)])
        await gw.submit(2, block_hashes=[1, 2])
        second = await gw.lease(2)
        await gw.send(first_tokens=[router_pb2.FirstToken(lease_id=second.lease_id, cached_tokens=8)])
        await gw.submit(3, model="made-up", queue_timeout_ms=1)
        await gw.rejection(3)
        await gw.release(lease.lease_id)
        await gw.submit(4, model="made-up-too")
        await until(lambda: app.dispatcher.num_waiting == 1)
        _, text = await get(app, "/metrics")
        for line in (
            'inferway_router_decisions_total{model="m",outcome="dispatched"} 2.0',
            'inferway_router_decisions_total{model="other",outcome="model_not_ready"} 1.0',
            'inferway_router_queue_time_seconds_count{model="m",priority="5"} 2.0',
            'inferway_router_queue_requests{model="other"} 1.0',
            'inferway_router_queue_tokens{model="other"} 9.0',
            'inferway_router_worker_status{status="ready",worker="a"} 1.0',
            'inferway_router_worker_requests_in_flight{worker="a"} 1.0',
            'inferway_router_predicted_cached_tokens_total{model="m"} 8.0',
            'inferway_router_actual_cached_tokens_total{model="m"} 12.0',
            'inferway_router_releases_total{outcome="ok",worker="a"} 1.0',
        ):
            assert line in text
        assert "made-up" not in text


async def test_lease_ids_of_two_routers_do_not_meet() -> None:
    """Each router takes its ids from a range of its own, and none is 0."""
    async with StubWorker(max_running=8).serving() as worker:
        seen = set()
        for _ in range(2):
            async with router(worker.address) as app, gateway(app) as gw:
                for ticket in (1, 2):
                    await gw.submit(ticket)
                    seen.add((await gw.lease(ticket)).lease_id)
        assert len(seen) == 4
        assert 0 not in seen
        assert len({lease_id >> 40 for lease_id in seen}) == 2
