"""Who decides where a request goes: the router that rendezvous hashing names for its model, or nobody.

With no router connected the gateway dispatches by bounded-load rendezvous hashing of the prefix over the workers
it has sessions with. That fallback honours no priority. A request that finds no worker waits here, up to its
queue deadline, for a router or a worker to come.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from inferway import grpc_util, logs
from inferway.errors import ApiError, Reason

from .core.rendezvous import ranked, within_bounded_load
from .metrics import Metrics
from .router_client import Grant, RouterClient, Ticket
from .worker_sessions import WorkerSessions

log = logging.getLogger(__name__)

# Leading blocks that make two prompts siblings for the fallback: a system prompt, not a conversation.
_FALLBACK_PREFIX_BLOCKS = 4
# A router is asked for an answer somewhat longer than the queue may take; then it counts as silent.
_ROUTER_GRACE_S = 1.0


class Routing:
    """Owned by one task, `run`; submit and cancel are called from request handlers on the same loop."""

    def __init__(
        self,
        routers: Sequence[str],
        static_workers: Sequence[str],
        gateway_id: str,
        token: grpc_util.InternalToken,
        sessions: WorkerSessions,
        metrics: Metrics,
    ) -> None:
        self._sessions = sessions
        self._metrics = metrics
        self._static_workers = frozenset(static_workers)
        self._routers = {
            address: RouterClient(address, gateway_id, token, self._router_changed, self._workers_changed)
            for address in routers
        }
        # Tickets that no router holds, in order of arrival.
        self._homeless: dict[Ticket, None] = {}
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        self._sessions.want(set(self._static_workers))

    @property
    def connected_routers(self) -> list[str]:
        return [address for address, router in self._routers.items() if router.connected]

    @property
    def falls_back(self) -> bool:
        """Whether requests are dispatched without a router."""
        return not self.connected_routers

    def submit(self, ticket: Ticket) -> None:
        """Find a worker for the ticket's request, now or later."""
        router = self._router_for(ticket.ask.model)
        if router is not None:
            router.submit(ticket, now=self._clock())
        elif not self._dispatch_without_router(ticket):
            ticket.router = None
            self._homeless[ticket] = None

    def cancel(self, ticket: Ticket) -> None:
        if ticket.router is not None:
            ticket.router.cancel(ticket)
        self._homeless.pop(ticket, None)

    def tick(self, now: float) -> None:
        """A few times a second: place or expire what waits here, and what a silent router holds too long."""
        for ticket in list(self._homeless):
            if now >= ticket.ask.queue_deadline:
                del self._homeless[ticket]
                ticket.on_reject(_no_worker(ticket.ask.model))
            elif self._dispatch_without_router(ticket):
                del self._homeless[ticket]

    def expire(self, ticket: Ticket, now: float) -> None:
        """Reject a ticket whose router has not answered in time."""
        if ticket.router is not None and now >= ticket.ask.queue_deadline + _ROUTER_GRACE_S:
            ticket.router.cancel(ticket)
            ticket.on_reject(ApiError(Reason.OVERLOADED, "No worker was found in time.", retry_after_s=1.0))

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for router in self._routers.values():
                group.create_task(router.run())

    def _router_for(self, model: str) -> RouterClient | None:
        live = self.connected_routers
        return self._routers[ranked(model.encode(), live)[0]] if live else None

    def _router_changed(self, router: RouterClient, orphans: list[Ticket]) -> None:
        self._metrics.routers.set(len(self.connected_routers))
        if not router.connected:
            logs.event(log, "resubmitting", waiting=len(orphans), fallback=self.falls_back)
        waiting = orphans if not router.connected else list(self._homeless)
        for ticket in waiting:
            self._homeless.pop(ticket, None)
            self.submit(ticket)

    def _workers_changed(self, _router: RouterClient) -> None:
        known = frozenset[str]().union(*(router.workers for router in self._routers.values()))
        self._sessions.want(set(known | self._static_workers))

    def _dispatch_without_router(self, ticket: Ticket) -> bool:
        ask = ticket.ask
        candidates = {
            session.address: session
            for session in self._sessions.serving(ask.model)
            if session.worker_id not in ticket.excluded and session.choices_in_flight < session.capacity
        }
        prefix = ask.block_hashes[:_FALLBACK_PREFIX_BLOCKS]
        key = prefix[-1].to_bytes(8, "big") if prefix else ask.request_id.encode()
        load = {address: session.choices_in_flight for address, session in candidates.items()}
        chosen = within_bounded_load(ranked(key, candidates), load)
        if chosen is None:
            return False
        self._metrics.fallback_dispatches.inc()
        ticket.on_grant(Grant(chosen))
        return True


def _no_worker(model: str) -> ApiError:
    return ApiError(Reason.MODEL_NOT_READY, f"No worker is ready for the model '{model}'.", retry_after_s=1.0)
