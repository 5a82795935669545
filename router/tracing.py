"""Traces of decisions at the router."""

from __future__ import annotations

from inferway.trace_export import Tracer
from inferway.tracing import parse_traceparent

from .core.messages import Action, Request
from .core.records import Records
from .core.trace import decision_span, has_failed


class DecisionTraces:
    """Made of a tracer that is on."""

    def __init__(self, tracer: Tracer, records: Records) -> None:
        self._tracer = tracer
        self._records = records

    def decided(self, request: Request, action: Action | None, *, now: float) -> None:
        """A request has left the queue; `action` None: it was taken back."""
        context = parse_traceparent(request.traceparent) if request.traceparent else None
        if context is not None and self._tracer.keeps(context.is_sampled, has_failed(action), now=now):
            version = self._records.routing_version
            self._tracer.add([decision_span(context, self._tracer.new_span_id(), request, action, version, now=now)])
