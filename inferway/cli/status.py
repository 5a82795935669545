"""`python -m inferway status`: the workers and the queue as the routers see them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.cli.core.standing import standing
from inferway.cli.routers import DEFAULT_ROUTERS, ask, mesh, plain
from inferway.config import Secret, load_or_exit, option
from inferway.net import host_and_port


@dataclass(frozen=True, slots=True)
class StatusConfig:
    """Show the workers, what waits for them and how well caches are predicted, as each router sees it."""

    routers: tuple[str, ...] = option(
        (), "gRPC addresses of routers, comma-separated", check=host_and_port, default_text=DEFAULT_ROUTERS
    )
    json: bool = option(False, "print JSON")
    internal_token: Secret = option(Secret(""), "shared secret of the mesh", env="INFERWAY_INTERNAL_TOKEN")
    internal_token_file: str = option("", "file with that secret", env="INFERWAY_INTERNAL_TOKEN_FILE")


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0 when every router answered, 1 when one did not, 2 for a wrong command line."""
    config = load_or_exit(StatusConfig, "status", environ, argv, prog="python -m inferway status")

    async def call(stub: router_pb2_grpc.RouterStub, metadata: Any) -> router_pb2.SnapshotResponse:
        stream = stub.Snapshot(router_pb2.SnapshotRequest(detailed=True), metadata=metadata)
        snapshot: router_pb2.SnapshotResponse = await stream.read()
        stream.cancel()
        return snapshot

    answers = ask("status", mesh(environ, config.routers, config.internal_token, config.internal_token_file), call)
    seen = [(answer.router, plain(answer.message)) for answer in answers if answer.message is not None]
    if config.json:
        print(json.dumps({"routers": [{"address": address, **snapshot} for address, snapshot in seen]}, indent=2))
    elif seen:
        print("\n\n".join(standing(snapshot, address) for address, snapshot in seen))
    return 0 if len(seen) == len(answers) else 1
