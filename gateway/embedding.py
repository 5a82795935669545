"""One request for embeddings on its way through the mesh: a worker is asked for, it computes, its lease goes back.

It may move to another worker: core/moves.py.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import grpc

from inferway.errors import ApiError, Reason

from .core.moves import Moves, Park, Pause
from .core.trace import Attempt, RequestTrace
from .metrics import Metrics
from .router_client import Ask, Grant, ReleaseOutcome, Ticket, outcome_of
from .routing import Routing
from .worker_messages import EmbedSpec
from .worker_sessions import WorkerSession, WorkerSessions

# A router is asked for an answer somewhat longer than the queue may take; then it counts as silent.
_QUEUE_GRACE_S = 2.0


class Embedding:
    """`run` once; cancelling it gives back what it holds."""

    def __init__(
        self, ask: Ask, spec: EmbedSpec, deadline: float, routing: Routing, sessions: WorkerSessions, metrics: Metrics
    ) -> None:
        """`deadline` is in monotonic seconds."""
        self._ask = ask
        self._spec = spec
        self._deadline = deadline
        self._routing = routing
        self._sessions = sessions
        self._metrics = metrics
        # Set before `run` where the request is traced.
        self.trace: RequestTrace | None = None
        self._attempt: Attempt | None = None
        self.worker_id = ""
        self.queued = self.dispatched = 0.0

    async def run(self) -> list[Sequence[float]]:
        """The vectors of the inputs, in order. Raises ApiError."""
        self.queued = time.monotonic()
        moves = Moves(self._ask.queue_deadline)
        while True:
            grant, session = await self._found(moves)
            try:
                return await self._compute(grant, session)
            except ApiError as error:
                if not moves.may_follow(error):
                    raise moves.final(error) from None
                moves.failed(grant.worker_id, error)
                self._metrics.retries.labels(error.reason.label).inc()

    async def _found(self, moves: Moves) -> tuple[Grant, WorkerSession]:
        """A worker that can be reached. Raises ApiError where there is none in time."""
        submit = self._routing.submit
        while True:
            try:
                grant = await self._granted(submit, moves.avoided)
            except ApiError as error:
                match moves.after_rejection(error, time.monotonic()):
                    case Pause(until):
                        await asyncio.sleep(until - time.monotonic())
                        submit = self._routing.submit
                    case Park():
                        submit = self._routing.park
                    case ApiError() as answer:
                        raise answer from None
                continue
            session = self._sessions.by_address(grant.worker_address)
            if session is not None:
                return grant, session
            self._attempt_over(Reason.MODEL_NOT_READY)
            grant.give_back(ReleaseOutcome.REFUSED)
            moves.cannot_reach(grant.worker_id)
            submit = self._routing.submit

    async def _granted(self, submit: Callable[[Ticket], None], avoided: tuple[str, ...]) -> Grant:
        """Raises ApiError where the routers have nobody."""
        granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

        def on_grant(grant: Grant) -> None:
            if not granted.done():
                granted.set_result(grant)

        def on_reject(error: ApiError) -> None:
            if not granted.done():
                granted.set_exception(error)

        ticket = Ticket(self._ask, avoided, on_grant, on_reject)
        if self.trace is not None:
            self._attempt = self.trace.attempt(now=time.monotonic())
            ticket.traceparent = self.trace.told_router(self._attempt)
        submit(ticket)
        try:
            async with asyncio.timeout(self._ask.queue_deadline + _QUEUE_GRACE_S - time.monotonic()):
                return await granted
        except ApiError as error:
            self._attempt_over(error.reason)
            raise
        except BaseException as error:
            self._routing.cancel(ticket)
            if granted.done() and not granted.cancelled() and granted.exception() is None:
                granted.result().give_back(ReleaseOutcome.CANCELLED)  # it came as the caller left
            if isinstance(error, TimeoutError):
                raise ApiError(Reason.OVERLOADED, "No worker was found in time.", retry_after_s=1.0) from None
            raise

    async def _compute(self, grant: Grant, session: WorkerSession) -> list[Sequence[float]]:
        outcome = ReleaseOutcome.CANCELLED
        reason: Reason | None = None
        try:
            self.dispatched = time.monotonic()
            self.worker_id = session.worker_id
            spec = self._spec
            if self.trace is not None and self._attempt is not None:
                self._attempt.granted(session.worker_id, session.address, now=self.dispatched)
                spec = replace(spec, traceparent=self.trace.told_worker(self._attempt))
            vectors = await session.embed(spec, grant.lease_id, timeout_s=self._deadline - time.monotonic())
            outcome = ReleaseOutcome.OK
            return vectors
        except ApiError as error:
            outcome, reason = outcome_of(error), error.reason
            raise
        except grpc.RpcError as error:
            outcome, reason = ReleaseOutcome.FAILED, Reason.WORKER_FAILED
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                raise ApiError(Reason.UPSTREAM_TIMEOUT, "The request took longer than its deadline.") from None
            raise ApiError(Reason.WORKER_FAILED, "The worker that computed the embeddings was lost.") from None
        finally:
            self._attempt_over(reason)
            grant.give_back(outcome)

    def _attempt_over(self, reason: Reason | None) -> None:
        if self._attempt is not None:
            self._attempt.ended(reason.label if reason is not None else "", now=time.monotonic())
