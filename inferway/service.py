"""The shell of every service process: `python -m SERVICE` from its flags to its exit status.

0   it was asked to stop (SIGTERM, SIGINT, SIGHUP; twice to skip the drain), be it while it started
1   it failed while it ran: a supervisor should start it again
2   it cannot start as it is configured; standard error says why, a line each mistake
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import uvloop

from inferway import logs
from inferway.config import ConfigError, Secret, effective, load_or_exit
from inferway.grpc_util import InternalToken
from inferway.lifecycle import StopSignals, follow_log_level
from inferway.net import CannotListen, check_exposure

log = logging.getLogger(__name__)

STOPPED, FAILED, CANNOT_START = 0, 1, 2

# Objects made since the last search for unreachable cycles. Tokens leave none, and requests few; at Python's 700 the
# searches took 7 % of a gateway's CPU time.
_GC_THRESHOLD = 20_000


class CannotStart(Exception):
    """The sentence for the operator about what keeps a configured process from starting."""


class ServiceConfig(Protocol):
    """What the options of all services have in common."""

    @property
    def insecure(self) -> bool: ...
    @property
    def internal_token(self) -> Secret: ...
    @property
    def internal_token_file(self) -> str: ...
    @property
    def log_level(self) -> str: ...


class App(Protocol):
    """A service as its process runs it: these three, in this order, `close` whatever became of the others."""

    async def listen(self) -> None:
        """Take hold of every address, then serve. Raises CannotListen and CannotStart."""

    async def serve(self, signals: StopSignals) -> int:
        """Until it has been asked to stop and has drained, or has failed; returns the exit status."""

    async def close(self) -> None:
        """Let go of everything, in reverse order of building; safe after a step that failed."""


C = TypeVar("C", bound=ServiceConfig)


def main(
    service: str,
    config_class: type[C],
    build: Callable[[C], App],
    *,
    listeners: Sequence[str],
    authenticates: Callable[[C], bool] | None = None,
) -> int:
    """Configure the process and run it; returns its exit status.

    `listeners` are the options that hold addresses; off loopback they are refused unless callers are authenticated:
    by the internal token, or by whatever `authenticates` says.
    """
    config = load_or_exit(config_class, service, os.environ, sys.argv[1:])
    logs.setup(service, config.log_level)
    try:
        has_token = _has_token(config)
        authenticated = has_token if authenticates is None else authenticates(config)
        for name in listeners:
            refusal = check_exposure(getattr(config, name), authenticated=authenticated, insecure=config.insecure)
            if refusal is not None:
                raise CannotStart(refusal)
        logs.event(log, "config", **effective(config))
        gc.set_threshold(_GC_THRESHOLD)
        return uvloop.run(_run(service, build, config))
    except (CannotListen, CannotStart, ConfigError) as error:
        for line in str(error).splitlines():
            print(f"{service}: {line}", file=sys.stderr)
        return CANNOT_START


async def _run(service: str, build: Callable[[C], App], config: C) -> int:
    signals = StopSignals()
    signals.listen()
    follow_log_level(service, config.log_level)
    app = build(config)
    try:
        await app.listen()
        return await app.serve(signals)
    finally:
        await app.close()
        signals.end()


def _has_token(config: ServiceConfig) -> bool:
    """Raises CannotStart for a file without a token: its absence must not open the door."""
    token = InternalToken(config.internal_token, config.internal_token_file)
    if config.internal_token_file and not token:
        path = config.internal_token_file
        raise CannotStart(f"the internal token file is missing, unreadable or empty: {path}")
    return bool(token)
