"""The gRPC face of the router: Dispatch and Snapshot. Protobuf ends here and in worker_client.py."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc

from inferway import logs
from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.errors import ApiError
from inferway.grpc_util import error_to_proto
from inferway.lifecycle import wait_for

from .core.messages import Action, Dispatch, ReleaseOutcome, Ticket, WorkerStatus
from .driver import Driver
from .metrics import RouterMetrics
from .submission import request_from_proto
from .worker_pool import MemberView

log = logging.getLogger(__name__)

SERVICE_NAME = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
_DEFAULT_INTERVAL_MS = 1_000
_INTERVAL_MS = range(100, 60_001)
# Answers that wait for a gateway which does not read; beyond it, nothing more is read from that gateway.
_OUTBOX_LIMIT = 10_000

_OUTCOMES = {
    router_pb2.RELEASE_OUTCOME_OK: ReleaseOutcome.OK,
    router_pb2.RELEASE_OUTCOME_REFUSED: ReleaseOutcome.REFUSED,
    router_pb2.RELEASE_OUTCOME_FAILED: ReleaseOutcome.FAILED,
    router_pb2.RELEASE_OUTCOME_CANCELLED: ReleaseOutcome.CANCELLED,
}
_STATUS = {
    WorkerStatus.CONNECTING: router_pb2.WORKER_STATUS_CONNECTING,
    WorkerStatus.READY: router_pb2.WORKER_STATUS_READY,
    WorkerStatus.DRAINING: router_pb2.WORKER_STATUS_DRAINING,
    WorkerStatus.LOST: router_pb2.WORKER_STATUS_LOST,
}


class _Outbox:
    """What waits to be written to one Dispatch stream, gathered into one message."""

    def __init__(self) -> None:
        self._reply = router_pb2.DispatchReply()
        self._size = 0
        self._filled = asyncio.Event()
        self._has_space = asyncio.Event()
        self._has_space.set()

    def add(self, action: Action) -> None:
        ticket = action.request.ticket.number
        if isinstance(action, Dispatch):
            self._reply.leases.add(
                ticket=ticket,
                lease_id=action.lease_id,
                worker_id=action.worker_id,
                worker_address=action.worker_address,
                predicted_cached_tokens=action.predicted_cached_tokens,
                predicted_ttft_ms=round(action.predicted_ttft_s * 1000),
            )
            self._count()
        else:
            self.refuse(ticket, action.error)

    def refuse(self, ticket: int, error: ApiError) -> None:
        self._reply.rejections.add(ticket=ticket, error=error_to_proto(error))
        self._count()

    async def take(self) -> router_pb2.DispatchReply:
        """Everything that has gathered; waits for the first."""
        await self._filled.wait()
        reply, self._reply, self._size = self._reply, router_pb2.DispatchReply(), 0
        self._filled.clear()
        self._has_space.set()
        return reply

    async def has_space(self) -> None:
        await self._has_space.wait()

    def _count(self) -> None:
        self._size += 1
        self._filled.set()
        if self._size >= _OUTBOX_LIMIT:
            self._has_space.clear()


class RouterService(router_pb2_grpc.RouterServicer):
    def __init__(
        self, router_id: str, driver: Driver, members: Callable[[], Iterator[MemberView]], metrics: RouterMetrics
    ) -> None:
        self._router_id = router_id
        self._driver = driver
        self._members = members
        self._metrics = metrics

    async def Dispatch(self, request_iterator: AsyncIterator[router_pb2.DispatchRequest], context: Any) -> None:
        # A gateway takes the stream for open when it sees these, which may be long before the first answer.
        await context.send_initial_metadata(())
        outbox = _Outbox()
        owner = self._driver.attach(outbox.add)
        logs.event(log, "dispatch_opened", stream=owner)
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(_write(outbox, context), name=f"dispatch writer {owner}")
                async for message in request_iterator:
                    if message.gateway_id:
                        logs.event(log, "gateway_named", stream=owner, gateway_id=message.gateway_id)
                    self._take(owner, message, outbox)
                    await outbox.has_space()
                writer.cancel()
        finally:
            self._driver.detach(owner)
            logs.event(log, "dispatch_closed", stream=owner)

    def _take(self, owner: int, message: router_pb2.DispatchRequest, outbox: _Outbox) -> None:
        """Feed one message to the machine and decide: a release and a submission in one message meet."""
        driver = self._driver
        for submit in message.submits:
            try:
                driver.submit(request_from_proto(submit, owner, now=time.monotonic()))
            except ApiError as error:
                self._metrics.refused_submission()
                outbox.refuse(submit.ticket, error)
        for first in message.first_tokens:
            driver.first_token(first.lease_id, first.cached_tokens)
        for release in message.releases:
            outcome = _OUTCOMES.get(release.outcome, ReleaseOutcome.FAILED)
            driver.release(release.lease_id, outcome, release.completion_tokens)
        for ticket in message.cancels:
            driver.cancel(Ticket(owner, ticket))
        driver.settle()

    async def Snapshot(
        self, request: router_pb2.SnapshotRequest, context: Any
    ) -> AsyncIterator[router_pb2.SnapshotResponse]:
        interval_ms = request.interval_ms or _DEFAULT_INTERVAL_MS
        if interval_ms not in _INTERVAL_MS:
            sentence = f"interval_ms: must be 0 or from 100 to 60000, got {interval_ms}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)
        changed = asyncio.Event()
        self._driver.watchers.add(changed)
        try:
            while True:
                changed.clear()
                yield self._snapshot()
                await wait_for(changed, interval_ms / 1000)
        finally:
            self._driver.watchers.discard(changed)

    def _snapshot(self) -> router_pb2.SnapshotResponse:
        dispatcher, now = self._driver.dispatcher, time.monotonic()
        snapshot = router_pb2.SnapshotResponse(router_id=self._router_id)
        for member in self._members():
            worker, status = self._driver.known(member.worker_id)
            state = snapshot.workers.add(address=member.address, status=_STATUS[status])
            if worker is None:
                continue
            state.worker_id = worker.worker_id
            state.models.extend(worker.info.models)
            state.requests_in_flight = worker.books.requests_in_flight
            state.uncached_tokens_in_flight = worker.books.uncached_tokens
            state.num_requests_running = worker.report.num_requests_running
            state.num_requests_waiting = worker.report.num_requests_waiting
            state.kv_used_tokens = worker.report.kv_used_tokens
            state.kv_total_tokens = worker.kv_total_tokens or 0
            state.indexed_blocks = dispatcher.indexed_blocks(worker)
            state.max_running = worker.info.max_running
        for queue in dispatcher.queues():
            oldest_ms = 0 if queue.oldest_at is None else round((now - queue.oldest_at) * 1000)
            snapshot.queues.add(
                model=queue.model, requests=queue.requests, tokens=queue.tokens, oldest_ms=max(0, oldest_ms)
            )
        return snapshot


async def _write(outbox: _Outbox, context: Any) -> None:
    """Ends with the stream: a write that fails means that the reader sees the same break."""
    while True:
        reply = await outbox.take()
        try:
            await context.write(reply)
        except (grpc.RpcError, asyncio.InvalidStateError):
            return
