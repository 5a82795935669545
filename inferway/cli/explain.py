"""`python -m inferway explain ID`: why a request went where it went, and what came of it."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.cli.core.explained import explanation
from inferway.cli.core.tables import duration, shown
from inferway.cli.routers import Answer, RouterOptions, ask, mesh, subject_first
from inferway.config import load_or_exit
from inferway.plain import plain

_PROG = "python -m inferway explain ID"


@dataclass(frozen=True, slots=True)
class ExplainConfig(RouterOptions):
    """Ask the routers what they decided for the request with this X-Request-Id, why, and what came of it."""


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0 when a router knows the request, 1 when none does, 2 for a wrong command line."""
    request_id, rest = subject_first(argv)
    config = load_or_exit(ExplainConfig, "explain", environ, rest, prog=_PROG)
    if not request_id:
        print(f"explain: the id of a request is needed, before all flags: {_PROG}", file=sys.stderr)
        return 2

    async def call(stub: router_pb2_grpc.RouterStub, metadata: Any) -> router_pb2.ExplainResponse:
        response: router_pb2.ExplainResponse = await stub.Explain(
            router_pb2.ExplainRequest(request_id=request_id), metadata=metadata
        )
        return response

    answers = ask("explain", mesh(environ, config), call)
    knowing = [answer.message for answer in answers if answer.message is not None and answer.message.decisions]
    if config.json:
        print(json.dumps({"request_id": request_id, "routers": [plain(message) for message in knowing]}, indent=2))
    elif knowing:
        print("\n\n".join(_text(request_id, plain(message)) for message in knowing))
    if not knowing:
        print(f"explain: {_unknown(request_id, answers)}", file=sys.stderr)
    return 0 if knowing else 1


def _text(request_id: str, response: Mapping[str, Any]) -> str:
    return explanation(request_id, response["router_id"], response["decisions"])


def _unknown(request_id: str, answers: Sequence[Answer[router_pb2.ExplainResponse]]) -> str:
    """Says how far back those who answered remember."""
    reaches = [
        f"{answer.message.router_id} remembers {answer.message.remembered:,} decisions"
        + (f" of the last {duration(answer.message.oldest_ms)}" if answer.message.remembered else "")
        for answer in answers
        if answer.message is not None
    ]
    if not reaches:
        return "no router answered"
    return shown(f"no router knows a request {request_id!r}: {', '.join(reaches)}")
