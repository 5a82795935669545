"""`python -m inferway simulate`: compares routing policies on a recorded trace. The router's package does it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns the status of `python -m router.simulate`, which runs in the caller's folder and takes all arguments."""
    path = os.pathsep.join(filter(None, (str(_CHECKOUT), environ.get("PYTHONPATH", ""))))
    command = (sys.executable, "-m", "router.simulate", *argv)
    return subprocess.run(command, env={**environ, "PYTHONPATH": path}, check=False).returncode
