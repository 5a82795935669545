"""Traces of choices at the worker."""

from __future__ import annotations

from inferway.trace_export import Tracer
from inferway.tracing import FAULTS, parse_traceparent

from .core.trace import ChoiceEnd, choice_spans


class ChoiceTraces:
    """Made of a tracer that is on."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    def ended(self, traceparent: str, end: ChoiceEnd) -> None:
        """A choice, or a request for embeddings, is over; `traceparent` as the gateway has told it."""
        context = parse_traceparent(traceparent) if traceparent else None
        if context is not None and self._tracer.keeps(context.is_sampled, end.outcome in FAULTS, now=end.ended):
            self._tracer.add(choice_spans(context, end, self._tracer.new_span_id))
