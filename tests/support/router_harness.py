"""A real router in the test's own process, workers whose load a test sets, and a gateway's side of Dispatch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc

from inferway.api.v1 import router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from inferway.grpc_util import InternalToken, server
from router.app import App
from router.config import Config
from tests.support.waiting import until


class StubWorker(worker_pb2_grpc.WorkerServicer):
    """The router's side of the worker contract, with a load that the test sets."""

    def __init__(
        self,
        worker_id: str = "a",
        *,
        instance_id: str = "1",
        max_running: int = 1,
        models: str = "m",
        block_size: int = 4,
    ) -> None:
        self.description = worker_pb2.DescribeResponse(
            worker_id=worker_id,
            instance_id=instance_id,
            engine="stub",
            models=[worker_pb2.Model(name=name, block_size=block_size) for name in models],
            max_running=max_running,
            prefill_tokens_per_s=1000.0,
        )
        self.watchers: list[asyncio.Queue[worker_pb2.WorkerReport]] = []
        self.port = 0

    async def Describe(self, request: worker_pb2.DescribeRequest, context: Any) -> worker_pb2.DescribeResponse:
        return self.description

    async def Watch(self, request: worker_pb2.WatchRequest, context: Any) -> AsyncIterator[worker_pb2.WorkerReport]:
        reports: asyncio.Queue[worker_pb2.WorkerReport] = asyncio.Queue()
        self.watchers.append(reports)
        try:
            yield self.make_report()
            while True:
                yield await reports.get()
        finally:
            self.watchers.remove(reports)

    def make_report(self, **values: Any) -> worker_pb2.WorkerReport:
        info = self.description
        return worker_pb2.WorkerReport(worker_id=info.worker_id, instance_id=info.instance_id, **values)

    def report(self, **values: Any) -> None:
        for reports in self.watchers:
            reports.put_nowait(self.make_report(**values))

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @asynccontextmanager
    async def serving(self, token: str = "") -> AsyncIterator[StubWorker]:
        """Served on one port, the same one when it is served again."""
        target = server(InternalToken(token))
        worker_pb2_grpc.add_WorkerServicer_to_server(self, target)
        self.port = target.add_insecure_port(f"127.0.0.1:{self.port}")
        await target.start()
        try:
            yield self
        finally:
            await target.stop(None)


class Gateway:
    """One Dispatch stream; replies are read in the background."""

    def __init__(self, stub: router_pb2_grpc.RouterStub) -> None:
        self.leases: dict[int, router_pb2.Lease] = {}
        self.order: list[int] = []
        self.rejections: dict[int, router_pb2.Rejected] = {}
        self.replies = 0
        self._call = stub.Dispatch()
        self._reader = asyncio.create_task(self._read())

    async def send(self, **parts: Any) -> None:
        await self._call.write(router_pb2.DispatchRequest(**parts))

    async def submit(self, ticket: int, **values: Any) -> None:
        await self.send(submits=[submit(ticket, **values)])

    async def lease(self, ticket: int) -> router_pb2.Lease:
        await until(lambda: ticket in self.leases)
        return self.leases[ticket]

    async def rejection(self, ticket: int) -> router_pb2.Rejected:
        await until(lambda: ticket in self.rejections)
        return self.rejections[ticket]

    async def release(self, lease_id: int) -> None:
        await self.send(releases=[router_pb2.Release(lease_id=lease_id, outcome=router_pb2.RELEASE_OUTCOME_OK)])

    async def close(self) -> None:
        self._call.cancel()
        await asyncio.wait({self._reader})
        if not self._reader.cancelled():
            self._reader.exception()

    async def _read(self) -> None:
        async for reply in self._call:
            self.replies += 1
            for lease in reply.leases:
                assert lease.ticket not in self.leases
                self.leases[lease.ticket] = lease
                self.order.append(lease.ticket)
            for rejected in reply.rejections:
                self.rejections[rejected.ticket] = rejected


def submit(ticket: int, **values: Any) -> router_pb2.Submit:
    defaults: dict[str, Any] = {
        "request_id": f"r{ticket}",
        "model": "m",
        "tenant_id": "t",
        "priority": 5,
        "prompt_tokens": 9,
        "expected_tokens": 4,
        "queue_timeout_ms": 60_000,
        "num_choices": 1,
    }
    return router_pb2.Submit(ticket=ticket, **(defaults | values))


@asynccontextmanager
async def router(*workers: str, **values: Any) -> AsyncIterator[App]:
    resolver = values.pop("resolver", None)
    extra = {"resolver": resolver} if resolver is not None else {}
    config = Config(listen="127.0.0.1:0", ops_listen="127.0.0.1:0", name="router-1", workers=workers, **values)
    app = App(config, resolve_interval_s=0.05, **extra)
    try:
        await app.listen()
        yield app
    finally:
        await app.close()


@asynccontextmanager
async def connected(app: App, token: str = "") -> AsyncIterator[router_pb2_grpc.RouterStub]:
    async with grpc.aio.insecure_channel(app.address) as channel:
        yield router_pb2_grpc.RouterStub(channel)


@asynccontextmanager
async def gateway(app: App) -> AsyncIterator[Gateway]:
    async with connected(app) as stub:
        gateway = Gateway(stub)
        try:
            yield gateway
        finally:
            await gateway.close()


def status(app: App, worker_id: str = "a") -> str:
    worker = app.dispatcher.worker(worker_id)
    return worker.status.value if worker is not None else "unknown"


def in_flight(app: App, worker_id: str = "a") -> int:
    worker = app.dispatcher.worker(worker_id)
    return worker.books.requests_in_flight if worker is not None else 0
