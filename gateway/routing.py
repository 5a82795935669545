"""Who decides where a request goes: the router that rendezvous hashing names for its model, or nobody.

With no router connected the gateway dispatches by bounded-load rendezvous hashing of the prefix over the workers
it has sessions with. That fallback honours no priority. A request that finds no worker waits here, up to its
queue deadline, for a router or a worker to come.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from inferway import grpc_util, logs
from inferway.errors import ApiError, Reason, invalid
from inferway.rendezvous import ranked

from .core.rendezvous import within_bounded_load
from .core.worker_choice import EXCLUDED_HEADER, ONLY_HEADER
from .metrics import Metrics
from .router_client import Ask, Grant, RouterClient, Ticket
from .worker_sessions import WorkerSession, WorkerSessions

log = logging.getLogger(__name__)

# Leading blocks that make two prompts siblings for the fallback: a system prompt, not a conversation.
_FALLBACK_PREFIX_BLOCKS = 4
# A router is asked for an answer somewhat longer than the queue may take; then it counts as silent.
_ROUTER_GRACE_S = 1.0
# A router that comes to others is asked after this time: by then it has heard from its workers, or waits for none.
_RETURN_S = 5.0
# Of the workers that there are, in an answer to a caller who has named another.
_NAMES_SHOWN = 20


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
        # When each connected router is asked first, before others that have been there for longer.
        self._asked_from: dict[str, float] = {}
        self._first_came_at: float | None = None
        # Tickets that no router holds, in order of arrival.
        self._parked: dict[Ticket, None] = {}
        self._sessions.want(set(self._static_workers))

    @property
    def connected_routers(self) -> list[str]:
        return [address for address, router in self._routers.items() if router.connected]

    def known_workers(self) -> frozenset[str] | None:
        """Addresses of the workers that routers and the configuration name; None until a router has named its own."""
        told = [router.workers for router in self._routers.values() if router.connected and router.has_told]
        return self._static_workers.union(*told) if told or not self._routers else None

    @property
    def falls_back(self) -> bool:
        """Whether requests are dispatched without a router."""
        return not self.connected_routers

    def submit(self, ticket: Ticket) -> None:
        """Find a worker for the ticket's request, now or later; may answer before it returns."""
        unknown = self._unknown_worker(ticket.ask)
        if unknown is not None:
            ticket.on_reject(unknown)
            return
        router = self._router_for(ticket.ask.model)
        if router is not None:
            router.submit(ticket, now=time.monotonic())
        elif not self._dispatch_without_router(ticket):
            self.park(ticket)

    def park(self, ticket: Ticket) -> None:
        """Let a ticket wait here, up to its queue deadline, until something changes."""
        ticket.router = None
        self._parked[ticket] = None

    def cancel(self, ticket: Ticket) -> None:
        if ticket.router is not None:
            ticket.router.cancel(ticket)
        self._parked.pop(ticket, None)

    def place_parked(self) -> None:
        """Try again to find a worker for what waits here: a router or a worker has come, or time has passed."""
        parked, self._parked = self._parked, {}
        now = time.monotonic()
        for ticket in parked:
            if now >= ticket.ask.queue_deadline:
                ticket.on_reject(_no_worker(ticket.ask.model))
            else:
                self.submit(ticket)

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
        if not live:
            return None
        now = time.monotonic()
        settled = [address for address in live if self._asked_from[address] <= now]
        return self._routers[ranked(model.encode(), settled or live)[0]]

    def _router_changed(self, router: RouterClient, orphans: list[Ticket]) -> None:
        self._metrics.routers.set(len(self.connected_routers))
        if router.connected:
            now = time.monotonic()
            if self._first_came_at is None:
                self._first_came_at = now
            # Those that are met as this gateway starts have been there before it.
            has_returned = now - self._first_came_at >= _RETURN_S
            self._asked_from[router.address] = now + _RETURN_S if has_returned else now
        else:
            logs.event(log, "tickets_resubmitted", waiting=len(orphans), fallback=self.falls_back)
        for ticket in orphans:
            self.submit(ticket)
        self.place_parked()

    def _workers_changed(self, _router: RouterClient) -> None:
        known = frozenset[str]().union(*(router.workers for router in self._routers.values()))
        self._sessions.want(set(known | self._static_workers))

    def _unknown_worker(self, ask: Ask) -> ApiError | None:
        """The error of a request whose caller names workers that there are not."""
        if ask.pinned_worker and ask.pinned_worker not in (serving := self._sessions.worker_ids(ask.model)):
            names = ", ".join(sorted(serving)[:_NAMES_SHOWN]) or "none"
            message = f"No worker '{ask.pinned_worker}' serves the model '{ask.model}'; those that do: {names}."
            return invalid(ONLY_HEADER, message)
        if ask.excluded_workers and (unknown := ask.excluded_workers - self._sessions.worker_ids()):
            return invalid(EXCLUDED_HEADER, f"There is no worker '{min(unknown)}' to be excluded.")
        return None

    def _dispatch_without_router(self, ticket: Ticket) -> bool:
        ask = ticket.ask
        serving = self._sessions.serving(ask.model)
        if ask.pinned_worker:
            serving = [session for session in serving if session.worker_id == ask.pinned_worker]
        if serving and all(session.worker_id in ticket.excluded for session in serving):
            message = "Every worker that may have this request has refused or failed it, or is excluded by its caller."
            ticket.on_reject(ApiError(Reason.OVERLOADED, message, retry_after_s=1.0))
            return True
        candidates = {
            session.address: session.worker_id
            for session in serving
            if session.worker_id not in ticket.excluded and _has_room(session, ask.num_choices)
        }
        prefix = ask.block_hashes[:_FALLBACK_PREFIX_BLOCKS]
        key = prefix[-1].to_bytes(8, "big") if prefix else ask.request_id.encode()
        load = {session.address: session.choices_in_flight for session in serving}
        chosen = within_bounded_load(ranked(key, candidates), load)
        if chosen is None:
            return False
        self._metrics.fallback_dispatches.inc()
        ticket.on_grant(Grant(candidates[chosen], chosen))
        return True


def _has_room(session: WorkerSession, num_choices: int) -> bool:
    """For all choices; for more than the worker ever takes when it is idle, so that it says so itself."""
    return session.choices_in_flight + min(num_choices, session.capacity) <= session.capacity


def _no_worker(model: str) -> ApiError:
    return ApiError(Reason.MODEL_NOT_READY, f"No worker is ready for the model '{model}'.", retry_after_s=1.0)
