"""Options of the gateway."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.config import Secret, option
from inferway.net import host_and_port, no_address_or, peer
from inferway.redis_url import redis_url
from inferway.trace_export import otlp_option, sample_ratio_option

# Also how the parent of several processes tells them the secrets.
CACHE_SECRET_VARIABLE = "INFERWAY_GATEWAY_CACHE_SECRET"
KEY_SECRET_VARIABLE = "INFERWAY_GATEWAY_KEY_SECRET"


@dataclass(frozen=True, slots=True)
class Config:
    """The OpenAI-compatible front of the mesh."""

    listen: str = option(
        "127.0.0.1:8000", "address for clients, host:port; port 0 picks a free one", check=host_and_port
    )
    listen_fd: int | None = option(None, "inherited listening socket instead of --listen; set by the parent process")
    processes: int = option(1, "processes that share the listening socket", minimum=1, maximum=64)
    process_stall_s: float = option(
        20.0, "of several processes, one whose event loop stands still for this time is killed", unit="s", minimum=1.0
    )
    pulse_fd: int | None = option(None, "inherited pipe on which to say that the loop turns; set by the parent process")
    follows: str = option("", "how the process before this one ended, died or stalled; set by the parent process")
    routers: tuple[str, ...] = option((), "gRPC addresses of the routers, host:port, comma-separated", check=peer)
    workers: tuple[str, ...] = option(
        (), "gRPC addresses of workers known before any router has named them", check=peer
    )
    insecure: bool = option(False, "accept anyone who can connect, also off loopback")

    admin_listen: str = option(
        "",
        "address for admins, host:port (docs/admin.md); needs a credential of its own; none: there is no such port",
        check=no_address_or(host_and_port),
    )
    admin_listen_fd: int | None = option(
        None, "inherited listening socket instead of --admin-listen; set by the parent process"
    )
    admin_token: Secret = option(Secret(""), "credential of admins, 16 characters at least", env="INFERWAY_ADMIN_TOKEN")
    admin_token_file: str = option(
        "",
        "file with credentials of admins, a token or a name and a token a line, re-read on change",
        env="INFERWAY_ADMIN_TOKEN_FILE",
    )

    models: str = option("", "file of model names, aliases and limits; re-read on change (docs/models-and-tenants.md)")
    tenants: str = option(
        "", "file of tenants and their keys; without it, --redis and --jwt everybody is let in; re-read on change"
    )

    jwt: str = option(
        "", "file of issuers whose tokens are taken beside keys; re-read on change (docs/models-and-tenants.md)"
    )
    redis: Secret = option(
        Secret(""),
        "URL of Redis: quotas, keys, ledger; redis://, rediss://, redis+sentinel://HOST,HOST/SERVICE, redis+cluster://",
        check=redis_url,
    )
    redis_prefix: str = option("inferway", "what the names of all keys in Redis begin with")
    redis_timeout_ms: int = option(
        100, "a call to Redis may take this long, then it counts as away", unit="ms", minimum=1
    )
    gateways: int = option(
        0,
        "gateways that share Redis, for one that starts while it is away; 0: quotas are closed until it is met",
        minimum=0,
    )
    quota_lease_s: float = option(
        0.0,
        "a reservation that nobody settles ends after this time; 0: twice the request's deadline",
        unit="s",
        minimum=0.0,
    )
    spool_dir: str = option(
        "", "folder for what is to be booked while Redis is away, and without Redis for the ledger (docs/usage.md)"
    )
    spool_max_bytes: int = option(
        1 << 30, "size of all files of a process in that folder", unit="bytes", minimum=1 << 20
    )
    ledger_alarm_entries: int = option(
        1_000_000, "entries of a tenant's ledger above which the log and a metric warn", minimum=1
    )

    choose_workers: bool = option(
        False, "without keys: let everybody choose workers by header (docs/models-and-tenants.md)"
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
    key_secret: Secret = option(
        Secret(""),
        "secret under which keys are looked up, the same on every gateway; without one or its file, the first internal "
        "token present at the start serves. Whoever changes it makes every key in Redis invalid",
        env=KEY_SECRET_VARIABLE,
    )
    key_secret_file: str = option("", "file with that secret, read at the start; --key-secret goes first")
    otlp_endpoint: str = otlp_option()
    trace_sample_ratio: float = sample_ratio_option()
    log_level: str = option("info", "least severe level logged", choices=("debug", "info", "warning", "error"))

    @property
    def reservation_lease_s(self) -> float:
        return self.quota_lease_s or 2 * self.request_deadline_s
