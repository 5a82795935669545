"""The worker's part of a trace: a choice, and below it the time in the queue, the prompt pass and the decoding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inferway.tracing import FAULTS, FIRST_TOKEN, REQUEST_ID, Span, SpanEvent, SpanKind, TraceContext, Value


@dataclass(frozen=True, slots=True)
class ChoiceEnd:
    """What is known of a choice at its end. Times are monotonic seconds; 0 = not reached, or not known."""

    request_id: str
    model: str
    engine: str
    choice_index: int
    lease_id: int
    started: float
    # When the engine began with the prompt; most engines do not say.
    prefill: float
    first_token: float
    ended: float
    outcome: str
    prompt_tokens: int
    cached_tokens: int = 0
    completion_tokens: int = 0
    # Which are computed without more ado.
    is_embedding: bool = False


def choice_spans(context: TraceContext, end: ChoiceEnd, new_span_id: Callable[[], int]) -> list[Span]:
    """`context` is the gateway's. The choice's own span comes first."""
    span_id, trace_id = new_span_id(), context.trace_id
    attributes: dict[str, Value] = {
        REQUEST_ID: end.request_id,
        "inferway.model": end.model,
        "inferway.engine": end.engine,
        "inferway.choice_index": end.choice_index,
        "inferway.outcome": end.outcome,
        "inferway.prompt_tokens": end.prompt_tokens,
        "inferway.cached_tokens": end.cached_tokens,
        "inferway.completion_tokens": end.completion_tokens,
    }
    if end.lease_id:
        attributes["inferway.lease_id"] = str(end.lease_id)
    events = [SpanEvent(FIRST_TOKEN, end.first_token)] if end.first_token else ()
    error = end.outcome if end.outcome in FAULTS else ""
    made = [
        Span(
            "embed" if end.is_embedding else "choice",
            SpanKind.SERVER,
            trace_id,
            span_id,
            context.span_id,
            end.started,
            end.ended,
            attributes,
            events,
            error,
        )
    ]
    if end.is_embedding or not end.ended > end.started:  # or refused at once
        return made
    common: dict[str, Value] = {REQUEST_ID: end.request_id}

    def add(name: str, start: float, stop: float) -> None:
        made.append(Span(name, SpanKind.INTERNAL, trace_id, new_span_id(), span_id, start, stop, common))

    computed = end.first_token or end.ended
    # Engines have clocks of coarser ticks.
    began = min(max(end.prefill, end.started), computed) if end.prefill else 0.0
    if began:
        add("queue", end.started, began)
        add("prefill", began, computed)
    else:
        # One of the two, or both: its engine has not told when it left the queue, or it never did.
        add("queue and prefill", end.started, computed)
    if end.first_token:
        add("decode", end.first_token, end.ended)
    return made
