"""`python -m router`."""

from __future__ import annotations

import sys

from inferway.beginning import begin

if __name__ == "__main__":
    begin()
    # All that takes long to import comes after it.
    from inferway.service import main

    from .app import App
    from .config import Config

    sys.exit(main("router", Config, App, listeners=("listen", "ops_listen")))
