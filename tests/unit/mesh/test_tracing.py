"""Contexts that travel, and which traces are kept."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from inferway.metrics import Registry
from inferway.trace_export import Tracer, otlp_endpoint
from inferway.tracing import Span, SpanKind, TraceContext, is_sampled, parse_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@dataclass(frozen=True)
class Config:
    otlp_endpoint: str = "http://127.0.0.1:1"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(int(TRACE, 16), int(SPAN, 16), True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(int(TRACE, 16), int(SPAN, 16), False)),
        # Other flags say nothing of sampling.
        (f"00-{TRACE}-{SPAN}-02", TraceContext(int(TRACE, 16), int(SPAN, 16), False)),
        # A later version may have more behind it.
        (f"01-{TRACE}-{SPAN}-01-more", TraceContext(int(TRACE, 16), int(SPAN, 16), True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        ("", None),
    ],
)
def test_a_traceparent_is_read(value: str, expected: TraceContext | None) -> None:
    """As W3C says; what is none is no context."""
    assert parse_traceparent(value) == expected


def test_a_context_is_written_as_it_is_read() -> None:
    """Leading zeros included."""
    for is_kept in (True, False):
        context = TraceContext(7, 1, is_kept)
        assert len(context.traceparent) == 55
        assert parse_traceparent(context.traceparent) == context


def test_sampling_follows_the_caller_or_the_ratio() -> None:
    """All of 1, nothing of 0, about a share between; the same trace always alike; a caller's flag wins."""
    rng = Random(1)
    ids = [rng.getrandbits(128) for _ in range(4000)]
    assert all(is_sampled(None, trace_id, 1.0) for trace_id in ids)
    assert not any(is_sampled(None, trace_id, 0.0) for trace_id in ids)
    kept = [trace_id for trace_id in ids if is_sampled(None, trace_id, 0.1)]
    assert 300 < len(kept) < 500
    assert all(is_sampled(None, trace_id, 0.2) for trace_id in kept)
    assert is_sampled(TraceContext(1, 1, True), 1, 0.0)
    assert not is_sampled(TraceContext(1, 1, False), 1, 1.0)


def test_failures_are_kept_within_a_bound() -> None:
    """So many a second of those that were not sampled; what was sampled is not counted."""
    tracer = Tracer("gateway", Config(), Registry("gateway"))
    assert not tracer.keeps(False, False, now=10.0)
    assert all(tracer.keeps(True, True, now=10.0) for _ in range(100))
    assert sum(tracer.keeps(False, True, now=10.0 + number / 1000) for number in range(100)) == 20
    assert tracer.keeps(False, True, now=11.5)


def test_the_queue_is_bounded() -> None:
    """What does not fit is lost; without a thread nothing takes spans out."""
    tracer = Tracer("gateway", Config(), Registry("gateway"))
    span = Span("x", SpanKind.INTERNAL, 1, 2, 0, 0.0, 1.0, {})
    tracer.add([span] * 8000)
    tracer.add([span] * 8000)
    assert tracer.waiting == 8192
    assert tracer.lost == 16000 - 8192


@pytest.mark.parametrize(
    ("value", "is_valid"),
    [
        ("", True),
        ("http://collector:4317", True),
        ("https://[::1]:4317", True),
        ("collector:4317", False),
        ("ftp://collector:4317", False),
        ("http://collector:4317/v1/traces", False),
        ("http://user:secret@collector:4317", False),
        ("http://collector:99999", False),
        ("http://", False),
    ],
)
def test_endpoints(value: str, is_valid: bool) -> None:
    """Scheme, host and port: nothing that OTLP over gRPC has no place for, and no secrets on a command line."""
    if is_valid:
        otlp_endpoint(value)
    else:
        with pytest.raises(ValueError, match="must be http"):
            otlp_endpoint(value)
