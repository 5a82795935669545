"""The gateway's spans of a request."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from gateway.core.sse import Usage
from gateway.core.trace import Ended, RequestTrace, spans
from inferway.tracing import Span, SpanKind, TraceContext, parse_traceparent

END = Ended(
    request_id="r",
    method="POST",
    route="/v1/chat/completions",
    status=200,
    is_failure=False,
    outcome="ok",
    received=10.0,
    queued=11.0,
    first_token=14.0,
    ended=20.0,
    model="m",
    stream=True,
    max_tokens=None,
    usage=Usage(5, 2),
    tenant_id="t",
    key_id="",
)


def new_trace(*, is_sampled: bool = True) -> RequestTrace:
    ids = count(2)
    return RequestTrace(TraceContext(7, 1, is_sampled), 99, lambda: next(ids))


def shape(made: list[Span]) -> list[tuple[str, float, float, str]]:
    return [(span.name, span.start, span.end, span.error) for span in made]


def test_a_request_that_went_through() -> None:
    """Its stages follow each other; what others are told names the spans that they belong to."""
    trace = new_trace()
    attempt = trace.attempt(now=11.0)
    attempt.granted("w", "h:1", now=12.0)
    attempt.first_token_at = 14.0
    attempt.ended(now=19.0)
    made = spans(trace, END)
    assert shape(made) == [
        ("POST /v1/chat/completions", 10.0, 20.0, ""),
        ("prepare", 10.0, 11.0, ""),
        ("route", 11.0, 12.0, ""),
        ("generate", 12.0, 19.0, ""),
        ("answer", 19.0, 20.0, ""),
    ]
    server, _, route, generate, _ = made
    assert (server.kind, server.parent_id, server.span_id) == (SpanKind.SERVER, 99, 1)
    assert all(span.parent_id == 1 for span in made[1:])
    assert parse_traceparent(trace.told_router(attempt)) == TraceContext(7, route.span_id, True)
    assert parse_traceparent(trace.told_worker(attempt)) == TraceContext(7, generate.span_id, True)
    assert server.attributes["gen_ai.response.time_to_first_chunk"] == 4.0
    assert "gen_ai.request.max_tokens" not in server.attributes
    assert generate.attributes["inferway.worker_id"] == "w"


def test_attempts_that_failed() -> None:
    """A rejection is an error of the route, a fault one of generate; what was never over ends with the request."""
    trace = new_trace(is_sampled=False)
    assert trace.context.traceparent.endswith("-00")
    first, second, third = (trace.attempt(now=at) for at in (11.0, 13.0, 16.0))
    first.granted("w", "h:1", now=11.5)
    first.ended("worker_failed", now=13.0)
    first.ended("", now=14.0)  # told twice
    second.ended("overloaded", now=16.0)
    third.granted("v", "h:2", now=17.0)
    made = spans(trace, replace(END, outcome="worker_failed", is_failure=True))
    assert shape(made[2:]) == [
        ("route", 11.0, 11.5, ""),
        ("generate", 11.5, 13.0, "worker_failed"),
        ("route", 13.0, 16.0, "overloaded"),
        ("route", 16.0, 17.0, ""),
        ("generate", 17.0, 20.0, ""),
    ]
    assert made[0].error == "worker_failed"


def test_a_callers_mistake_is_no_error_of_ours() -> None:
    """What a router or a worker refuses as wrong is told, and marks no span as failed."""
    for worker in ("", "w"):
        trace = new_trace()
        attempt = trace.attempt(now=11.0)
        if worker:
            attempt.granted(worker, "h:1", now=12.0)
        attempt.ended("unsupported_value", now=13.0)
        made = spans(trace, replace(END, outcome="unsupported_value", status=400))
        assert not [span.name for span in made if span.error]
        (refused,) = (span for span in made if span.attributes.get("inferway.outcome") and span is not made[0])
        assert refused.name == ("generate" if worker else "route")
        assert refused.attributes["inferway.outcome"] == "unsupported_value"


def test_refusals_are_no_faults() -> None:
    """Only what a worker did wrong keeps the trace of a request that went well."""
    for error, has_fault in (("overloaded", False), ("", False), ("worker_failed", True), ("upstream_timeout", True)):
        trace = new_trace()
        trace.attempt(now=1.0).ended(error, now=2.0)
        assert trace.has_fault is has_fault, error


def test_a_request_that_was_refused_at_once() -> None:
    """It has the server span alone; a route that is no inference has nothing of GenAI's."""
    refused = replace(END, queued=0.0, first_token=0.0, usage=None, status=400, outcome="invalid_request")
    (server,) = spans(new_trace(), refused)
    assert server.error == ""
    assert server.attributes["gen_ai.operation.name"] == "chat"
    (other,) = spans(new_trace(), replace(refused, route="/tokenize"))
    assert not [name for name in other.attributes if name.startswith("gen_ai.")]
