"""nginx's configuration: directives as data, and as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from inferway.front import settings
from inferway.front.answers import HEALTH_BODY, JSON, SERVER, OwnAnswer, own_answers
from inferway.front.settings import FrontConfig

# Idle connections to gateways that each process keeps.
_POOL = 256
# Beside two connections for each stream: listeners, probes, clients that wait.
_SPARE_CONNECTIONS = 512
_REQUEST_ID = "$inferway_request_id"
_PATH = "$inferway_path"
# Places for requests that may have no path of their own.
_INVALID = "/.invalid"
_HEADERS_TOO_LARGE = "/.headers_too_large"
_TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class Block(NamedTuple):
    """`head { body }`; an entry of the body is a directive or another block."""

    head: str
    body: Iterable[str | Block]


def nginx_conf(config: FrontConfig) -> str:
    """The whole file; its relative paths are those of the prefix (`nginx -p`). `config` has no mistakes."""
    return "".join(_lines(_main(config), ""))


def _lines(entries: Iterable[str | Block], indent: str) -> Iterator[str]:
    for entry in entries:
        if isinstance(entry, Block):
            yield f"{indent}{entry.head} {{\n"
            yield from _lines(entry.body, indent + "    ")
            yield f"{indent}}}\n"
        else:
            yield f"{indent}{entry};\n"


def _seconds(value: float) -> str:
    return f"{round(value * 1000)}ms"


def _main(config: FrontConfig) -> Iterator[str | Block]:
    connections = 2 * config.max_streams + _SPARE_CONNECTIONS
    yield "daemon off"
    yield "pid nginx.pid"
    yield "error_log stderr warn"
    yield f"worker_processes {config.processes or 'auto'}"
    yield f"worker_rlimit_nofile {connections + _SPARE_CONNECTIONS}"
    # After a reload or SIGQUIT: running streams end by themselves, at the gateways' deadline at the latest.
    yield f"worker_shutdown_timeout {_seconds(config.silence_s)}"
    yield Block("events", [f"worker_connections {connections}"])
    yield Block("http", _http(config))


def _http(config: FrontConfig) -> Iterator[str | Block]:
    yield from (f"{name}_temp_path {name}_temp" for name in _TEMPORARY)
    # Of what is said here; answers of gateways have their own.
    yield f"default_type {JSON}"
    yield "server_tokens off"
    # Compressing would hold events back until a block is full.
    yield "gzip off"
    yield from _access_log(config)
    well_formed = f"~^[{settings.REQUEST_ID_CHARS}]{{1,{settings.REQUEST_ID_MAX_CHARS}}}$"
    yield Block(f"map $http_x_request_id {_REQUEST_ID}", [f'"{well_formed}" $http_x_request_id', "default $request_id"])
    # Of what was asked for, wherever the answer is from; without its query.
    yield Block(f"map $request_uri {_PATH}", ['"~^(?<inferway_asked>[^?]*)" $inferway_asked', 'default ""'])
    # Of the last gateway that was tried: a time where it could be connected to, else "-" or nothing.
    yield Block("map $upstream_connect_time $inferway_unreachable", ['"~[0-9]$" ""', "default 1"])
    if not config.dns_server:
        yield Block("upstream gateways", _upstream(config))
    yield Block("server", _server(config))


def _access_log(config: FrontConfig) -> Iterator[str]:
    if not config.access_log:
        yield "access_log off"
        return
    texts = {
        "time": "$time_iso8601",
        "service": "front",
        "event": "request",
        "request_id": _REQUEST_ID,
        "method": "$request_method",
        "path": _PATH,
        "protocol": "$server_protocol",
        "gateway": "$upstream_addr",
        "first_byte_s": "$upstream_header_time",
    }
    numbers = {
        "status": "$status",
        "bytes_received": "$request_length",
        "bytes_sent": "$bytes_sent",
        "duration_s": "$request_time",
    }
    pairs = [f'"{name}":"{value}"' for name, value in texts.items()]
    pairs += [f'"{name}":{value}' for name, value in numbers.items()]
    yield f"log_format line escape=json '{{{','.join(pairs)}}}'"
    yield "access_log /dev/stdout line"


def _upstream(config: FrontConfig) -> Iterator[str]:
    yield "zone gateways 256k"
    # Streams differ in length: who has the fewest gets the next.
    yield "least_conn"
    # A status is an honest answer and counts for nothing; a broken connection keeps a gateway out for a moment.
    yield from (f"server {gateway} max_fails=3 fail_timeout=5s" for gateway in config.gateways)
    yield f"keepalive {_POOL}"
    yield f"keepalive_timeout {_seconds(min(config.pool_reuse_s, config.pool_idle_s))}"
    yield f"keepalive_time {_seconds(config.pool_reuse_s)}"
    yield "keepalive_requests 100000"


def _server(config: FrontConfig) -> Iterator[str | Block]:
    answers = own_answers(config)
    yield f"listen {config.listen}{' ssl http2' if config.tls else ''} backlog=1024"
    # For a request without a host, as HTTP/1.0 may be: gateways want one.
    yield f"server_name {SERVER}"
    if config.tls:
        yield f'ssl_certificate "{config.tls_cert}"'
        yield f'ssl_certificate_key "{config.tls_key}"'
        yield "ssl_protocols TLSv1.2 TLSv1.3"
        yield "ssl_session_cache shared:tls:10m"
        yield "ssl_session_tickets off"
        yield f"http2_max_concurrent_streams {settings.HTTP2_STREAMS}"
    yield f"client_max_body_size {config.max_body_bytes}"
    yield "client_header_buffer_size 1k"
    yield f"large_client_header_buffers 1 {config.max_header_bytes}"
    yield f"client_header_timeout {_seconds(settings.HEADERS_TIMEOUT_S)}"
    yield f"client_body_timeout {_seconds(config.body_timeout_s)}"
    yield f"send_timeout {_seconds(config.silence_s)}"
    yield f"keepalive_timeout {_seconds(settings.CLIENT_IDLE_S)}"
    yield "keepalive_requests 100000"
    yield f"add_header X-Request-Id {_REQUEST_ID} always"
    by_status = {
        # Not named ones: what is no request line has no path, and nginx makes that an error of its own then.
        _INVALID: "400 405 411 416 495 496 497 501 505",
        "@hidden": "404",
        "@request_timeout": "408",
        "@body_too_large": "413",
        _HEADERS_TOO_LARGE: "414 431 494",
        "@fault": "500",
        "@lost": "502",
        "@unreachable": "503",
        "@timeout": "504",
    }
    yield from (f"error_page {statuses} = {place}" for place, statuses in by_status.items())
    if config.dns_server:
        yield f"resolver {config.dns_server} valid=5s"
        yield f"resolver_timeout {_seconds(settings.CONNECT_TIMEOUT_S)}"
        yield f"set $inferway_gateways {config.gateways[0]}"
    # Here, as each place inherits them all or none.
    yield from _proxying(config)
    target = "$inferway_gateways" if config.dns_server else "gateways"
    yield Block(f"location = {settings.HEALTH_PATH}", [f"return 200 '{HEALTH_BODY}'"])
    yield Block(f"location {settings.PASSED_PREFIX}", [f"proxy_pass http://{target}"])
    yield from (Block(f"location = {path}", [f"proxy_pass http://{target}"]) for path in settings.PASSED_PATHS)
    yield from (Block(f"location {place}", _says(answers.hidden)) for place in ("/", "@hidden"))
    # Without it nginx would send callers from the path without its slash to that with it, in HTML.
    yield Block(f"location = {settings.PASSED_PREFIX.rstrip('/')}", _says(answers.hidden))
    yield Block(f"location = {_INVALID}", ["internal", *_says(answers.invalid)])
    yield Block("location @request_timeout", _says(answers.request_timeout))
    yield Block("location @body_too_large", _says(answers.body_too_large))
    yield Block(f"location = {_HEADERS_TOO_LARGE}", ["internal", *_says(answers.headers_too_large)])
    yield Block("location @fault", _says(answers.fault))
    if_unreachable = Block("if ($inferway_unreachable)", _says(answers.unreachable))
    yield Block("location @lost", [if_unreachable, *_says(answers.lost)])
    yield Block("location @unreachable", _says(answers.unreachable))
    yield Block("location @timeout", [if_unreachable, *_says(answers.timeout)])


def _proxying(config: FrontConfig) -> Iterator[str]:
    yield "proxy_http_version 1.1"
    yield "proxy_buffering off"
    yield "proxy_request_buffering off"
    yield "proxy_buffer_size 16k"
    yield "proxy_buffers 8 16k"
    yield "proxy_busy_buffers_size 32k"
    yield f"proxy_connect_timeout {_seconds(settings.CONNECT_TIMEOUT_S)}"
    yield f"proxy_read_timeout {_seconds(config.silence_s)}"
    yield f"proxy_send_timeout {_seconds(config.body_timeout_s)}"
    yield "proxy_socket_keepalive on"
    # nginx repeats a POST only when nothing of it was sent, as long as this does not say non_idempotent.
    yield "proxy_next_upstream error timeout"
    yield f"proxy_next_upstream_tries {1 + settings.RETRIES}"
    yield 'proxy_set_header Connection ""'
    yield "proxy_set_header Host $host"
    yield f"proxy_set_header X-Request-Id {_REQUEST_ID}"
    yield from (f'proxy_set_header {name} ""' for name in settings.STRIPPED_FROM_REQUESTS if name not in _SET)
    yield from (f"proxy_set_header {name} {value}" for name, value in _SET.items())
    if config.ignore_caller_traces:
        yield from (f'proxy_set_header {name} ""' for name in settings.TRACE_HEADERS)
    # Said above, with the same value, on answers of both.
    yield "proxy_hide_header X-Request-Id"
    yield from (f"proxy_hide_header {name}" for name in settings.STRIPPED_FROM_ANSWERS)
    yield "proxy_pass_header Server"
    # For proxies between us and the client.
    yield "proxy_pass_header X-Accel-Buffering"


_SET = {"x-forwarded-for": "$remote_addr", "x-forwarded-proto": "$scheme"}


def _says(answer: OwnAnswer) -> list[str]:
    headers = [f'add_header {name} "{value}" always' for name, value in answer.headers.items()]
    if headers:
        # Those of the server are not inherited beside others.
        headers.insert(0, f"add_header X-Request-Id {_REQUEST_ID} always")
    return [*headers, f"return {answer.status} '{answer.body}'"]
