"""Commands that end with the process that started them.

On Linux a tethered command gets SIGTERM when its parent is gone, however the parent ended. Elsewhere it is just run.
Run as a script this file is the tether: `python tether.py PARENT_PID COMMAND...`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def tethered(command: Sequence[str]) -> list[str]:
    """`command`, made to end with this process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


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
