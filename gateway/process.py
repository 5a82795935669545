"""The process of a gateway: one that serves, or the parent of several."""

from __future__ import annotations

import sys

from inferway import service

from .app import Gateway
from .config import Config
from .parent import Parent

# How long a thread may keep the interpreter while others wait for it. Long prompts are tokenized beside the event loop,
# which at Python's own 5 ms would be late for everybody's tokens.
_SWITCH_INTERVAL_S = 0.0005


def build(config: Config) -> service.App:
    is_parent = config.processes > 1 and config.listen_fd is None
    return Parent(config, sys.argv[1:]) if is_parent else Gateway(config)


def _has_keys(config: Config) -> bool:
    """Whether callers need one. The internal token is not what they authenticate with."""
    return bool(config.tenants or config.redis or config.jwt)


def main() -> int:
    """Returns the exit status."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    return service.main("gateway", Config, build, listeners=("listen",), authenticates=_has_keys)
