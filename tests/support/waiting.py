"""Waiting for a condition, with a limit: the only way in which a test waits."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

# Whatever should happen soon, on a machine that is busy with other things.
PATIENCE_S = 20.0
_PAUSE_S = 0.01


async def until(condition: Callable[[], object], seconds: float = PATIENCE_S, what: str = "the condition") -> None:
    """Return once `condition()` is true; it is called in the running loop. Raises AssertionError after `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        await asyncio.sleep(_PAUSE_S)


def wait_until(condition: Callable[[], object], seconds: float = PATIENCE_S, what: str = "the condition") -> None:
    """The same without a loop."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(_PAUSE_S)
