"""A collector of traces: takes what OTLP exporters send over gRPC, and gives tests the spans."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.common.v1 import common_pb2

from tests.support.waiting import until

SERVER, CLIENT = 2, 3


@dataclass(frozen=True, slots=True)
class Seen:
    """One span as it was exported; times in seconds of Unix time, ids in hex digits, the parent's empty for none."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_id: str
    start: float
    end: float
    attributes: dict[str, Any]
    events: dict[str, float]
    is_error: bool
    trace_state: str

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """A context manager; `endpoint` is what --otlp-endpoint takes. `raw` holds every message as it came.

    With `tls`, a key and a certificate of localhost (PEM), it takes nothing else.
    """

    def __init__(self, address: str = "127.0.0.1:0", *, tls: tuple[bytes, bytes] | None = None) -> None:
        self.spans: list[Seen] = []
        self.raw: list[bytes] = []
        # Of the last message.
        self.headers: dict[str, str] = {}
        self._lock = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(2))
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(self, self._server)
        if tls is None:
            self.endpoint = f"http://127.0.0.1:{self._server.add_insecure_port(address)}"
        else:
            port = self._server.add_secure_port(address, grpc.ssl_server_credentials([tls]))
            self.endpoint = f"https://localhost:{port}"

    def __enter__(self) -> Collector:
        self._server.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._server.stop(None).wait()

    def Export(self, request: Any, context: Any) -> Any:
        found = [
            _seen(_attributes(resource.resource.attributes)["service.name"], span)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        with self._lock:
            self.spans += found
            self.raw.append(request.SerializeToString())
            self.headers = dict(context.invocation_metadata())
        return trace_service_pb2.ExportTraceServiceResponse()

    def of(self, request_id: str) -> list[Seen]:
        """The spans of one request, in the order of their beginning."""
        with self._lock:
            found = [span for span in self.spans if span.attributes.get("inferway.request_id") == request_id]
        return sorted(found, key=lambda span: span.start)

    def trace(self, trace_id: str) -> list[Seen]:
        """The spans of one trace, whatever request they say they belong to."""
        with self._lock:
            return [span for span in self.spans if span.trace_id == trace_id]


def _seen(service: str, span: Any) -> Seen:
    return Seen(
        service=service,
        name=span.name,
        kind=span.kind,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start=span.start_time_unix_nano / 1e9,
        end=span.end_time_unix_nano / 1e9,
        attributes=_attributes(span.attributes),
        events={event.name: event.time_unix_nano / 1e9 for event in span.events},
        is_error=span.status.code == 2,
        trace_state=span.trace_state,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: common_pb2.AnyValue) -> Any:
    kind = value.WhichOneof("value")
    return getattr(value, kind) if kind is not None else None


async def trace_of(collector: Collector, request_id: str, names: list[str]) -> list[Seen]:
    """The request's spans once these have come, sorted by name; checks that they are one tree in one trace."""
    await until(lambda: len(collector.of(request_id)) >= len(names), 10, f"{names}, got {collector.of(request_id)}")
    spans = collector.of(request_id)
    assert sorted(span.name for span in spans) == sorted(names)
    assert len({span.trace_id for span in spans}) == 1
    ids = {span.span_id for span in spans}
    assert len(ids) == len(spans)
    (root,) = (span for span in spans if span.parent_id not in ids)
    assert root.kind == SERVER
    parents = {span.span_id: span for span in spans}
    for span in spans:
        if span is not root:
            parent = parents[span.parent_id]
            # Of one machine, so that clocks are compared to the rounding of the epoch.
            assert span.start >= parent.start - 0.01
            assert span.end >= span.start
    return spans


def one(spans: list[Seen], name: str) -> Seen:
    (found,) = (span for span in spans if span.name == name)
    return found


def chain(spans: list[Seen], span: Seen) -> list[str]:
    """Names from a span up to the root."""
    by_id = {each.span_id: each for each in spans}
    names = [span.name]
    while span.parent_id in by_id:
        span = by_id[span.parent_id]
        names.append(span.name)
    return names
