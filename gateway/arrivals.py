"""Requests for a model that comes when it is asked for: they wait here, counted, until its first worker is there.

A pool that is scaled to zero has nothing that could describe the model, so that no prompt can be made and no router be
asked. What waits is the sign by which an autoscaler wakes the pool.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from prometheus_client import Gauge

from inferway.errors import ApiError, Reason

# Bodies of requests that wait in one process, each of which may be large.
_MOST = 1000
# The worker that was asked for may still be loading its model.
_RETRY_AFTER_S = 5.0


class Arrivals:
    """Used by request handlers and the catalogue on one loop."""

    def __init__(self, waiting: Gauge) -> None:
        """`waiting` has the label model; only names of the configuration may wait."""
        self._waiting = waiting
        self._events: dict[str, asyncio.Event] = {}
        self._num_waiting = 0

    async def wait(self, model: str, timeout_s: float) -> None:
        """Return when the model has come.

        Raises ApiError: MODEL_NOT_READY after the time, OVERLOADED where too many wait.
        """
        if self._num_waiting >= _MOST:
            message = f"{_MOST} requests wait for the first worker of a model already."
            raise ApiError(Reason.OVERLOADED, message, retry_after_s=_RETRY_AFTER_S)
        event = self._events.setdefault(model, asyncio.Event())
        waiting = self._waiting.labels(model)
        self._num_waiting += 1
        waiting.inc()
        try:
            async with asyncio.timeout(timeout_s):
                await event.wait()
        except TimeoutError as error:
            message = f"No worker of the model '{model}' has come in {timeout_s:g} s."
            raise ApiError(Reason.MODEL_NOT_READY, message, "model", retry_after_s=_RETRY_AFTER_S) from error
        finally:
            self._num_waiting -= 1
            waiting.dec()

    def came(self, names: Iterable[str]) -> None:
        """A model is ready that has these names."""
        for name in names:
            if (event := self._events.pop(name, None)) is not None:
                event.set()
