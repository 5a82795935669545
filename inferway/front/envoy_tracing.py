"""Envoy's part of a trace: a span for each request, above the gateway's, and what is sent on in its place.

Envoy tells a span when a request is over, as the services do. It samples by the caller's `traceparent`, else by the
trace id; whoever is behind it follows the flag that it sets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from inferway.front import settings
from inferway.front.envoy_api import HTTP_OPTIONS, TCP_KEEPALIVE, TYPE, address, extension, replace, resolved, seconds
from inferway.front.settings import FrontConfig, is_ip
from inferway.trace_export import EXPORT_TIMEOUT_S
from inferway.tracing import REQUEST_ID, TraceContext

COLLECTOR = "collector"
# Each thread sends what it has after this time, or as soon as it has so many.
_FLUSH_MS = 500
_FLUSH_SPANS = 256
# What a thread keeps at most; more is lost.
_QUEUE_SPANS = 2048
# Batches on their way to the collector, of all threads: what a slow one does not take is lost.
_BATCHES = 32
_SHARES = 1_000_000
# Of a path, which callers make up.
_PATH_CHARS = 256
# gRPC's own, for the exporter of the services as well.
_DEFAULT_PORT = 443
# What a probe's request is taken for: a member of a trace that nobody keeps.
_NOT_SAMPLED = TraceContext(1, 1, is_sampled=False).traceparent


def judged_trace(config: FrontConfig) -> list[dict[str, Any]]:
    """Header mutations: what is no trace context of W3C goes; Envoy would follow some of it, and stumble over the rest.

    Two headers are read as one with a comma. A later version that is longer goes as well: there is none.
    """
    given, state = (f"request.headers['{name}']" for name in settings.TRACE_HEADERS)
    # Short expressions, as Envoy bounds them: the length is what says how long the trace id is.
    is_well_formed = (
        f"size({given}) == {len(_NOT_SAMPLED)}"
        f" && {given}.matches('^[0-9a-f]{{2}}-[0-9a-f]+-[0-9a-f]{{16}}-[0-9a-f]{{2}}$')"
        f" && !{given}.matches('^(ff|[0-9a-f]+-0+-|[0-9a-f]+-[0-9a-f]+-0+-)')"
    )
    kept = "''" if config.ignore_caller_traces else f"{is_well_formed} ? {given} : ''"
    is_probe = f"request.url_path == '{settings.HEALTH_PATH}'"
    found = replace("traceparent", f"%CEL({is_probe} ? '{_NOT_SAMPLED}' : ({kept}))%")
    is_state = f"size({given}) > 0 && size({state}) <= {settings.TRACESTATE_MAX_CHARS}"
    return [*found, *replace("tracestate", f"%CEL({is_state} ? {state} : '')%")]


def tracing(config: FrontConfig) -> dict[str, Any]:
    """Of the connection manager."""
    share = {"numerator": round(config.trace_sample_ratio * _SHARES), "denominator": "MILLION"}
    by_trace_id = extension(
        "envoy.tracers.opentelemetry.samplers.trace_id_ratio_based",
        "extensions.tracers.opentelemetry.samplers.v3.TraceIdRatioBasedSamplerConfig",
        sampling_percentage=share,
    )
    collector: dict[str, Any] = {
        "envoy_grpc": {"cluster_name": COLLECTOR},
        "timeout": seconds(EXPORT_TIMEOUT_S),
        "initial_metadata": [{"key": name, "value": value} for name, value in config.collector_headers.items()],
    }
    return {
        "provider": extension(
            "envoy.tracers.opentelemetry",
            "config.trace.v3.OpenTelemetryConfig",
            grpc_service=collector,
            service_name="inferway-front",
            # OTEL_RESOURCE_ATTRIBUTES
            resource_detectors=[
                extension(
                    "envoy.tracers.opentelemetry.resource_detectors.environment",
                    "extensions.tracers.opentelemetry.resource_detectors.v3.EnvironmentResourceDetectorConfig",
                )
            ],
            sampler=extension(
                "envoy.tracers.opentelemetry.samplers.parent_based",
                "extensions.tracers.opentelemetry.samplers.v3.ParentBasedSamplerConfig",
                wrapped_sampler=by_trace_id,
            ),
            max_cache_size=_QUEUE_SPANS,
        ),
        "operation": f"%CEL({_span_name(settings.SPAN_NAMES)})%",
        # The path with its query, in which some clients send keys.
        "max_path_tag_length": 0,
        "custom_tags": [
            {"tag": REQUEST_ID, "request_header": {"name": "x-request-id"}},
            {"tag": "url.path", "value": f"%PATH(NQ):{_PATH_CHARS}%"},
        ],
    }


def _span_name(names: Sequence[tuple[str, str]]) -> str:
    """METHOD PATH of what is known, else METHOD, else HTTP, as OpenTelemetry's conventions want it."""
    known = "".join(
        f"request.method == '{method}' && request.url_path == '{path}' ? '{method} {path}' : " for method, path in names
    )
    return f"{known}request.method in ['GET', 'HEAD', 'OPTIONS', 'POST'] ? request.method : 'HTTP'"


def runtime() -> dict[str, Any]:
    """Of the bootstrap: when spans are sent is no field of the tracer's."""
    values = {"flush_interval_ms": _FLUSH_MS, "min_flush_spans": _FLUSH_SPANS}
    layer = {f"tracing.opentelemetry.{name}": value for name, value in values.items()}
    return {"layers": [{"name": "tracing", "static_layer": layer}]}


def collector_cluster(config: FrontConfig) -> dict[str, Any]:
    url = urlsplit(config.otlp_endpoint)
    assert url.hostname is not None, "judged by the option"
    host = url.hostname
    shown = f"[{host}]" if ":" in host else host
    cluster: dict[str, Any] = {
        "name": COLLECTOR,
        "type": "STATIC" if is_ip(f"{shown}:1") else "STRICT_DNS",
        "connect_timeout": seconds(settings.CONNECT_TIMEOUT_S),
        "upstream_connection_options": {"tcp_keepalive": TCP_KEEPALIVE},
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: {"@type": TYPE + HTTP_OPTIONS.removeprefix("envoy."), "explicit_http_config": _HTTP2}
        },
        "circuit_breakers": {"thresholds": [{"max_requests": _BATCHES, "max_pending_requests": _BATCHES}]},
        "load_assignment": {
            "cluster_name": COLLECTOR,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": address(f"{shown}:{url.port or _DEFAULT_PORT}")}}]}
            ],
        },
    }
    if cluster["type"] == "STRICT_DNS":
        cluster |= resolved(config)
    if url.scheme == "https":
        cluster["transport_socket"] = _tls(config, host)
    return cluster


_HTTP2: dict[str, Any] = {"http2_protocol_options": {}}


def _tls(config: FrontConfig, host: str) -> dict[str, Any]:
    kind = "IP_ADDRESS" if is_ip(f"[{host}]:1" if ":" in host else f"{host}:1") else "DNS"
    return extension(
        "envoy.transport_sockets.tls",
        "extensions.transport_sockets.tls.v3.UpstreamTlsContext",
        **({"sni": host} if kind == "DNS" else {}),
        common_tls_context={
            "alpn_protocols": ["h2"],
            "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
            "validation_context": {
                "trusted_ca": {"filename": config.otlp_ca_file},
                "match_typed_subject_alt_names": [{"san_type": kind, "matcher": {"exact": host}}],
            },
        },
    )
