"""What a trace is made of: contexts that travel, spans that are told, and which requests have them. Pure.

A service does not keep a span open while it works. It has the times of a request's stages anyway, and makes the spans
of them when the request is over: so no context can be lost between tasks, and a stream that breaks ends its spans like
any other. Only the ids are made beforehand, because others must be told them. docs/tracing.md has the whole tree.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from inferway.errors import Reason

Value = str | bool | int | float | Sequence[str]

# On every span, whatever service it is of.
REQUEST_ID = "inferway.request_id"
# The name of the event at the first token, and of a failure in OpenTelemetry's words.
FIRST_TOKEN = "first_token"
ERROR_TYPE = "error.type"

# By label, what marks a span as failed: what the mesh lacked or broke, and no mistake of a caller's.
FAILURES = frozenset(reason.label for reason in Reason if reason.value.status >= 500)
# What is wrong with us, by label. Whoever meets it keeps its spans, sampled or not; refusals and limits are everyday.
FAULTS = frozenset(reason.label for reason in (Reason.WORKER_FAILED, Reason.UPSTREAM_TIMEOUT, Reason.INTERNAL_ERROR))

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?\Z", re.DOTALL)
_SAMPLED = 0x01
# W3C and OpenTelemetry: only the last 56 bits of a trace id must be random.
_RANDOM_BITS = 56


class TraceContext(NamedTuple):
    """A span as others are told of it (W3C trace context, version 00)."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{'01' if self.is_sampled else '00'}"


def parse_traceparent(value: str) -> TraceContext | None:
    """None for what is no traceparent; a later version is read as far as it is known."""
    match = _TRACEPARENT.match(value)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    if version == "ff" or (version == "00" and more is not None):
        return None
    context = TraceContext(int(trace_id, 16), int(span_id, 16), bool(int(flags, 16) & _SAMPLED))
    return context if context.trace_id and context.span_id else None


def is_sampled(parent: TraceContext | None, trace_id: int, ratio: float) -> bool:
    """Decided once, where a trace enters: as its caller has, else for this share of all trace ids."""
    if parent is not None:
        return parent.is_sampled
    return trace_id & (1 << _RANDOM_BITS) - 1 < ratio * (1 << _RANDOM_BITS)


class SpanKind(Enum):
    INTERNAL = "internal"
    SERVER = "server"
    CLIENT = "client"


class SpanEvent(NamedTuple):
    name: str
    # Monotonic seconds.
    at: float


@dataclass(slots=True)
class Span:
    """One span that is over. Times are monotonic seconds. Attributes hold no text of prompts, answers or keys."""

    name: str
    kind: SpanKind
    trace_id: int
    span_id: int
    # 0: the trace begins here.
    parent_id: int
    start: float
    end: float
    attributes: Mapping[str, Value]
    events: Sequence[SpanEvent] = ()
    # Why it failed, by a name of errors.py; empty: it has not.
    error: str = ""
