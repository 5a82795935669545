"""Options of the router."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.config import Secret, option
from inferway.net import host_and_port
from inferway.trace_export import otlp_option

from .kubernetes import check_api_url
from .sources import source


@dataclass(frozen=True, slots=True)
class Config:
    """Decides which waiting request goes next and to which worker."""

    listen: str = option("127.0.0.1:50050", "gRPC address, host:port; port 0 picks a free one", check=host_and_port)
    ops_listen: str = option(
        "127.0.0.1:9100", "HTTP address of health, metrics and decisions; port 0 picks a free one", check=host_and_port
    )
    name: str = option("", "name of this router in logs and snapshots", default_text="its host name and port")
    workers: tuple[str, ...] = option(
        ("127.0.0.1:50051",),
        "gRPC addresses of the workers, comma-separated: host:port, dns:host:port for all that the name resolves to, "
        "or k8s:NAMESPACE/SERVICE[:PORT_NAME] for the endpoints of a Kubernetes service",
        check=source,
    )
    kubernetes_api: str = option(
        "",
        "URL of the Kubernetes API server, where workers are found by it",
        default_text="that of the pod",
        check=check_api_url,
    )
    kubernetes_token_file: str = option(
        "/var/run/secrets/kubernetes.io/serviceaccount/token", "file with the token for it, read at each request"
    )
    kubernetes_ca_file: str = option(
        "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "file with the certificates that it is trusted by"
    )
    insecure: bool = option(False, "accept anyone who can connect, also off loopback")

    routing: str = option(
        "", "file with the policy of each model (docs/routing.md), re-read on change", default_text="the default policy"
    )
    queue_limit_requests: int = option(10_000, "requests that wait for one model at most", minimum=1)
    queue_limit_tokens: int = option(
        50_000_000, "prompt tokens that wait for one model at most", unit="tokens", minimum=1
    )
    queue_band_limit_requests: int = option(
        10_000, "requests that wait for one model at one priority at most", minimum=1
    )
    queue_band_limit_tokens: int = option(
        50_000_000, "prompt tokens that wait for one model at one priority at most", unit="tokens", minimum=1
    )
    queue_ageing_s: float = option(
        1.0, "a request that waits is lifted by one priority after each such time", unit="s", minimum=0.001
    )
    queue_aged_share: float = option(
        0.1, "share of dispatches that lifted requests may take from higher ones", minimum=0.001, maximum=1
    )
    breaker_failures: int = option(
        5, "failures in a row, or twice as many of four times as many, that take a worker out; 0: never", minimum=0
    )
    breaker_open_s: float = option(
        2.0,
        "a worker that was taken out is tried again after this time, doubled at each failed trial",
        unit="s",
        minimum=0.1,
    )
    breaker_open_max_s: float = option(60.0, "that time at most", unit="s", minimum=0.1)
    breaker_successes: int = option(
        2, "trials, one request at a time, that must succeed until it is in service again", minimum=1
    )
    slow_start_s: float = option(
        10.0,
        "a worker that has come, or come back, gets a tenth of its slots at first and all of them after this time, "
        "as long as others are there; 0: all at once",
        unit="s",
        minimum=0,
    )
    quarantine_s: float = option(
        60.0,
        "a prompt that was running on two workers when they were lost is refused for this time; 0: never",
        unit="s",
        minimum=0,
    )
    explain_records: int = option(
        10_000, "decisions that can be explained afterwards (docs/explain.md)", minimum=0, maximum=100_000
    )
    decision_log: str = option(
        "", "file that gets a JSON line for each request that has left the router (docs/simulator.md)"
    )
    drain_limit_s: float = option(
        10.0, "after SIGTERM, requests that wait may take this long to get a worker", unit="s", minimum=0
    )

    internal_token: Secret = option(
        Secret(""), "shared secret of the mesh's gRPC streams", env="INFERWAY_INTERNAL_TOKEN"
    )
    internal_token_file: str = option(
        "", "file with that secret, a token a line, re-read on change", env="INFERWAY_INTERNAL_TOKEN_FILE"
    )
    otlp_endpoint: str = otlp_option()
    log_level: str = option("info", "least severe level logged", choices=("debug", "info", "warning", "error"))
