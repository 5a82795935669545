"""Explains decisions on the wire: records of the last ones, and requests that wait."""

from __future__ import annotations

import time

from inferway.api.v1 import router_pb2
from inferway.grpc_util import error_to_proto

from .core.dispatcher import Dispatcher
from .core.messages import AllBut, Dispatch, ReleaseOutcome, Request
from .core.records import DecisionState, Record, Records, margin, milliseconds

# Decisions of one id that are told.
_MOST_DECISIONS = 100

_STATES = {
    DecisionState.DISPATCHED: router_pb2.DECISION_STATE_DISPATCHED,
    DecisionState.ENDED: router_pb2.DECISION_STATE_ENDED,
    DecisionState.REJECTED: router_pb2.DECISION_STATE_REJECTED,
    DecisionState.CANCELLED: router_pb2.DECISION_STATE_CANCELLED,
}
OUTCOMES = {
    ReleaseOutcome.OK: router_pb2.RELEASE_OUTCOME_OK,
    ReleaseOutcome.REFUSED: router_pb2.RELEASE_OUTCOME_REFUSED,
    ReleaseOutcome.FAILED: router_pb2.RELEASE_OUTCOME_FAILED,
    ReleaseOutcome.CANCELLED: router_pb2.RELEASE_OUTCOME_CANCELLED,
}


def explain(router_id: str, request_id: str, dispatcher: Dispatcher, records: Records) -> router_pb2.ExplainResponse:
    """What became of the submissions with this id, and of those that wait; O(records + waiting)."""
    now = time.monotonic()
    epoch = time.time() - now
    waiting = dispatcher.waiting(request_id)
    decided = records.find(request_id, _MOST_DECISIONS)
    decisions = [_decided(record, epoch) for record in decided]
    decisions += [_waiting(request, dispatcher, now=now, epoch=epoch) for request in waiting]
    decisions.sort(key=lambda decision: decision.queued_at_ms)
    oldest_at = records.oldest_at()
    return router_pb2.ExplainResponse(
        router_id=router_id,
        decisions=decisions[-_MOST_DECISIONS:],
        remembered=len(records),
        oldest_ms=0 if oldest_at is None else round((now - oldest_at) * 1000),
    )


def _described(request: Request, epoch: float) -> router_pb2.Decision:
    excluded = request.excluded
    return router_pb2.Decision(
        model=request.model,
        tenant_id=request.tenant_id,
        priority=request.priority,
        prompt_tokens=request.prompt_tokens,
        expected_tokens=request.expected_tokens,
        num_choices=request.num_choices,
        excluded_workers=sorted(excluded.also if isinstance(excluded, AllBut) else excluded),
        pinned_worker=excluded.worker_id if isinstance(excluded, AllBut) else "",
        queued_at_ms=round((epoch + request.queued_at) * 1000),
        queued_behind=request.queued_behind,
    )


def _waiting(request: Request, dispatcher: Dispatcher, *, now: float, epoch: float) -> router_pb2.Decision:
    decision = _described(request, epoch)
    decision.state = router_pb2.DECISION_STATE_WAITING
    decision.queue_ms = milliseconds(now - request.queued_at)
    place = dispatcher.place(request.ticket, now=now)
    if place is not None:
        decision.position = place.position
        if place.expected_wait_s is not None:
            decision.expected_wait_ms = milliseconds(place.expected_wait_s)
    return decision


def _decided(record: Record, epoch: float) -> router_pb2.Decision:
    decision = _described(record.request, epoch)
    decision.state = _STATES[record.state]
    decision.queue_ms = milliseconds(record.decided_at - record.request.queued_at)
    if record.error is not None:
        decision.error.CopyFrom(error_to_proto(record.error))
    if record.dispatch is not None:
        decision.placement.CopyFrom(_placement(record, record.dispatch))
    return decision


def _placement(record: Record, dispatch: Dispatch) -> router_pb2.Placement:
    considered = dispatch.considered
    placement = router_pb2.Placement(
        policy=considered.policy,
        routing_version=record.routing_version,
        num_candidates=considered.num_candidates,
        removed=[router_pb2.Removed(filter=name, workers=count) for name, count in considered.removed.items()],
        scorers=considered.scorers,
        best=[
            router_pb2.Score(
                worker_id=scored.worker_id, cost=scored.cost, terms=scored.terms, cached_tokens=scored.cached_tokens
            )
            for scored in considered.best
        ],
        worker_id=dispatch.worker_id,
        lease_id=dispatch.lease_id,
        predicted_cached_tokens=dispatch.predicted_cached_tokens,
        predicted_ttft_ms=milliseconds(dispatch.predicted_ttft_s),
        outcome=OUTCOMES[record.outcome] if record.outcome is not None else router_pb2.RELEASE_OUTCOME_UNSPECIFIED,
    )
    if (difference := margin(dispatch)) is not None:
        placement.margin, placement.runner_up = difference.cost, difference.runner_up.worker_id
    if record.cached_tokens is not None:
        placement.cached_tokens = record.cached_tokens
    if record.first_token_at is not None:
        placement.ttft_ms = milliseconds(record.first_token_at - record.decided_at)
    if record.completion_tokens is not None:
        placement.completion_tokens = record.completion_tokens
    if record.ended_at is not None:
        placement.lease_ms = milliseconds(record.ended_at - record.decided_at)
    return placement
