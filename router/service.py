"""The gRPC face of the router: Dispatch, Snapshot, Explain and Drain. Protobuf ends here and in worker_client.py."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import grpc

from inferway import logs
from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.errors import ApiError
from inferway.grpc_util import error_to_proto
from inferway.lifecycle import wait_for

from .core.health import BreakerState
from .core.messages import Action, Dispatch, ReleaseOutcome, Ticket, WorkerStatus
from .core.queue import WaitingQueue
from .driver import Driver
from .explanation import OUTCOMES, explain
from .metrics import RouterMetrics
from .submission import MAX_NAME_CHARS, request_from_proto
from .worker_pool import MemberView

log = logging.getLogger(__name__)

SERVICE_NAME = router_pb2.DESCRIPTOR.services_by_name["Router"].full_name
_DEFAULT_INTERVAL_MS = 1_000
_INTERVAL_MS = range(100, 60_001)
# Workers named to somebody who asked for one that is not here.
_NAMES_SHOWN = 50
# Tenants in the details of a snapshot.
_MOST_TENANTS = 50

_OUTCOMES = {said: outcome for outcome, said in OUTCOMES.items()}
_STATUS = {
    WorkerStatus.CONNECTING: router_pb2.WORKER_STATUS_CONNECTING,
    WorkerStatus.READY: router_pb2.WORKER_STATUS_READY,
    WorkerStatus.DRAINING: router_pb2.WORKER_STATUS_DRAINING,
    WorkerStatus.LOST: router_pb2.WORKER_STATUS_LOST,
}
_BREAKER = {
    BreakerState.CLOSED: router_pb2.BREAKER_STATE_CLOSED,
    BreakerState.OPEN: router_pb2.BREAKER_STATE_OPEN,
    BreakerState.HALF_OPEN: router_pb2.BREAKER_STATE_HALF_OPEN,
}


class _Outbox:
    """What waits to be written to one Dispatch stream, gathered into one message.

    Most answers come of a message that was just read: whoever has read it writes them, without waking another task.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._reply = router_pb2.DispatchReply()
        self._is_empty = True
        self._filled = asyncio.Event()
        self._writing = asyncio.Lock()
        # Whoever adds is going to `flush`.
        self.is_gathering = False

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
            self._note()
        else:
            self.refuse(ticket, action.error)

    def refuse(self, ticket: int, error: ApiError) -> None:
        self._reply.rejections.add(ticket=ticket, error=error_to_proto(error))
        self._note()

    async def flush(self) -> None:
        """Write all that has gathered; while the gateway does not read, this waits.

        A write that fails means that the reader sees the same break.
        """
        async with self._writing:
            while not self._is_empty:
                reply, self._reply, self._is_empty = self._reply, router_pb2.DispatchReply(), True
                with suppress(grpc.RpcError, asyncio.InvalidStateError):
                    await self._context.write(reply)

    async def run(self) -> None:
        """Write what others than the reader have added, until cancelled."""
        while True:
            await self._filled.wait()
            self._filled.clear()
            await self.flush()

    def _note(self) -> None:
        self._is_empty = False
        if not self.is_gathering:
            self._filled.set()


class RouterService(router_pb2_grpc.RouterServicer):
    def __init__(
        self,
        router_id: str,
        driver: Driver,
        members: Callable[[], Iterator[MemberView]],
        cordon: Callable[[str, bool], Awaitable[None]],
        metrics: RouterMetrics,
    ) -> None:
        self._router_id = router_id
        self._driver = driver
        self._members = members
        self._cordon = cordon
        self._metrics = metrics

    async def Dispatch(self, request_iterator: AsyncIterator[router_pb2.DispatchRequest], context: Any) -> None:
        # A gateway takes the stream for open when it sees these, which may be long before the first answer.
        await context.send_initial_metadata(())
        outbox = _Outbox(context)
        owner = self._driver.attach(outbox.add)
        logs.event(log, "dispatch_opened", stream=owner)
        try:
            async with asyncio.TaskGroup() as group:
                writer = group.create_task(outbox.run(), name=f"dispatch writer {owner}")
                async for message in request_iterator:
                    if message.gateway_id:
                        logs.event(log, "gateway_named", stream=owner, gateway_id=message.gateway_id)
                    outbox.is_gathering = True
                    self._take(owner, message, outbox)
                    outbox.is_gathering = False
                    # Nothing more is read from a gateway that does not read its answers.
                    await outbox.flush()
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
            outcome = _OUTCOMES.get(release.outcome, ReleaseOutcome.CANCELLED)  # an unknown one says nothing
            driver.release(release.lease_id, outcome, release.completion_tokens, died=release.died)
        for ticket in message.cancels:
            driver.cancel(Ticket(owner, ticket))
        driver.settle()

    async def Explain(self, request: router_pb2.ExplainRequest, context: Any) -> router_pb2.ExplainResponse:
        await _require_name(context, "request_id", request.request_id)
        return explain(self._router_id, request.request_id, self._driver.dispatcher, self._driver.records)

    async def Drain(self, request: router_pb2.DrainRequest, context: Any) -> router_pb2.DrainResponse:
        await _require_name(context, "worker", request.worker)
        known = {member.worker_id: member.address for member in self._members() if member.worker_id is not None}
        worker_id = next((name for name, address in known.items() if address == request.worker), request.worker)
        if worker_id not in known and not self._driver.dispatcher.is_drained(worker_id):
            names = ", ".join(sorted(known)[:_NAMES_SHOWN]) or "none"
            names += f" and {len(known) - _NAMES_SHOWN} more" if len(known) > _NAMES_SHOWN else ""
            await context.abort(grpc.StatusCode.NOT_FOUND, f"there is no worker {request.worker!r}; there are: {names}")
        if request.order != router_pb2.DRAIN_ORDER_UNSPECIFIED:
            is_out = request.order == router_pb2.DRAIN_ORDER_DRAIN
            self._driver.drain(worker_id, is_out)
            await self._cordon(worker_id, is_out)
        return self._drain_response(worker_id)

    def _drain_response(self, worker_id: str) -> router_pb2.DrainResponse:
        is_drained = self._driver.dispatcher.is_drained(worker_id)
        response = router_pb2.DrainResponse(router_id=self._router_id, worker_id=worker_id, drained=is_drained)
        worker, status = self._driver.known(worker_id)
        if worker is None:
            response.done = is_drained
            return response
        response.status = _STATUS[status]
        response.requests_in_flight = worker.books.requests_in_flight
        response.requests = worker.books.load
        # What one that is lost has reported says nothing of now.
        running = worker.books.requests_in_flight if status is WorkerStatus.LOST else worker.books.load
        response.done = is_drained and not running
        return response

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
                yield self._snapshot(detailed=request.detailed)
                await wait_for(changed, interval_ms / 1000)
        finally:
            self._driver.watchers.discard(changed)

    def _snapshot(self, *, detailed: bool) -> router_pb2.SnapshotResponse:
        dispatcher, now = self._driver.dispatcher, time.monotonic()
        snapshot = router_pb2.SnapshotResponse(
            router_id=self._router_id, routing_version=self._driver.records.routing_version
        )
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
            state.breaker = _BREAKER[worker.breaker.state]
            state.slots = worker.slots_now
            state.trust = worker.trust
        for queue in dispatcher.queues():
            oldest_ms = 0 if queue.oldest_at is None else round((now - queue.oldest_at) * 1000)
            snapshot.queues.add(
                model=queue.model, requests=queue.requests, tokens=queue.tokens, oldest_ms=max(0, oldest_ms)
            )
        for waiting, model in zip(snapshot.queues, dispatcher.models(), strict=True):
            if detailed:
                _add_details(waiting, model.queue)
            if model.workers:
                snapshot.models.add(
                    model=model.name,
                    policy=model.policy.name,
                    prompt_tokens=model.hits.prompt_tokens,
                    predicted_cached_tokens=model.hits.predicted_tokens,
                    actual_cached_tokens=model.hits.actual_tokens,
                )
        return snapshot


async def _require_name(context: Any, field: str, value: str) -> None:
    if not 1 <= len(value) <= MAX_NAME_CHARS:
        sentence = f"{field}: must have 1 to {MAX_NAME_CHARS} characters, got {len(value)}"
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, sentence)


def _add_details(state: router_pb2.QueueState, queue: WaitingQueue) -> None:
    """Who waits, by priority and by tenant."""
    for priority, requests, tokens in queue.bands():
        state.bands.add(priority=priority, requests=requests, tokens=tokens)
    tenants = queue.tenants()
    for tenant_id, requests, tokens in tenants[:_MOST_TENANTS]:
        state.tenants.add(tenant_id=tenant_id, requests=requests, expected_tokens=tokens)
    state.more_tenants = max(0, len(tenants) - _MOST_TENANTS)
