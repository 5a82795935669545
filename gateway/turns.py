"""Spreads what comes all at once over turns of the event loop."""

from __future__ import annotations

import asyncio
from collections import deque


class Turns:
    """Lets `limit` callers on in one turn of the running loop; the others wait for later turns, in their order.

    Between two turns the loop does everything else that is due: a thousand requests that come together are answered
    no later than they would be, and tokens and probes do not wait for all of them.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Of the present turn; -1 while nobody has come in it.
        self._left = -1
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def take(self) -> None:
        if self._left < 0:
            self._left = self._limit
            asyncio.get_running_loop().call_soon(self._next)
        if self._left > 0:
            self._left -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        await place

    def _next(self) -> None:
        """A turn is over: those who wait go first in the one that begins."""
        self._left = self._limit
        while self._waiting and self._left:
            place = self._waiting.popleft()
            if not place.done():  # else its caller has gone
                place.set_result(None)
                self._left -= 1
        if self._left < self._limit:
            asyncio.get_running_loop().call_soon(self._next)
        else:
            self._left = -1
