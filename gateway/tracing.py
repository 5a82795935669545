"""Traces of requests at the gateway: where a trace is begun or joined, and where it is told."""

from __future__ import annotations

from inferway.trace_export import Tracer
from inferway.tracing import TraceContext, is_sampled, parse_traceparent

from .core.trace import Ended, RequestTrace, spans


class Tracing:
    """Made of a tracer that is on. `ratio` is the share of traces that begin here and are sampled."""

    def __init__(self, tracer: Tracer, ratio: float) -> None:
        self._tracer = tracer
        self._ratio = ratio

    def begin(self, traceparent: str) -> RequestTrace:
        """A request has come in, with its caller's traceparent or an empty one."""
        tracer = self._tracer
        parent = parse_traceparent(traceparent) if traceparent else None
        trace_id = parent.trace_id if parent is not None else tracer.new_trace_id()
        context = TraceContext(trace_id, tracer.new_span_id(), is_sampled(parent, trace_id, self._ratio))
        return RequestTrace(context, parent.span_id if parent is not None else 0, tracer.new_span_id)

    def keeps(self, trace: RequestTrace, *, is_failure: bool, now: float) -> bool:
        """Whether the spans of a request that is over are written; asked once, and if so, `end` is to follow."""
        return self._tracer.keeps(trace.context.is_sampled, is_failure or trace.has_fault, now=now)

    def end(self, trace: RequestTrace, end: Ended) -> None:
        """The last byte of its answer is written, or it was given up."""
        self._tracer.add(spans(trace, end))
