"""The stream to one router: what waits there, what was granted, and the workers that it knows.

Protobuf ends in this module.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

import grpc

from inferway import grpc_util, logs
from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.errors import ApiError, Reason
from inferway.lifecycle import end_if_cancelled

from .core.moves import REFUSALS

log = logging.getLogger(__name__)

_DispatchCall = grpc.aio.StreamStreamCall[router_pb2.DispatchRequest, router_pb2.DispatchReply]

_RECONNECT_S = (0.1, 1.0)
_SNAPSHOT_INTERVAL_MS = 1000
_UINT32_MAX = 2**32 - 1


class ReleaseOutcome(Enum):
    """How a lease ended (router.proto, ReleaseOutcome)."""

    OK = router_pb2.RELEASE_OUTCOME_OK
    # Its caller left, was cut off, or was wrong.
    CANCELLED = router_pb2.RELEASE_OUTCOME_CANCELLED
    # The worker refused honestly: full, or draining.
    REFUSED = router_pb2.RELEASE_OUTCOME_REFUSED
    # The worker's transport broke, its engine stalled, or it said that it failed.
    FAILED = router_pb2.RELEASE_OUTCOME_FAILED


# What a worker says of itself; every other error that it tells is of the request.
_WORKER_FAULTS = (Reason.WORKER_FAILED, Reason.UPSTREAM_TIMEOUT)


def outcome_of(error: ApiError) -> ReleaseOutcome:
    """How a lease ends with which a worker has answered by an error."""
    if error.reason in REFUSALS:
        return ReleaseOutcome.REFUSED
    return ReleaseOutcome.FAILED if error.reason in _WORKER_FAULTS else ReleaseOutcome.CANCELLED


@dataclass(frozen=True, slots=True)
class Ask:
    """What a router needs to know of a request (router.proto, Submit). Times are monotonic seconds."""

    request_id: str
    model: str
    tenant_id: str
    priority: int
    prompt_tokens: int
    expected_tokens: int
    block_hashes: Sequence[int]
    num_choices: int
    queue_deadline: float
    # The caller's own choice of workers, by id; empty: any.
    pinned_worker: str = ""
    excluded_workers: frozenset[str] = frozenset()
    # inferway/blocks.py, prompt_hash; 0: unknown.
    prompt_hash: int = 0
    tenant_weight: float = 1.0
    # core/rendezvous.py, session_of; 0: of no session.
    session: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to send a request to a worker. `lease_id` is 0 and `router` None where no router was asked."""

    worker_id: str
    worker_address: str
    lease_id: int = 0
    predicted_ttft_s: float = 0.0
    router: RouterClient | None = None

    def give_back(self, outcome: ReleaseOutcome, completion_tokens: int = 0, *, died: bool = False) -> None:
        """See RouterClient.release."""
        if self.router is not None:
            self.router.release(self.lease_id, outcome, completion_tokens, died=died)


class Ticket:
    """One ask that waits. Exactly one of the two calls comes, unless the ticket is cancelled first."""

    __slots__ = ("ask", "excluded", "on_grant", "on_reject", "router", "traceparent")

    def __init__(
        self,
        ask: Ask,
        excluded: Sequence[str],
        on_grant: Callable[[Grant], None],
        on_reject: Callable[[ApiError], None],
    ) -> None:
        self.ask = ask
        # Worker ids that refused or failed this request already, or that its caller will not have.
        self.excluded = tuple({*excluded, *ask.excluded_workers})
        self.on_grant = on_grant
        self.on_reject = on_reject
        # Where it waits; None: at the gateway itself, because no router is connected.
        self.router: RouterClient | None = None
        # What the router's span belongs to; empty: it has none.
        self.traceparent = ""


class RouterClient:
    """The connection to one router; `run` keeps it open until cancelled."""

    def __init__(
        self,
        address: str,
        gateway_id: str,
        token: grpc_util.InternalToken,
        on_change: Callable[[RouterClient, list[Ticket]], None],
        on_workers: Callable[[RouterClient], None],
    ) -> None:
        """`on_change(self, orphans)` follows each connect and each break; orphans are the tickets that waited."""
        self.address = address
        self.connected = False
        # Addresses of the workers in the router's last snapshot.
        self.workers: frozenset[str] = frozenset()
        # Whether there has been one.
        self.has_told = False
        self._gateway_id = gateway_id
        self._token = token
        self._on_change = on_change
        self._on_workers = on_workers
        self._channel = grpc_util.channel(address)
        self._stub = router_pb2_grpc.RouterStub(self._channel)
        self._tickets: dict[int, Ticket] = {}
        self._numbers: dict[Ticket, int] = {}
        self._next_number = 1
        self._outbox = router_pb2.DispatchRequest()
        self._outbox_filled = asyncio.Event()

    def submit(self, ticket: Ticket, *, now: float) -> None:
        assert self.connected
        number = self._next_number
        self._next_number += 1
        self._tickets[number] = ticket
        self._numbers[ticket] = number
        ticket.router = self
        ask = ticket.ask
        self._outbox.submits.add(
            ticket=number,
            request_id=ask.request_id,
            model=ask.model,
            tenant_id=ask.tenant_id,
            tenant_weight=ask.tenant_weight,
            session=ask.session,
            priority=ask.priority,
            prompt_tokens=ask.prompt_tokens,
            expected_tokens=ask.expected_tokens,
            block_hashes=ask.block_hashes,
            queue_timeout_ms=max(1, round((ask.queue_deadline - now) * 1000)),
            excluded_workers=ticket.excluded,
            pinned_worker=ask.pinned_worker,
            prompt_hash=ask.prompt_hash,
            num_choices=ask.num_choices,
            traceparent=ticket.traceparent,
        )
        self._outbox_filled.set()

    def cancel(self, ticket: Ticket) -> None:
        number = self._numbers.pop(ticket, None)
        if number is not None:
            del self._tickets[number]
            self._outbox.cancels.append(number)
            self._outbox_filled.set()

    def first_token(self, lease_id: int, cached_tokens: int) -> None:
        if self.connected:
            self._outbox.first_tokens.add(lease_id=lease_id, cached_tokens=cached_tokens)
            self._outbox_filled.set()

    def release(self, lease_id: int, outcome: ReleaseOutcome, completion_tokens: int, *, died: bool = False) -> None:
        """Give a lease back. After a break there is nothing to give back: the router has dropped it.

        `died`, beside FAILED: the worker was lost, or stood still, instead of saying that it failed.
        """
        if self.connected:
            completion_tokens = min(completion_tokens, _UINT32_MAX)  # a sum of what engines have said
            self._outbox.releases.add(
                lease_id=lease_id, outcome=outcome.value, completion_tokens=completion_tokens, died=died
            )
            self._outbox_filled.set()

    async def run(self) -> None:
        try:
            while True:
                end_if_cancelled()
                try:
                    async with asyncio.TaskGroup() as group:
                        watcher = group.create_task(self._watch())
                        try:
                            await self._dispatch(group)
                        finally:
                            watcher.cancel()
                except* (grpc.RpcError, asyncio.InvalidStateError) as errors:
                    reason = repr(errors.exceptions[0])
                    logs.event(log, "router_stream_broke", address=self.address, error=reason, level=logging.DEBUG)
                finally:
                    self._disconnected()
                await asyncio.sleep(random.uniform(*_RECONNECT_S))
        finally:
            await self._channel.close(None)

    async def _watch(self) -> None:
        request = router_pb2.SnapshotRequest(interval_ms=_SNAPSHOT_INTERVAL_MS)
        async for snapshot in self._stub.Snapshot(request, metadata=self._token.metadata()):
            self.has_told = True
            workers = frozenset(worker.address for worker in snapshot.workers)
            if workers != self.workers:
                self.workers = workers
                self._on_workers(self)

    async def _dispatch(self, group: asyncio.TaskGroup) -> None:
        call = self._stub.Dispatch(metadata=self._token.metadata())
        self._outbox = router_pb2.DispatchRequest(gateway_id=self._gateway_id)
        self._outbox_filled.set()
        writer = group.create_task(self._write(call))
        try:
            await grpc_util.opened(call)
            self.connected = True
            logs.event(log, "router_stream_open", address=self.address)
            self._on_change(self, [])
            while isinstance(reply := await call.read(), router_pb2.DispatchReply):
                self._take(reply)
        finally:
            writer.cancel()
            call.cancel()

    async def _write(self, call: _DispatchCall) -> None:
        while True:
            await self._outbox_filled.wait()
            self._outbox_filled.clear()
            message, self._outbox = self._outbox, router_pb2.DispatchRequest()
            await call.write(message)

    def _take(self, reply: router_pb2.DispatchReply) -> None:
        for lease in reply.leases:
            ticket = self._tickets.pop(lease.ticket, None)
            if ticket is None:  # cancelled while the lease was on its way
                self.release(lease.lease_id, ReleaseOutcome.CANCELLED, 0)
                continue
            del self._numbers[ticket]
            ticket.on_grant(
                Grant(
                    lease.worker_id,
                    lease.worker_address,
                    lease.lease_id,
                    lease.predicted_ttft_ms / 1000,
                    self,
                )
            )
        for rejection in reply.rejections:
            ticket = self._tickets.pop(rejection.ticket, None)
            if ticket is not None:
                del self._numbers[ticket]
                ticket.on_reject(grpc_util.error_from_proto(rejection.error))

    def _disconnected(self) -> None:
        was_connected, self.connected = self.connected, False
        orphans = list(self._tickets.values())
        self._tickets.clear()
        self._numbers.clear()
        if was_connected:
            logs.event(log, "router_stream_lost", address=self.address, waiting=len(orphans), level=logging.WARNING)
            self._on_change(self, orphans)
