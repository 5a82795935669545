"""Runs a command that ends with its parent: `python tether.py PARENT_PID COMMAND...`.

On Linux the command gets SIGTERM when the parent is gone, however the parent ended. Elsewhere it is just run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> None:
    parent, *command = argv
    if sys.platform == "linux":
        # The setting survives exec.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):
            sys.exit("the parent is gone")
    try:
        os.execv(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: {error.strerror}")


if __name__ == "__main__":
    main(sys.argv[1:])
