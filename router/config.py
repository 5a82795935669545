"""Options of the router."""

from __future__ import annotations

from dataclasses import dataclass

from inferway.config import Secret, option
from inferway.net import host_and_port

from .sources import worker_address


@dataclass(frozen=True, slots=True)
class Config:
    """Decides which waiting request goes next and to which worker."""

    listen: str = option("127.0.0.1:50050", "gRPC address, host:port; port 0 picks a free one", check=host_and_port)
    ops_listen: str = option(
        "127.0.0.1:9100", "HTTP address of health and metrics; port 0 picks a free one", check=host_and_port
    )
    name: str = option("", "name of this router in logs and snapshots", default_text="its host name and port")
    workers: tuple[str, ...] = option(
        ("127.0.0.1:50051",),
        "gRPC addresses of the workers, comma-separated: host:port, or dns:host:port for all that the name resolves to",
        check=worker_address,
    )
    insecure: bool = option(False, "accept anyone who can connect, also off loopback")

    queue_limit_requests: int = option(10_000, "requests that wait for one model at most", minimum=1)
    queue_limit_tokens: int = option(
        50_000_000, "prompt tokens that wait for one model at most", unit="tokens", minimum=1
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
    log_level: str = option("info", "least severe level logged", choices=("debug", "info", "warning", "error"))
