"""`python -m router`."""

from __future__ import annotations

import sys

from inferway.service import main

from .app import App
from .config import Config

if __name__ == "__main__":
    sys.exit(main("router", Config, App, listeners=("listen", "ops_listen")))
