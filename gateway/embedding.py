"""One request for embeddings on its way through the mesh: a worker is asked for, it computes, its lease goes back.

A request may move: any number of times when workers refuse it honestly, once when a worker is lost. When everyone has
refused, those who were full are asked again after a pause, a few times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace

import grpc

from inferway.errors import ApiError, Reason

from .core.trace import Attempt, RequestTrace
from .generation import FULL_PAUSES_S, REFUSALS, outcome_of
from .metrics import Metrics
from .router_client import Ask, Grant, ReleaseOutcome, Ticket
from .routing import Routing
from .worker_messages import EmbedSpec
from .worker_sessions import WorkerSessions

_MAX_WORKERS_LOST = 1
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
        excluded: set[str] = set()
        full: set[str] = set()
        pauses = iter(FULL_PAUSES_S)
        refusal: ApiError | None = None
        lost = 0
        while True:
            try:
                grant = await self._granted(excluded | full)
            except ApiError as error:
                left_s = self._ask.queue_deadline - time.monotonic()
                is_full = full and error.reason is Reason.OVERLOADED
                if is_full and (pause_s := next(pauses, left_s)) < left_s:
                    full.clear()
                    await asyncio.sleep(pause_s)
                    continue
                # Where a worker had it before, what that one said is the better answer.
                raise (refusal or error) from None
            try:
                return await self._compute(grant)
            except ApiError as error:
                is_lost = error.reason is Reason.WORKER_FAILED
                if error.reason not in REFUSALS and not (is_lost and lost < _MAX_WORKERS_LOST):
                    raise
                lost += is_lost
                refusal = error
                (full if error.reason is Reason.OVERLOADED else excluded).add(grant.worker_id)
                self._metrics.retries.labels(error.reason.label).inc()

    async def _granted(self, excluded: set[str]) -> Grant:
        granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()

        def on_grant(grant: Grant) -> None:
            if not granted.done():
                granted.set_result(grant)

        def on_reject(error: ApiError) -> None:
            if not granted.done():
                granted.set_exception(error)

        ticket = Ticket(self._ask, tuple(excluded), on_grant, on_reject)
        if self.trace is not None:
            self._attempt = self.trace.attempt(now=time.monotonic())
            ticket.traceparent = self.trace.told_router(self._attempt)
        self._routing.submit(ticket)
        try:
            async with asyncio.timeout(self._ask.queue_deadline + _QUEUE_GRACE_S - time.monotonic()):
                return await granted
        except ApiError as error:
            self._attempt_over(error.reason)
            raise
        except BaseException as error:
            self._routing.cancel(ticket)
            if granted.done() and not granted.cancelled():
                self._give_back(granted.result(), ReleaseOutcome.CANCELLED)  # it came as the caller left
            if isinstance(error, TimeoutError):
                raise ApiError(Reason.OVERLOADED, "No worker was found in time.", retry_after_s=1.0) from None
            raise

    async def _compute(self, grant: Grant) -> list[Sequence[float]]:
        outcome = ReleaseOutcome.CANCELLED
        reason: Reason | None = None
        try:
            session = self._sessions.by_address(grant.worker_address)
            if session is None:
                outcome = ReleaseOutcome.REFUSED
                raise ApiError(Reason.MODEL_NOT_READY, "The worker cannot be reached.", retry_after_s=1.0)
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
            self._give_back(grant, outcome)

    def _attempt_over(self, reason: Reason | None) -> None:
        if self._attempt is not None:
            self._attempt.ended(reason.label if reason is not None else "", now=time.monotonic())

    def _give_back(self, grant: Grant, outcome: ReleaseOutcome) -> None:
        if grant.router is not None:
            grant.router.release(grant.lease_id, outcome, 0)
