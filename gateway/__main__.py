"""`python -m gateway`."""

from __future__ import annotations

import sys

from inferway import service

from .app import Gateway
from .config import Config
from .parent import Parent


def build(config: Config) -> service.App:
    is_parent = config.processes > 1 and config.listen_fd is None
    return Parent(config, sys.argv[1:]) if is_parent else Gateway(config)


if __name__ == "__main__":
    # The internal token is not what callers authenticate with.
    sys.exit(service.main("gateway", Config, build, listeners=("listen",), callers_have_token=False))
