"""The gateway's part of a trace: ids that must be told beforehand, times of attempts, and at the end the spans.

A request has one server span. Below it stand its stages: `prepare` until a worker is asked for; for each attempt
`route`, which the router's span belongs to, and `generate`, which the worker's belong to; and `answer` from the last
token to the last byte. Most attempts are the only one; a request of several prompts has one or more for each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from inferway.tracing import FAILURES, FAULTS, FIRST_TOKEN, REQUEST_ID, Span, SpanEvent, SpanKind, TraceContext, Value

from .sse import Usage

# From the path of a route to GenAI's name of what it does.
OPERATIONS: Mapping[str, str] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
_PROVIDER = "inferway"


@dataclass(slots=True, eq=False)
class Attempt:
    """One try to get a request served. Times are monotonic seconds; 0 = not reached."""

    submitted_at: float
    route_id: int
    generate_id: int
    # When a router, or the gateway itself, had named a worker or said that there is none.
    decided_at: float = 0.0
    worker_id: str = ""
    worker_address: str = ""
    first_token_at: float = 0.0
    ended_at: float = 0.0
    # Label of a reason; empty where it has not failed.
    error: str = ""

    def granted(self, worker_id: str, worker_address: str, *, now: float) -> None:
        self.decided_at, self.worker_id, self.worker_address = now, worker_id, worker_address

    def ended(self, error: str = "", *, now: float) -> None:
        """Only the first call counts."""
        if self.ended_at:
            return
        self.ended_at, self.error = now, error
        if not self.decided_at:
            self.decided_at = now


@dataclass(slots=True)
class RequestTrace:
    """Made when a request comes in; `context` is its server span."""

    context: TraceContext
    parent_id: int
    new_span_id: Callable[[], int]
    attempts: list[Attempt] = field(default_factory=list)

    def attempt(self, *, now: float) -> Attempt:
        attempt = Attempt(now, self.new_span_id(), self.new_span_id())
        self.attempts.append(attempt)
        return attempt

    def told_router(self, attempt: Attempt) -> str:
        """The traceparent that goes with a submission."""
        return self.context._replace(span_id=attempt.route_id).traceparent

    def told_worker(self, attempt: Attempt) -> str:
        """The traceparent that goes with a Generate."""
        return self.context._replace(span_id=attempt.generate_id).traceparent

    @property
    def has_fault(self) -> bool:
        """Whether some attempt has failed by a fault of ours, whatever became of the request."""
        return any(attempt.error and attempt.error in FAULTS for attempt in self.attempts)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of a request at its end. Times are monotonic seconds; 0 = not reached."""

    request_id: str
    method: str
    route: str
    # Of the answer; 200 also where an error was told within a stream.
    status: int
    is_failure: bool
    # Label of a reason, "ok" included.
    outcome: str
    received: float
    queued: float
    first_token: float
    ended: float
    model: str
    stream: bool
    max_tokens: int | None
    usage: Usage | None
    tenant_id: str
    key_id: str
    # Keyed hash of what the caller calls its user; empty without.
    user_hash: str = ""


def spans(trace: RequestTrace, end: Ended) -> list[Span]:
    """All of the request's spans at the gateway, the server span first."""
    made = [_server(trace, end)]
    trace_id, server_id = trace.context.trace_id, trace.context.span_id
    common: dict[str, Value] = {REQUEST_ID: end.request_id}

    def add(name: str, start: float, stop: float) -> None:
        made.append(Span(name, SpanKind.INTERNAL, trace_id, trace.new_span_id(), server_id, start, stop, common))

    if end.queued:
        add("prepare", end.received, end.queued)
    last = 0.0
    for attempt in trace.attempts:
        stop = attempt.ended_at or end.ended
        last = max(last, stop)
        has_run = bool(attempt.worker_id)
        decided = attempt.decided_at or stop
        routed: dict[str, Value] = {**common, "inferway.worker_id": attempt.worker_id} if has_run else common
        ending: dict[str, Value] = {}
        error = ""
        if attempt.error in FAILURES:
            error = attempt.error
        elif attempt.error:
            # Refused for what the caller got wrong.
            ending["inferway.outcome"] = attempt.error
        made.append(
            Span(
                "route",
                SpanKind.CLIENT,
                trace_id,
                attempt.route_id,
                server_id,
                attempt.submitted_at,
                decided,
                routed if has_run else {**routed, **ending},
                (),
                "" if has_run else error,
            )
        )
        if has_run:
            attributes = {**routed, **ending, "server.address": attempt.worker_address}
            events = [SpanEvent(FIRST_TOKEN, attempt.first_token_at)] if attempt.first_token_at else ()
            made.append(
                Span(
                    "generate",
                    SpanKind.CLIENT,
                    trace_id,
                    attempt.generate_id,
                    server_id,
                    decided,
                    stop,
                    attributes,
                    events,
                    error,
                )
            )
    if last and last < end.ended:
        add("answer", last, end.ended)
    return made


def _server(trace: RequestTrace, end: Ended) -> Span:
    attributes: dict[str, Value] = {
        REQUEST_ID: end.request_id,
        "http.request.method": end.method,
        "http.route": end.route,
        "http.response.status_code": end.status,
        "inferway.outcome": end.outcome,
        "inferway.attempts": len(trace.attempts),
    }
    optional: tuple[tuple[str, Value | None], ...] = (
        ("inferway.tenant_id", end.tenant_id),
        ("inferway.key_id", end.key_id),
        ("enduser.pseudo.id", end.user_hash),
    )
    operation = OPERATIONS.get(end.route)
    if operation is not None:
        attributes["gen_ai.operation.name"] = operation
        attributes["gen_ai.provider.name"] = _PROVIDER
        attributes["gen_ai.request.stream"] = end.stream
        optional += (
            ("gen_ai.request.model", end.model),
            ("gen_ai.request.max_tokens", end.max_tokens),
        )
        if end.usage is not None:
            attributes["gen_ai.usage.input_tokens"] = end.usage.prompt_tokens
            attributes["gen_ai.usage.output_tokens"] = end.usage.completion_tokens
            attributes["gen_ai.usage.cache_read.input_tokens"] = end.usage.cached_tokens
            if end.usage.reasoning_tokens:
                attributes["gen_ai.usage.reasoning.output_tokens"] = end.usage.reasoning_tokens
    attributes.update((name, value) for name, value in optional if value)
    events: list[SpanEvent] = []
    if end.first_token:
        events.append(SpanEvent(FIRST_TOKEN, end.first_token))
        if end.stream and operation is not None:
            attributes["gen_ai.response.time_to_first_chunk"] = end.first_token - end.received
    return Span(
        f"{end.method} {end.route}",
        SpanKind.SERVER,
        trace.context.trace_id,
        trace.context.span_id,
        trace.parent_id,
        end.received,
        end.ended,
        attributes,
        events,
        end.outcome if end.is_failure else "",
    )
