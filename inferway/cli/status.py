"""`python -m inferway status`: the workers and the queue as the routers see them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.cli.core.standing import standing
from inferway.cli.routers import RouterOptions, ask, mesh
from inferway.config import load_or_exit
from inferway.plain import plain


@dataclass(frozen=True, slots=True)
class StatusConfig(RouterOptions):
    """Show the workers, what waits for them and how well caches are predicted, as each router sees it."""


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0 when every router answered, 1 when one did not, 2 for a wrong command line."""
    config = load_or_exit(StatusConfig, "status", environ, argv, prog="python -m inferway status")

    async def call(stub: router_pb2_grpc.RouterStub, metadata: Any) -> router_pb2.SnapshotResponse:
        stream = stub.Snapshot(router_pb2.SnapshotRequest(detailed=True), metadata=metadata)
        snapshot: router_pb2.SnapshotResponse = await stream.read()
        stream.cancel()
        return snapshot

    answers = ask("status", mesh(environ, config), call)
    seen = [(answer.router, plain(answer.message)) for answer in answers if answer.message is not None]
    if config.json:
        print(json.dumps({"routers": [{"address": address, **snapshot} for address, snapshot in seen]}, indent=2))
    elif seen:
        print("\n\n".join(standing(snapshot, address) for address, snapshot in seen))
    return 0 if len(seen) == len(answers) else 1
