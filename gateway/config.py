"""Options of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.config import Secret, option
from inferway.net import host_and_port, peer
from inferway.trace_export import otlp_endpoint

# Also how the parent of several processes tells them the secret.
CACHE_SECRET_VARIABLE = "INFERWAY_GATEWAY_CACHE_SECRET"


@dataclass(frozen=True, slots=True)
class Config:
    """The OpenAI-compatible front of the mesh."""

    listen: str = option(
        "127.0.0.1:8000", "address for clients, host:port; port 0 picks a free one", check=host_and_port
    )
    listen_fd: int | None = option(None, "inherited listening socket instead of --listen; set by the parent process")
    processes: int = option(1, "processes that share the listening socket", minimum=1, maximum=64)
    routers: tuple[str, ...] = option((), "gRPC addresses of the routers, host:port, comma-separated", check=peer)
    workers: tuple[str, ...] = option(
        (), "gRPC addresses of workers known before any router has named them", check=peer
    )
    insecure: bool = option(False, "accept anyone who can connect, also off loopback")

    models: str = option("", "file of model names, aliases and limits; re-read on change (docs/models-and-tenants.md)")
    tenants: str = option("", "file of tenants and their keys; without one everybody is let in; re-read on change")

    choose_workers: bool = option(
        False, "without a file of tenants: let everybody choose workers by header (docs/models-and-tenants.md)"
    )

    max_body_bytes: int = option(16 << 20, "largest request body", unit="bytes", minimum=1)
    body_timeout_s: float = option(30.0, "a body must arrive within this time", unit="s", minimum=0.1)
    max_header_bytes: int = option(16 << 10, "largest header line", unit="bytes", minimum=1024)
    max_messages: int = option(4096, "messages in one conversation", minimum=1)
    max_prompts: int = option(128, "prompts in one completion request", minimum=1, maximum=2048)
    max_choices: int = option(16, "largest n", minimum=1, maximum=128)

    max_embedding_tokens: int = option(
        300_000, "tokens of all inputs of one request for embeddings", unit="tokens", minimum=1
    )

    queue_timeout_s: float = option(
        10.0, "a request waits this long for a worker", unit="s", minimum=0.001, maximum=3600
    )
    request_deadline_s: float = option(600.0, "a request ends after this time", unit="s", minimum=0.1)
    heartbeat_s: float = option(
        15.0, "silence after which a stream gets a comment, never sooner than 0.5 s", unit="s", minimum=0.1
    )
    stall_s: float = option(
        30.0, "a worker silent for this long, beyond its expected prefill, is lost", unit="s", minimum=0.1
    )
    coalesce_bytes: int = option(256 << 10, "unread bytes above which a client's deltas merge", unit="bytes", minimum=1)
    client_buffer_bytes: int = option(4 << 20, "unread bytes above which a client is cut", unit="bytes", minimum=1)
    client_write_timeout_s: float = option(
        60.0, "a finished answer must be read within this time", unit="s", minimum=0.1
    )
    keepalive_s: float = option(75.0, "idle connections are closed after this time", unit="s", minimum=1)
    drain_delay_s: float = option(
        5.0, "after SIGTERM, new requests are still served for this time", unit="s", minimum=0
    )
    drain_limit_s: float = option(120.0, "after SIGTERM, running requests may take this long", unit="s", minimum=0)

    internal_token: Secret = option(
        Secret(""), "shared secret of the mesh's gRPC streams", env="INFERWAY_INTERNAL_TOKEN"
    )
    internal_token_file: str = option(
        "", "file with that secret, a token a line, re-read on change", env="INFERWAY_INTERNAL_TOKEN_FILE"
    )
    cache_secret: Secret = option(
        Secret(""),
        "secret from which cache domains are derived, the same on every gateway; without one or its file, the first "
        "internal token present at the start serves, and without any token a constant",
        env=CACHE_SECRET_VARIABLE,
    )
    cache_secret_file: str = option("", "file with that secret, read at the start; --cache-secret goes first")
    otlp_endpoint: str = option(
        "",
        "collector that gets traces by OTLP over gRPC, http://host:port or https://host:port (docs/tracing.md); "
        "without one there are none",
        env="INFERWAY_OTLP_ENDPOINT",
        check=otlp_endpoint,
    )
    trace_sample_ratio: float = option(
        0.1,
        "share of the requests that come without a traceparent whose traces are kept, beside those that fail",
        minimum=0,
        maximum=1,
    )
    log_level: str = option("info", "least severe level logged", choices=("debug", "info", "warning", "error"))
