"""Envoy's configuration, as data and as YAML."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from inferway.front import envoy_tracing, settings
from inferway.front.answers import HEALTH_BODY, JSON, SERVER, OwnAnswer, own_answers
from inferway.front.envoy_api import (
    HTTP_OPTIONS,
    TCP_KEEPALIVE,
    TYPE,
    address,
    extension,
    replace,
    resolved,
    resolver,
    seconds,
)
from inferway.front.settings import FrontConfig

_CLUSTER = "gateways"
# Bytes that may wait in the proxy for each connection: what a slow client does not read is for the gateway to know.
_BUFFER_BYTES = 256 << 10
_HTTP2_STREAM_WINDOW_BYTES = 1 << 20
_HTTP2_CONNECTION_WINDOW_BYTES = 4 << 20
_LARGEST_INT64 = (1 << 63) - 1
# The connection to a gateway ended after the request was on it.
_LOST_FLAGS = ("UC", "UR", "LR", "UPE")


def envoy_yaml(config: FrontConfig) -> str:
    """The whole file. `config` has no mistakes."""
    return yaml.dump(envoy(config), Dumper=_Plain, sort_keys=False, width=120, allow_unicode=True)


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice twice."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def envoy(config: FrontConfig) -> dict[str, Any]:
    bootstrap: dict[str, Any] = {
        "static_resources": {"listeners": [_listener(config)], "clusters": [_cluster(config)]},
        "overload_manager": {
            "resource_monitors": [
                extension(
                    "envoy.resource_monitors.global_downstream_max_connections",
                    "extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig",
                    max_active_downstream_connections=2 * config.max_streams,
                )
            ]
        },
    }
    if config.otlp_endpoint:
        bootstrap["static_resources"]["clusters"].append(envoy_tracing.collector_cluster(config))
        bootstrap["layered_runtime"] = envoy_tracing.runtime()
    if config.admin:
        bootstrap["admin"] = {"address": address(config.admin)}
    return bootstrap


def _listener(config: FrontConfig) -> dict[str, Any]:
    chain: dict[str, Any] = {"filters": [_connection_manager(config)]}
    if config.tls:
        chain["transport_socket"] = extension(
            "envoy.transport_sockets.tls",
            "extensions.transport_sockets.tls.v3.DownstreamTlsContext",
            common_tls_context={
                "alpn_protocols": ["h2", "http/1.1"],
                "tls_params": {"tls_minimum_protocol_version": "TLSv1_2"},
                "tls_certificates": [
                    {"certificate_chain": {"filename": config.tls_cert}, "private_key": {"filename": config.tls_key}}
                ],
            },
        )
    return {
        "name": "clients",
        "address": address(config.listen),
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        "filter_chains": [chain],
    }


def _connection_manager(config: FrontConfig) -> dict[str, Any]:
    return extension(
        "envoy.filters.network.http_connection_manager",
        "extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        stat_prefix="clients",
        codec_type="AUTO",
        # Nobody who connects is one of us, whatever the address: no connection comes from this one.
        use_remote_address=True,
        internal_address_config={"cidr_ranges": [{"address_prefix": "255.255.255.255", "prefix_len": 32}]},
        early_header_mutation_extensions=[
            extension(
                "envoy.http.early_header_mutation.header_mutation",
                "extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
                mutations=list(_request_mutations(config)),
            )
        ],
        # Made where there is none after those. Its digits are not rewritten to carry Envoy's sampling decision.
        generate_request_id=True,
        preserve_external_request_id=True,
        always_set_request_id_in_response=True,
        request_id_extension={
            "typed_config": {
                "@type": f"{TYPE}extensions.request_id.uuid.v3.UuidRequestIdConfig",
                "pack_trace_reason": False,
                # The tracer's sampler decides, whatever a client's id looks like.
                "use_request_id_for_trace_sampling": False,
            }
        },
        **({"tracing": envoy_tracing.tracing(config)} if config.otlp_endpoint else {}),
        server_name=SERVER,
        server_header_transformation="OVERWRITE",
        normalize_path=True,
        merge_slashes=True,
        # Names of models may hold a slash, which clients escape.
        path_with_escaped_slashes_action="KEEP_UNCHANGED",
        max_request_headers_kb=-(-config.max_header_bytes // 1024),
        request_headers_timeout=seconds(settings.HEADERS_TIMEOUT_S),
        stream_idle_timeout=seconds(config.silence_s),
        common_http_protocol_options={
            "idle_timeout": seconds(settings.CLIENT_IDLE_S),
            "headers_with_underscores_action": "DROP_HEADER",
        },
        # As the gateway does: some probes speak nothing newer.
        http_protocol_options={"accept_http_10": True, "default_host_for_http_10": SERVER},
        http2_protocol_options={
            "max_concurrent_streams": settings.HTTP2_STREAMS,
            "initial_stream_window_size": _HTTP2_STREAM_WINDOW_BYTES,
            "initial_connection_window_size": _HTTP2_CONNECTION_WINDOW_BYTES,
        },
        access_log=[_access_log()] if config.access_log else [],
        local_reply_config={"mappers": list(_reply_mappers(config))},
        route_config=_routes(config),
        http_filters=[
            extension(
                "envoy.filters.http.router",
                "extensions.filters.http.router.v3.Router",
                suppress_envoy_headers=True,
            )
        ],
    )


def _request_mutations(config: FrontConfig) -> Iterator[dict[str, Any]]:
    """Before anything looks at the request: claims go, and an id that is not well-formed goes."""
    yield {"remove_on_match": {"key_matcher": {"prefix": settings.STRIPPED_PREFIX}}}
    yield from ({"remove": name} for name in settings.STRIPPED_FROM_REQUESTS)
    given = "request.headers['x-request-id']"
    is_well_formed = (
        f"size({given}) <= {settings.REQUEST_ID_MAX_CHARS} && {given}.matches('^[{settings.REQUEST_ID_CHARS}]+$')"
    )
    yield from replace("x-request-id", f"%CEL({is_well_formed} ? {given} : '')%")
    if config.otlp_endpoint:
        yield from envoy_tracing.judged_trace(config)
    elif config.ignore_caller_traces:
        yield from ({"remove": name} for name in settings.TRACE_HEADERS)


def _access_log() -> dict[str, Any]:
    return extension(
        "envoy.access_loggers.stdout",
        "extensions.access_loggers.stream.v3.StdoutAccessLog",
        log_format={
            "json_format": {
                "time": "%START_TIME%",
                "service": "front",
                "event": "request",
                "request_id": "%REQ(X-REQUEST-ID)%",
                "method": "%REQ(:METHOD)%",
                "path": "%PATH(NQ)%",
                "protocol": "%PROTOCOL%",
                "status": "%RESPONSE_CODE%",
                "flags": "%RESPONSE_FLAGS%",
                "bytes_received": "%BYTES_RECEIVED%",
                "bytes_sent": "%BYTES_SENT%",
                "duration_ms": "%DURATION%",
                "first_byte_ms": "%RESPONSE_DURATION%",
                "gateway": "%UPSTREAM_HOST%",
                "attempts": "%UPSTREAM_REQUEST_ATTEMPT_COUNT%",
            }
        },
    )


def _routes(config: FrontConfig) -> dict[str, Any]:
    too_large = {"name": "content-length", "range_match": {"start": config.max_body_bytes + 1, "end": _LARGEST_INT64}}
    answers = own_answers(config)
    passed: list[dict[str, Any]] = [
        {"prefix": settings.PASSED_PREFIX},
        *({"path": path} for path in settings.PASSED_PATHS),
    ]
    return {
        # Envoy's own, made after the client's were removed.
        "request_headers_to_remove": ["x-envoy-external-address", "x-envoy-internal"],
        "response_headers_to_remove": list(settings.STRIPPED_FROM_ANSWERS),
        "virtual_hosts": [
            {
                "name": "public",
                "domains": ["*"],
                # A body is kept until the answer begins, or a long prompt could not be sent to another gateway.
                "request_body_buffer_limit": config.max_body_bytes,
                "routes": [
                    {"match": {"path": settings.HEALTH_PATH}, "direct_response": _says(200, HEALTH_BODY)},
                    *(
                        {
                            "match": {**match, "headers": [too_large]},
                            "direct_response": _says(answers.body_too_large.status),
                        }
                        for match in passed
                    ),
                    *({"match": match, "route": _to_gateways(config)} for match in passed),
                    {"match": {"prefix": "/"}, "direct_response": _says(answers.hidden.status)},
                ],
            }
        ],
    }


def _says(status: int, body: str = "") -> dict[str, Any]:
    return {"status": status, **({"body": {"inline_string": body}} if body else {})}


def _to_gateways(config: FrontConfig) -> dict[str, Any]:
    return {
        "cluster": _CLUSTER,
        # The default of 15 s would cut streams.
        "timeout": "0s",
        "idle_timeout": seconds(config.silence_s),
        "retry_policy": {
            # Only what no gateway can have begun to process.
            "retry_on": "connect-failure,refused-stream,reset-before-request",
            "num_retries": settings.RETRIES,
            "retry_host_predicate": [
                extension(
                    "envoy.retry_host_predicates.previous_hosts",
                    "extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                )
            ],
            "host_selection_retry_max_attempts": 3,
        },
    }


def _reply_mappers(config: FrontConfig) -> Iterator[dict[str, Any]]:
    """The first that fits an answer of Envoy's own says what it becomes."""
    answers = own_answers(config)
    yield _mapper(_has_flags("SI", "UT"), answers.timeout, keeps_status=False)
    yield _mapper(_has_flags(*_LOST_FLAGS), answers.lost, keeps_status=False)
    # An upgrade to WebSocket, a body in an encoding that nobody knows: mistakes of callers, which must not be repeated.
    for status in (403, 501):
        yield _mapper(_status("EQ", status), answers.invalid, keeps_status=False)
    by_status: Sequence[tuple[int, OwnAnswer]] = (
        (404, answers.hidden),
        (408, answers.request_timeout),
        (413, answers.body_too_large),
        (431, answers.headers_too_large),
        (503, answers.unreachable),
        (504, answers.timeout),
    )
    for status, answer in by_status:
        yield _mapper(_status("EQ", status), answer, keeps_status=True)
    yield _mapper(_status("GE", 500), answers.fault, keeps_status=True)
    yield _mapper(_status("GE", 400), answers.invalid, keeps_status=True)
    yield {
        "filter": _status("EQ", 200),
        "body_format_override": {
            "text_format_source": {"inline_string": "%LOCAL_REPLY_BODY%"},
            "content_type": JSON,
        },
    }


def _has_flags(*flags: str) -> dict[str, Any]:
    return {"response_flag_filter": {"flags": list(flags)}}


def _status(op: str, status: int) -> dict[str, Any]:
    # The key names nothing: there is no runtime to override it.
    return {
        "status_code_filter": {
            "comparison": {"op": op, "value": {"default_value": status, "runtime_key": "front.status"}}
        }
    }


def _mapper(condition: dict[str, Any], answer: OwnAnswer, *, keeps_status: bool) -> dict[str, Any]:
    headers = [
        {"header": {"key": name.lower(), "value": value}, "append_action": "OVERWRITE_IF_EXISTS_OR_ADD"}
        for name, value in answer.headers.items()
    ]
    return {
        "filter": condition,
        **({} if keeps_status else {"status_code": answer.status}),
        "body_format_override": {"text_format_source": {"inline_string": answer.body}, "content_type": JSON},
        "headers_to_add": headers,
    }


def _cluster(config: FrontConfig) -> dict[str, Any]:
    cluster: dict[str, Any] = {
        "name": _CLUSTER,
        "type": "STRICT_DNS" if config.by_name else "STATIC",
        "connect_timeout": seconds(settings.CONNECT_TIMEOUT_S),
        "per_connection_buffer_limit_bytes": _BUFFER_BYTES,
        # Streams differ in length: who has the fewest gets the next.
        "lb_policy": "LEAST_REQUEST",
        # None ready: all are asked, and their own answers say why. Else only those that are.
        "common_lb_config": {"healthy_panic_threshold": {"value": 1}},
        "upstream_connection_options": {"tcp_keepalive": TCP_KEEPALIVE},
        "typed_extension_protocol_options": {
            HTTP_OPTIONS: {
                "@type": TYPE + HTTP_OPTIONS.removeprefix("envoy."),
                "common_http_protocol_options": {"idle_timeout": seconds(config.pool_idle_s)},
                "explicit_http_config": {"http_protocol_options": {}},
            }
        },
        # The defaults of 1024 would refuse the 1025th stream.
        "circuit_breakers": {
            "thresholds": [
                {
                    "max_connections": config.max_streams,
                    "max_pending_requests": config.max_streams,
                    "max_requests": config.max_streams,
                    # All of one gateway's requests may have to go elsewhere at once; three by default.
                    "max_retries": config.max_streams,
                }
            ]
        },
        "health_checks": [
            {
                "http_health_check": {"path": "/health/ready"},
                "interval": seconds(settings.HEALTH_INTERVAL_S),
                "no_traffic_interval": seconds(settings.HEALTH_INTERVAL_S),
                "timeout": seconds(settings.HEALTH_TIMEOUT_S),
                "unhealthy_threshold": settings.HEALTH_FAILURES,
                "healthy_threshold": 1,
            }
        ],
        # By what happens on the connection only: a status is an honest answer, be it 400 or 503.
        "outlier_detection": {
            "split_external_local_origin_errors": True,
            "consecutive_local_origin_failure": 3,
            "enforcing_consecutive_local_origin_failure": 100,
            "enforcing_consecutive_5xx": 0,
            "enforcing_consecutive_gateway_failure": 0,
            "enforcing_success_rate": 0,
            "enforcing_local_origin_success_rate": 0,
            "base_ejection_time": "5s",
            "max_ejection_percent": 50,
        },
        "load_assignment": {
            "cluster_name": _CLUSTER,
            "endpoints": [
                {"lb_endpoints": [{"endpoint": {"address": address(gateway)}} for gateway in config.gateways]}
            ],
        },
    }
    if config.by_name:
        cluster |= resolved(config)
    elif config.dns_server:
        cluster |= resolver(config)
    return cluster
