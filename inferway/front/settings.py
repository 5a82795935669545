"""What both proxies are told: the values that can be chosen, and what follows from them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import unquote

from inferway.config import Secret, option
from inferway.net import host_and_port, is_loopback, peer
from inferway.trace_export import otlp_option, sample_ratio_option

Proxy = Literal["envoy", "nginx"]
PROXIES: tuple[Proxy, ...] = ("envoy", "nginx")

# What clients may reach. Everything else is a 404 that no gateway sees: metrics, readiness with what it tells of the
# inside, and whatever a gateway has tomorrow until it is named here.
PASSED_PREFIX = "/v1/"
PASSED_PATHS = ("/tokenize", "/detokenize", "/openapi.json")
# Answered by the proxy: it says that the proxy lives, whatever becomes of gateways.
HEALTH_PATH = "/health"

# Claims of clients that nothing behind the proxy may believe. The headers x-inferway-worker and
# x-inferway-exclude-workers stay: the gateway asks whether the key may choose workers.
STRIPPED_PREFIX = "x-envoy-"
STRIPPED_FROM_REQUESTS = (
    "forwarded",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-port",
    "x-forwarded-proto",
    "x-real-ip",
)
# What a gateway or something between never has to tell clients.
STRIPPED_FROM_ANSWERS = (
    "via",
    "x-envoy-attempt-count",
    "x-envoy-decorator-operation",
    "x-envoy-degraded",
    "x-envoy-immediate-health-check-fail",
    "x-envoy-upstream-service-time",
    "x-powered-by",
)

# The rule of gateways (gateway/core/ids.py).
REQUEST_ID_CHARS = "A-Za-z0-9._-"
REQUEST_ID_MAX_CHARS = 128
TRACE_HEADERS = ("traceparent", "tracestate")
# More of a tracestate need not be handed on (W3C trace context, section 3.3.1.5).
TRACESTATE_MAX_CHARS = 512
# What a trace is of, by method and path: names of spans, of which there must be few.
SPAN_NAMES = (
    *(("POST", f"/v1/{path}") for path in ("chat/completions", "completions", "embeddings")),
    *(("POST", f"{prefix}/{path}") for prefix in ("", "/v1") for path in ("tokenize", "detokenize")),
    *(("GET", path) for path in ("/v1/models", "/openapi.json")),
)
# Where Debian, Ubuntu and Alpine keep the certificates of authorities that everybody trusts.
SYSTEM_CA_FILE = "/etc/ssl/certs/ca-certificates.crt"

CONNECT_TIMEOUT_S = 2.0
HEADERS_TIMEOUT_S = 10.0
# Attempts at another gateway after one that could not be connected to.
RETRIES = 2
# Idle connections of clients. Longer than clients keep theirs, so that it is they who close.
CLIENT_IDLE_S = 300.0
HTTP2_STREAMS = 256
# How often each proxy asks each gateway for readiness: several times in the delay of a gateway that drains.
HEALTH_INTERVAL_S = 1.0
HEALTH_TIMEOUT_S = 2.0
# So many slow answers in a row take a gateway out; an answer that says "not ready" does so at once.
HEALTH_FAILURES = 3
# Beyond the longest silence that is in order.
_MARGIN_S = 30.0

_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_HEADER_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_UNQUOTABLE = re.compile(r"[\x00-\x1f\x7f\"'\\$;{}]")


def address(text: str) -> None:
    """An address to listen on. Raises ValueError with what it must be."""
    peer(text)
    _check_host(text)


def optional_address(text: str) -> None:
    if text:
        address(text)


def headers(text: str) -> dict[str, str]:
    """What name=value,name=value says, values quoted as in a URL. Raises ValueError with what it must be."""
    found = {}
    for pair in filter(None, map(str.strip, text.split(","))):
        name, _, value = pair.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        if not _HEADER_NAME.fullmatch(name) or not value or not value.isprintable() or not value.isascii():
            raise ValueError("must be name=value,name=value with names and values of headers")
        found[name] = value
    return found


def path(text: str) -> None:
    if _UNQUOTABLE.search(text):
        raise ValueError("must be a path without quotes, backslashes, $, ;, braces or control characters")


def _check_host(text: str) -> None:
    if not _HOST.fullmatch(text.rsplit(":", 1)[0]):
        raise ValueError("must have a host of letters, digits, dots and hyphens, or an IPv6 address in brackets")


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """Values of the proxy in front of the gateways."""

    listen: str = option("127.0.0.1:8080", "address for clients, host:port", check=address)
    gateways: tuple[str, ...] = option(
        ("127.0.0.1:8000",), "addresses of the gateways, or a DNS name that has all of them, host:port", check=address
    )
    dns_server: str = option(
        "",
        "host:port of the DNS server that is asked again and again; nginx without one asks once",
        check=optional_address,
    )
    tls_cert: str = option(
        "", "file with the certificate and its chain, PEM; with --tls-key clients use TLS", check=path
    )
    tls_key: str = option("", "file with the certificate's key, PEM", check=path)

    max_body_bytes: int = option(16 << 20, "largest request body; the gateways' own", unit="bytes", minimum=1)
    max_header_bytes: int = option(16 << 10, "largest headers; the gateways' own", unit="bytes", minimum=1024)
    body_timeout_s: float = option(30.0, "a body must keep arriving; the gateways' own", unit="s", minimum=1)
    heartbeat_s: float = option(15.0, "longest silence in a stream; the gateways' own", unit="s", minimum=0.1)
    request_deadline_s: float = option(
        600.0, "longest silence before an answer that is no stream; the gateways' own", unit="s", minimum=0.1
    )
    keepalive_s: float = option(75.0, "gateways close idle connections after this time; their own", unit="s", minimum=1)
    drain_delay_s: float = option(
        5.0, "a gateway that stops takes requests for this time; the gateways' own", unit="s", minimum=0
    )
    idle_timeout_s: float | None = option(
        None,
        "a stream is cut after this silence",
        unit="s",
        minimum=1,
        default_text="`--request-deadline-s` and 30 s",
    )

    max_streams: int = option(10_000, "requests at the same time", minimum=1, maximum=1_000_000)
    processes: int = option(0, "threads of Envoy or processes of nginx; 0: one for each core", minimum=0, maximum=256)
    admin: str = option(
        "", "address of Envoy's admin interface, on loopback only; without one there is none", check=optional_address
    )
    access_log: bool = option(True, "write a JSON line for each request to standard output")
    otlp_endpoint: str = otlp_option()
    otlp_headers: Secret = option(
        Secret(""),
        "headers for that collector, name=value,name=value, as a token that it wants",
        env="OTEL_EXPORTER_OTLP_HEADERS",
        check=headers,
    )
    otlp_ca_file: str = option(
        SYSTEM_CA_FILE,
        "file with the certificates of authorities that a collector with https is checked by, PEM",
        env="OTEL_EXPORTER_OTLP_CERTIFICATE",
        check=path,
    )
    trace_sample_ratio: float = sample_ratio_option()
    ignore_caller_traces: bool = option(
        False, "remove traceparent and tracestate of callers: who calls neither chooses ids nor what is kept"
    )

    @property
    def tls(self) -> bool:
        return bool(self.tls_cert)

    @property
    def collector_headers(self) -> Mapping[str, str]:
        return headers(self.otlp_headers)

    @property
    def silence_s(self) -> float:
        """After which a stream is taken for dead. Answers in one piece have no heartbeats: their silence counts."""
        if self.idle_timeout_s is not None:
            return self.idle_timeout_s
        return max(self.request_deadline_s, 2 * self.heartbeat_s) + _MARGIN_S

    @property
    def pool_idle_s(self) -> float:
        """Sooner than gateways close them: a request on a connection that closes at this moment would be lost."""
        return self.keepalive_s * 0.8

    @property
    def pool_reuse_s(self) -> float:
        """For nginx, which does not ask for readiness: a connection gets no new request after twice this time.

        So a gateway that drains gets none on connections from before, once whoever names the gateways has stopped
        naming it, by the end of its delay.
        """
        return max(1.0, self.drain_delay_s * 0.4)

    @property
    def by_name(self) -> bool:
        """Whether a gateway is named and not given by its address."""
        return not all(map(is_ip, self.gateways))

    def mistakes(self, proxy: Proxy) -> list[str]:
        """What is wrong with values that are each well-formed, a sentence for each."""
        found = []
        if not self.gateways:
            found.append("--gateways: at least one is needed")
        if len(set(self.gateways)) < len(self.gateways):
            found.append(f"--gateways: each may be named once, got {','.join(self.gateways)!r}")
        if bool(self.tls_cert) != bool(self.tls_key):
            found.append("--tls-cert and --tls-key: both are needed, or none")
        if self.silence_s <= self.heartbeat_s:
            found.append(
                f"--idle-timeout-s: must be above --heartbeat-s ({self.heartbeat_s:g} s), got {self.silence_s:g}"
            )
        if self.admin and not is_loopback(self.admin):
            found.append(f"--admin: must be on loopback: it has no authentication, got {self.admin!r}")
        if self.dns_server and not is_ip(self.dns_server):
            found.append(f"--dns-server: must be an IP address and a port, got {self.dns_server!r}")
        if proxy == "nginx" and self.admin:
            found.append("--admin: nginx has no admin interface")
        if proxy == "nginx" and self.dns_server and len(self.gateways) != 1:
            found.append("--gateways: with --dns-server nginx takes one name")
        return found


def is_ip(text: str) -> bool:
    """Whether the host of host:port is an IP address."""
    try:
        ipaddress.ip_address(host_and_port(text).host)
    except ValueError:
        return False
    return True
