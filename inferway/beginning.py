"""The first moments of a service's process. Imports nothing that takes time."""

from __future__ import annotations

import os
import signal

_STANDARD_ERROR = 2


def begin() -> None:
    """Make this process one that hears of signals and can open files. Comes before all that takes long to import.

    SIGTERM and SIGINT end it at once, as one that has stopped in order, until lifecycle.StopSignals listens. The first
    process of a container would not hear of them at all until then: what has no handler the system keeps from it.
    """
    _open_standard_files()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))


def _open_standard_files() -> None:
    """Where input, output or errors were closed, the next socket would have their number, which libuv aborts at."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _STANDARD_ERROR:
        pass
    os.close(number)
