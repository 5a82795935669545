"""Several generations that answer one request, one for each of its prompts; seen from outside they are one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

from inferway.errors import ApiError

from .core.sse import Usage
from .generation import Generation, Timing


class Running(Protocol):
    """What a handler knows of the generations behind its answer: start it, await the futures, always close it."""

    # Resolves with True at the first output, with False when a heartbeat is due before it.
    started: asyncio.Future[bool]
    # Resolves when every choice has finished.
    ended: asyncio.Future[None]
    # Resolves when everything that was produced is known, which is later than `close` where something was stopped.
    counted: asyncio.Future[Usage]

    @property
    def timing(self) -> Timing: ...
    @property
    def worker_id(self) -> str: ...
    @property
    def usage(self) -> Usage | None: ...
    def usage_so_far(self) -> Usage: ...
    def start(self) -> None: ...
    def fail(self, error: ApiError) -> None: ...
    def close(self) -> None: ...
    def settled(self) -> None: ...


class GenerationGroup:
    """Fails as soon as one of them does."""

    def __init__(self, generations: Sequence[Generation]) -> None:
        loop = asyncio.get_running_loop()
        self._generations = generations
        self._left = self._uncounted = len(generations)
        self.started: asyncio.Future[bool] = loop.create_future()
        self.ended: asyncio.Future[None] = loop.create_future()
        self.counted: asyncio.Future[Usage] = loop.create_future()
        for generation in generations:
            generation.started.add_done_callback(self._one_started)
            generation.ended.add_done_callback(self._one_ended)
            generation.counted.add_done_callback(self._one_counted)

    @property
    def timing(self) -> Timing:
        """Of the one that came first, stage by stage."""
        timings = [generation.timing for generation in self._generations]
        return Timing(
            queued=_earliest(timing.queued for timing in timings),
            dispatched=_earliest(timing.dispatched for timing in timings),
            first_token=_earliest(timing.first_token for timing in timings),
        )

    @property
    def worker_id(self) -> str:
        """Of the first prompt."""
        return self._generations[0].worker_id

    @property
    def usage(self) -> Usage | None:
        known = [generation.usage for generation in self._generations]
        return _sum([usage for usage in known if usage is not None]) if any(known) else None

    def usage_so_far(self) -> Usage:
        return _sum([generation.usage_so_far() for generation in self._generations])

    def start(self) -> None:
        for generation in self._generations:
            generation.start()

    def fail(self, error: ApiError) -> None:
        for generation in self._generations:
            generation.fail(error)

    def close(self) -> None:
        for generation in self._generations:
            generation.close()
        for future in (self.started, self.ended):
            if future.done() and not future.cancelled():
                future.exception()  # seen, whether or not the handler was still waiting
            else:
                future.cancel()

    def settled(self) -> None:
        for generation in self._generations:
            generation.settled()

    def _one_started(self, one: asyncio.Future[bool]) -> None:
        if self.started.done() or one.cancelled():
            return
        error = one.exception()
        if error is not None:
            self.started.set_exception(error)
        else:
            self.started.set_result(one.result())

    def _one_ended(self, one: asyncio.Future[None]) -> None:
        self._left -= 1
        if self.ended.done() or one.cancelled():
            return
        error = one.exception()
        if error is not None:
            self.ended.set_exception(error)
        elif not self._left:
            self.ended.set_result(None)

    def _one_counted(self, _: asyncio.Future[Usage]) -> None:
        self._uncounted -= 1
        if not self._uncounted and not self.counted.done():
            self.counted.set_result(_sum([generation.counted.result() for generation in self._generations]))


def _earliest(times: Iterable[float]) -> float:
    """0 = not reached."""
    return min((at for at in times if at), default=0.0)


def _sum(usages: Sequence[Usage]) -> Usage:
    return Usage(
        prompt_tokens=sum(usage.prompt_tokens for usage in usages),
        completion_tokens=sum(usage.completion_tokens for usage in usages),
        cached_tokens=sum(usage.cached_tokens for usage in usages),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in usages),
    )
