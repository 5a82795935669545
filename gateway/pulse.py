"""Whether the event loop of a child turns: the child says so over a pipe, the parent listens."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress

# How often the child says it, and the parent listens.
BEAT_S = 0.5
_MOST_BYTES = 1024


async def beat(fd: int) -> None:
    """The child's end, until cancelled."""
    os.set_blocking(fd, False)
    while True:
        with suppress(OSError):  # full: the parent stands still itself, or it has gone
            os.write(fd, b".")
        await asyncio.sleep(BEAT_S)


class Pulse:
    """The parent's end of one child, which gets `child_fd` and is silent until it has begun to serve.

    Time is counted in the times that the parent has listened in vain: one that stood still itself, or whose whole
    machine did, blames no child for that.
    """

    def __init__(self, stall_s: float) -> None:
        self._patience = stall_s / BEAT_S
        self._fd, self.child_fd = os.pipe()
        os.set_blocking(self._fd, False)
        # Since the last beat; None before the first.
        self._in_vain: int | None = None

    def child_has_it(self) -> None:
        """The parent's copy of `child_fd` is of no use any more."""
        os.close(self.child_fd)

    @property
    def has_stalled(self) -> bool:
        """Whether the child has been silent for too long."""
        return self._in_vain is not None and self._in_vain >= self._patience

    def listen(self) -> bool:
        """To be called every BEAT_S; returns `has_stalled`."""
        try:
            has_beaten = bool(os.read(self._fd, _MOST_BYTES))
        except BlockingIOError:
            has_beaten = False
        if has_beaten:
            self._in_vain = 0
        elif self._in_vain is not None:
            self._in_vain += 1
        return self.has_stalled

    def close(self) -> None:
        os.close(self._fd)
