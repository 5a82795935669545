"""Looking up by name in a store that may be away: at most one question a name at a time, and answers that are kept.

A lookup goes on when whoever asked first has left: others may be waiting for it, and it is short.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

from inferway.errors import ApiError, Reason

from ..core.remembered import Remembered

T = TypeVar("T")

# Names are kept by the ten thousand at some hundred bytes each.
_MOST = 20_000
_FRESH_S = 60.0
# Without word of changes, an answer is good for the moment only: a change must be in force within a second.
_UNTOLD_S = 1.0
_ABSENT_S = 5.0
_OLDEST_S = 3600.0
_RETRY_AFTER_S = 1.0


class Away(Exception):
    """The store did not answer, or not in time."""


@dataclass(frozen=True, slots=True)
class _Found(Generic[T]):
    """What a question has led to; `is_away`: to nothing."""

    value: T | None = None
    is_away: bool = False


class Lookups(Generic[T]):
    """`is_told` says whether changes are heard of at this moment; whoever hears of one calls `forget`."""

    def __init__(self, fetch: Callable[[str], Awaitable[T | None]], is_told: Callable[[], bool]) -> None:
        """`fetch` asks the store, in bounded time, and raises Away."""
        self._fetch = fetch
        self._is_told = is_told
        self._kept = Remembered[T](most=_MOST, fresh_s=_FRESH_S, absent_s=_ABSENT_S, oldest_s=_OLDEST_S)
        self._flights: dict[str, asyncio.Task[_Found[T]]] = {}
        # Changes heard of so far: an answer that was under way meanwhile may be older than they are.
        self._changes = 0

    async def get(self, name: str) -> T | None:
        """What there is under a name. Raises ApiError (AUTH_UNAVAILABLE) where that cannot be found out."""
        known = self._kept.get(name, now=time.monotonic(), trust_s=inf if self._is_told() else _UNTOLD_S)
        if known is not None and known.is_fresh:
            return known.value
        flight = self._flights.get(name)
        if flight is None:
            flight = self._flights[name] = asyncio.create_task(self._ask(name))
            flight.add_done_callback(lambda _: self._flights.pop(name, None))
        found = await asyncio.shield(flight)
        if not found.is_away:
            return found.value
        # Asked again: it may have been forgotten meanwhile.
        known = self._kept.get(name, now=time.monotonic())
        if known is not None and known.value is not None:
            return known.value
        message = "It cannot be found out at the moment whether this key is valid; try again."
        raise ApiError(Reason.AUTH_UNAVAILABLE, message, retry_after_s=_RETRY_AFTER_S)

    def forget(self, name: str) -> None:
        """It has changed."""
        self._changes += 1
        self._kept.forget(name)

    def doubt(self) -> None:
        """Changes may have been missed."""
        self._changes += 1
        self._kept.doubt()

    async def close(self) -> None:
        """Wait for the questions that are under way."""
        await asyncio.gather(*self._flights.values(), return_exceptions=True)

    async def _ask(self, name: str) -> _Found[T]:
        changes = self._changes
        try:
            value = await self._fetch(name)
        except Away:
            return _Found(is_away=True)
        if changes == self._changes:
            self._kept.put(name, value, now=time.monotonic())
        return _Found(value)
