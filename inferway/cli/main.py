"""Finds the command that was asked for."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from inferway.cli import (
    adapters,
    audit,
    blocks,
    canary,
    drain,
    explain,
    front,
    keys,
    requests,
    simulate,
    status,
    tenants,
    up,
    usage,
)

PROG = "python -m inferway"


class Command(NamedTuple):
    """`run` takes the environment and the arguments after the command's name and returns the exit status."""

    summary: str
    run: Callable[[Mapping[str, str], Sequence[str]], int]


COMMANDS: Mapping[str, Command] = {
    "adapters": Command("list, load and unload LoRA adapters on running workers", adapters.main),
    "audit": Command("show what admins have changed, and who", audit.main),
    "block": Command("refuse a tenant, a key or a model at once, or list who is refused", blocks.block),
    "drain": Command("take a worker out, or back, and tell what still runs there", drain.main),
    "explain": Command("tell why a request went where it went, and what came of it", explain.main),
    "front": Command("print the configuration of Envoy or nginx in front of the gateways, or run it", front.main),
    "keys": Command("list, create, change, rotate and revoke keys of tenants", keys.main),
    "probe": Command("stream one token through the front door, and tell how that went", canary.main),
    "requests": Command("list what is being answered, and end it", requests.main),
    "simulate": Command("compare routing policies on a recorded trace, on computed workers", simulate.main),
    "status": Command("show workers, queues and hit rates as the routers see them", status.main),
    "tenants": Command("list, show, create, change and delete tenants", tenants.main),
    "unblock": Command("take a block away", blocks.unblock),
    "up": Command("start workers, a router and a gateway on this machine and keep them running", up.main),
    "usage": Command("sum up what tenants have used, and keep the ledger in files", usage.main),
}


def usage_text() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.summary}" for name, command in COMMANDS.items()]
    return "\n".join([f"usage: {PROG} COMMAND [--help] ...", "", "commands:", *lines])


def main(argv: Sequence[str]) -> int:
    """Exit status 2 and the usage on standard error for a command that does not exist."""
    if not argv or argv[0] in ("-h", "--help"):
        print(usage_text())
        return 0
    name, *rest = argv
    if name not in COMMANDS:
        print(f"inferway: there is no command {name!r}\n{usage_text()}", file=sys.stderr)
        return 2
    try:
        return COMMANDS[name].run(os.environ, rest)
    except KeyboardInterrupt:
        return 130
