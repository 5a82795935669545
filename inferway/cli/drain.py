"""`python -m inferway drain WORKER`: takes a worker out at the routers, or back, and tells what still runs there."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.api.v1 import router_pb2, router_pb2_grpc
from inferway.cli.core.draining import progress
from inferway.cli.routers import Answer, Mesh, RouterOptions, ask, mesh, subject_first
from inferway.config import load_or_exit, option
from inferway.plain import plain

_PROG = "python -m inferway drain WORKER"
_LOOK_S = 0.5

_Answers = list[Answer[router_pb2.DrainResponse]]


@dataclass(frozen=True, slots=True)
class DrainConfig(RouterOptions):
    """Send a worker nothing new, from any of the routers, until this is undone. WORKER is its name or its address."""

    undo: bool = option(False, "take the worker back")
    wait: float = option(0.0, "wait this long at most until nothing runs there any more", unit="s", minimum=0)


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0 when every router did what was asked, 1 when one did not, 2 for a wrong command line.

    With --wait it is also 1 when something still runs there in the end.
    """
    worker, rest = subject_first(argv)
    config = load_or_exit(DrainConfig, "drain", environ, rest, prog=_PROG)
    mistake = ""
    if not worker:
        mistake = f"the name or the address of a worker is needed, before all flags: {_PROG}"
    elif config.undo and config.wait:
        mistake = "--undo and --wait cannot be given together"
    if mistake:
        print(f"drain: {mistake}", file=sys.stderr)
        return 2
    target = mesh(environ, config)
    order = router_pb2.DRAIN_ORDER_UNDO if config.undo else router_pb2.DRAIN_ORDER_DRAIN
    told: dict[str, str] = {}
    answers = _order(target, worker, order)
    if not config.json:
        _tell(answers, told)
    deadline = time.monotonic() + config.wait
    while _is_going_on(answers) and time.monotonic() < deadline:
        time.sleep(_LOOK_S)
        answers = _order(target, worker, router_pb2.DRAIN_ORDER_UNSPECIFIED)
        if not config.json:
            _tell(answers, told)
    messages = [answer.message for answer in answers if answer.message is not None]
    done = len(messages) == len(answers) and all(message.done for message in messages)
    if config.json:
        routers = [{"address": answer.router, **plain(answer.message)} for answer in answers if answer.message]
        print(json.dumps({"worker": worker, "done": done, "routers": routers}, indent=2))
    as_asked = len(messages) == len(answers) and all(message.drained != config.undo for message in messages)
    return 0 if as_asked and (done or not config.wait) else 1


def _order(target: Mesh, worker: str, order: router_pb2.DrainOrder) -> _Answers:
    async def call(stub: router_pb2_grpc.RouterStub, metadata: Any) -> router_pb2.DrainResponse:
        request = router_pb2.DrainRequest(worker=worker, order=order)
        response: router_pb2.DrainResponse = await stub.Drain(request, metadata=metadata)
        return response

    return ask("drain", target, call)


def _is_going_on(answers: _Answers) -> bool:
    """Whether waiting may bring something: no router failed or let the worker go meanwhile, and one is not done."""
    messages = [answer.message for answer in answers]
    return all(message and message.drained for message in messages) and not all(
        message and message.done for message in messages
    )


def _tell(answers: _Answers, told: dict[str, str]) -> None:
    """Print what has changed since it was last told."""
    for answer in answers:
        if answer.message is not None and told.get(answer.router) != (text := progress(plain(answer.message))):
            told[answer.router] = text
            print(text, flush=True)
