"""The router's part of a trace: one span for each submission, from the queue to the decision."""

from __future__ import annotations

from inferway.tracing import FAILURES, REQUEST_ID, Span, SpanEvent, SpanKind, TraceContext, Value

from .messages import Action, Dispatch, Reject, Request
from .records import margin

DECIDED = "decided"


def has_failed(action: Action | None) -> bool:
    """Whether its caller was turned away, and not for a mistake of its own."""
    return isinstance(action, Reject) and action.error.reason.label in FAILURES


def decision_span(
    context: TraceContext, span_id: int, request: Request, action: Action | None, routing_version: str, *, now: float
) -> Span:
    """`context` is the gateway's; `action` None: it was taken back while it waited."""
    attributes: dict[str, Value] = {
        REQUEST_ID: request.request_id,
        "inferway.model": request.model,
        "inferway.tenant_id": request.tenant_id,
        "inferway.priority": request.priority,
        "inferway.prompt_tokens": request.prompt_tokens,
        "inferway.queued_behind": request.queued_behind,
    }
    error = ""
    if isinstance(action, Dispatch):
        considered = action.considered
        attributes |= {
            "inferway.outcome": "dispatched",
            "inferway.worker_id": action.worker_id,
            "inferway.lease_id": str(action.lease_id),
            "inferway.policy": considered.policy,
            "inferway.candidates": considered.num_candidates,
            "inferway.predicted_cached_tokens": action.predicted_cached_tokens,
            "inferway.predicted_ttft_s": action.predicted_ttft_s,
        }
        if routing_version:
            attributes["inferway.routing_version"] = routing_version
        beaten = margin(action)
        if beaten is not None:
            attributes |= {"inferway.runner_up": beaten.runner_up.worker_id, "inferway.margin": beaten.cost}
    elif action is not None:
        attributes["inferway.outcome"] = action.error.reason.label
        error = action.error.reason.label if has_failed(action) else ""
    else:
        attributes["inferway.outcome"] = "cancelled"
    return Span(
        "queue",
        SpanKind.SERVER,
        context.trace_id,
        span_id,
        context.span_id,
        request.queued_at,
        now,
        attributes,
        [SpanEvent(DECIDED, now)] if action is not None else (),
        error,
    )
