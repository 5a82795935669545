"""`python -m gateway`."""

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


if __name__ == "__main__":
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    # The internal token is not what callers authenticate with.
    sys.exit(service.main("gateway", Config, build, listeners=("listen",), authenticates=lambda it: bool(it.tenants)))
