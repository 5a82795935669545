"""Calls that are about one thing travel together.

While a call for a name is under way, others for the same name gather, and go as one call when it has come back. Alone
a call waits for nothing; under load the store does one large piece of work instead of many that cost the same each.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from .wire import StoreAway

# Of one call: the store is busy with it for about a millisecond.
_MOST_AT_ONCE = 64


class _Waiting(NamedTuple):
    call: bytes
    answer: asyncio.Future[Any]


class Lanes:
    """A lane for each name. `send` answers several calls in their order, or raises StoreAway for all."""

    def __init__(self, send: Callable[[str, Sequence[bytes]], Awaitable[Sequence[Any]]]) -> None:
        self._send = send
        # Who waits, of the lanes that have a call under way.
        self._lanes: dict[str, list[_Waiting]] = {}
        self._group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Within this, calls can be made."""
        try:
            async with asyncio.TaskGroup() as self._group:
                yield
        finally:
            self._group = None
            for name in list(self._lanes):
                self._fail(name, StoreAway("connection"))

    async def call(self, name: str, call: bytes) -> Any:
        """Raises StoreAway; what gathers behind a call that fails fails with it, so that nobody waits twice."""
        if self._group is None:
            raise StoreAway("connection")
        waiting = self._lanes.get(name)
        if waiting is not None:
            answer = asyncio.get_running_loop().create_future()
            waiting.append(_Waiting(call, answer))
            return await answer
        self._lanes[name] = []
        try:
            (reply,) = await self._send(name, (call,))
        except StoreAway as error:
            self._fail(name, error)
            raise
        except BaseException:
            # Whoever was under way has gone; the others have not.
            self._go_on(name)
            raise
        self._go_on(name)
        return reply

    def _go_on(self, name: str) -> None:
        if self._lanes.get(name) and self._group is not None:
            self._group.create_task(self._empty(name))
        else:
            self._lanes.pop(name, None)

    async def _empty(self, name: str) -> None:
        waiting = self._lanes[name]
        while waiting:
            batch = [each for each in waiting[:_MOST_AT_ONCE] if not each.answer.done()]
            del waiting[:_MOST_AT_ONCE]
            if not batch:
                continue
            try:
                replies = await self._send(name, [each.call for each in batch])
            except StoreAway as error:
                waiting[:0] = batch
                self._fail(name, error)
                return
            for each, reply in zip(batch, replies, strict=True):
                if not each.answer.done():
                    each.answer.set_result(reply)
        self._lanes.pop(name, None)

    def _fail(self, name: str, error: StoreAway) -> None:
        for each in self._lanes.pop(name, ()):
            if not each.answer.done():
                each.answer.set_exception(type(error)(error.reason, in_doubt=error.in_doubt))
