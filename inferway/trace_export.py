"""Spans on their way to a collector: OTLP over gRPC, by one thread, in bounded memory and time.

The event loop only puts spans into a queue; it wakes nobody and waits for nothing. The thread empties the queue a few
times a second. What a slow or absent collector does not take is lost, counted and told once, and no request notices.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, cast
from urllib.parse import urlsplit

from inferway import logs
from inferway.config import option
from inferway.metrics import Registry
from inferway.tracing import ERROR_TYPE, Span, SpanKind

if TYPE_CHECKING:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

log = logging.getLogger(__name__)

# A span of ours is some 2 KB.
_QUEUE_SPANS = 8192
_BATCH_SPANS = 512
_INTERVAL_S = 0.5
# For one batch, trials that the exporter repeats included.
EXPORT_TIMEOUT_S = 5.0
# Requests a second and process that are kept for how they ended, so that an outage does not cost more than it must.
_KEPT_A_SECOND = 20
# At the end of the process: for what is queued, and then for the exporter to give up.
_CLOSE_LIMIT_S = 1.0
_GIVE_UP_LIMIT_S = 0.5
# OTLP's numbers (opentelemetry/proto/trace/v1/trace.proto).
_KINDS = {SpanKind.INTERNAL: 1, SpanKind.SERVER: 2, SpanKind.CLIENT: 3}
# Of the flags of a span. Whoever tells one has kept it, whatever its head has decided.
_SAMPLED = 0x01


class TraceConfig(Protocol):
    """What the options of all services have in common about traces."""

    @property
    def otlp_endpoint(self) -> str: ...


def otlp_endpoint(value: str) -> None:
    """Raises ValueError with what it must be."""
    try:
        url = urlsplit(value)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.path in ("", "/") and not url.query
        is_valid = is_valid and url.username is None and url.port != 0
    except ValueError:
        is_valid = False
    if value and not is_valid:
        raise ValueError("must be http://host:port or https://host:port")


def otlp_option() -> Any:
    """The option of every service that says where the collector is."""
    return option(
        "",
        "collector that gets traces by OTLP over gRPC, http://host:port or https://host:port (docs/tracing.md); "
        "without one there are none",
        env="INFERWAY_OTLP_ENDPOINT",
        check=otlp_endpoint,
    )


def sample_ratio_option() -> Any:
    """The option of those where a trace may begin: the front, and gateways without one."""
    return option(
        0.1,
        "share of the requests that come without a traceparent whose traces are kept, beside those that fail",
        env="INFERWAY_TRACE_SAMPLE_RATIO",
        minimum=0,
        maximum=1,
    )


class Tracer:
    """One process's way to the collector. Without an endpoint it is off and `add` must not be called.

    Made without I/O; `start` begins to export, `close` ends it within 1.5 s, whatever the collector does.
    """

    def __init__(self, service: str, config: TraceConfig, registry: Registry, *, instance_id: str = "") -> None:
        self.is_on = bool(config.otlp_endpoint)
        self._service = service
        self._endpoint = config.otlp_endpoint
        self._instance_id = instance_id or socket.gethostname()
        self._random = Random()
        self._queue: deque[Span] = deque()
        self._lost = 0
        # Kept for how they ended, in the second that began then.
        self._kept, self._second = 0, 0.0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._give_up = threading.Event()
        self._count = registry.counter("trace_spans", "Spans by whether the collector has taken them.", "outcome")

    @property
    def waiting(self) -> int:
        """Spans in the queue."""
        return len(self._queue)

    @property
    def lost(self) -> int:
        """Spans that found the queue full and are not counted yet."""
        return self._lost

    def new_span_id(self) -> int:
        return self._random.getrandbits(64) or 1

    def new_trace_id(self) -> int:
        return self._random.getrandbits(128) or 1

    def start(self) -> None:
        if not self.is_on:
            return
        # These packages take long to import, and only those who export need them.
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

        encode = Encoder(self._service, self._instance_id)

        class Exporter(OTLPSpanExporter):
            """The SDK's channel, headers, trials and end; spans are ours."""

            def _translate_data(self, data: Any) -> ExportTraceServiceRequest:
                return encode(data)

        # It tells every failed trial in lines of its own form; ours tell when it begins and when it is over.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        is_insecure = urlsplit(self._endpoint).scheme == "http"
        self._exporter: OTLPSpanExporter = Exporter(
            endpoint=self._endpoint, insecure=is_insecure, timeout=EXPORT_TIMEOUT_S
        )
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)
        self._thread.start()

    def keeps(self, is_sampled: bool, has_failed: bool, *, now: float) -> bool:
        """Whether the spans of a request are written; of those that were not sampled, some that failed each second."""
        if is_sampled or not has_failed:
            return is_sampled
        if now - self._second >= 1.0:
            self._second, self._kept = now, 0
        self._kept += 1
        return self._kept <= _KEPT_A_SECOND

    def add(self, spans: Iterable[Span]) -> None:
        """Queue spans that are over; while the queue is full they are lost."""
        for span in spans:
            if len(self._queue) < _QUEUE_SPANS:
                self._queue.append(span)
            else:
                self._lost += 1

    async def close(self) -> None:
        """Export what is queued, unless that takes too long."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stop.set()
        is_over = await _ended(thread, _CLOSE_LIMIT_S)
        self._give_up.set()
        self._exporter.shutdown()
        if not is_over:
            await _ended(thread, _GIVE_UP_LIMIT_S)
        left = len(self._queue)
        if left:
            logs.event(log, "traces_not_exported", level=logging.WARNING, spans=left)

    # On the thread.

    def _run(self) -> None:
        is_failing = False
        while True:
            is_last = self._stop.wait(_INTERVAL_S)
            while self._queue and not self._give_up.is_set():
                batch = [self._queue.popleft() for _ in range(min(_BATCH_SPANS, len(self._queue)))]
                problem = self._export(batch)
                self._count.labels("lost" if problem else "exported").inc(len(batch))
                is_failing = self._tell(problem, is_failing)
            lost, self._lost = self._lost, 0
            if lost:
                self._count.labels("lost").inc(lost)
            if is_last:
                return

    def _export(self, batch: Sequence[Span]) -> str:
        """Why the collector has not taken the spans; empty: it has."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        try:
            is_taken = self._exporter.export(cast(Any, batch)) is SpanExportResult.SUCCESS
        except Exception as error:  # whatever it is, the requests go on
            return repr(error)
        return "" if is_taken else "the collector does not take them"

    def _tell(self, problem: str, is_failing: bool) -> bool:
        """Once when it begins, once when it is over."""
        if problem and not is_failing:
            logs.event(log, "traces_fail", level=logging.WARNING, endpoint=self._endpoint, error=problem)
        elif is_failing and not problem:
            logs.event(log, "traces_work_again", endpoint=self._endpoint)
        return bool(problem)


async def _ended(thread: threading.Thread, limit_s: float) -> bool:
    await asyncio.to_thread(thread.join, limit_s)
    return not thread.is_alive()


class Encoder:
    """Our spans as a request of OTLP. The wall clock is read at each batch: it may be set while a process runs.

    The exporter's own way, by objects of the SDK, costs six times as much.
    """

    def __init__(self, service: str, instance_id: str) -> None:
        from opentelemetry.sdk.resources import Resource

        names = {"service.name": f"inferway-{service}", "service.instance.id": instance_id}
        # With what OTEL_RESOURCE_ATTRIBUTES says, in the types of an attribute.
        self._resource: Mapping[str, Any] = dict(Resource.create(names).attributes)

    def __call__(self, spans: Sequence[Span]) -> ExportTraceServiceRequest:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
        from opentelemetry.proto.trace.v1.trace_pb2 import Status

        epoch_ns = time.time_ns() - time.monotonic_ns()
        request = ExportTraceServiceRequest()
        whole = request.resource_spans.add()
        _fill(whole.resource.attributes, self._resource)
        scope = whole.scope_spans.add()
        scope.scope.name = "inferway"
        for span in spans:
            start = epoch_ns + int(span.start * 1e9)
            wire = scope.spans.add(
                trace_id=span.trace_id.to_bytes(16, "big"),
                span_id=span.span_id.to_bytes(8, "big"),
                parent_span_id=span.parent_id.to_bytes(8, "big") if span.parent_id else b"",
                name=span.name,
                kind=_KINDS[span.kind],
                flags=_SAMPLED,
                start_time_unix_nano=start,
                end_time_unix_nano=max(start, epoch_ns + int(span.end * 1e9)),
            )
            _fill(wire.attributes, span.attributes)
            for event in span.events:
                wire.events.add(name=event.name, time_unix_nano=epoch_ns + int(event.at * 1e9))
            if span.error:
                wire.status.code = Status.STATUS_CODE_ERROR
                _fill(wire.attributes, {ERROR_TYPE: span.error})
        return request


def _fill(wire: Any, attributes: Mapping[str, Any]) -> None:
    for key, value in attributes.items():
        to = wire.add(key=key).value
        if isinstance(value, str):
            to.string_value = value
        elif isinstance(value, bool):
            to.bool_value = value
        elif isinstance(value, int):
            to.int_value = value
        elif isinstance(value, float):
            to.double_value = value
        else:
            for item in value:
                to.array_value.values.add(string_value=str(item))
