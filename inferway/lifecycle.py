"""How a process waits and how it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from inferway import logs

log = logging.getLogger(__name__)

T = TypeVar("T")

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, slots=True)
class StopSignals:
    """`stop` asks to drain and end; `stop_now`, which comes after it, to end without draining."""

    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stop_now: asyncio.Event = field(default_factory=asyncio.Event)

    def listen(self) -> None:
        """Let the first SIGTERM or SIGINT of this process set `stop` and the second `stop_now`.

        A third has its default effect: nothing that hangs while it closes can hold the process. SIGHUP, the end of a
        terminal or what some send to have files read again, sets `stop`, unless it is ignored (nohup).
        """
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if not self.stop.is_set():
                self.stop.set()
                return
            self.stop_now.set()
            for number in _SIGNALS:
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_DFL)

        for number in _SIGNALS:
            loop.add_signal_handler(number, on_signal)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            loop.add_signal_handler(signal.SIGHUP, self.stop.set)

    def end(self) -> None:
        """Ignore them from now on: what has closed has its exit status, which none that comes late may change."""
        loop = asyncio.get_running_loop()
        for number in (*_SIGNALS, signal.SIGHUP):
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)


def end_if_cancelled() -> None:
    """Raise CancelledError where this task has been asked to end and was not told.

    For loops that call Redis, or that go on after the errors of a task group. Python 3.11 may keep a cancellation to
    itself in asyncio.wait_for, with which the client of Redis sends (python/cpython#86296), and in a TaskGroup whose
    tasks fail at the same moment. A loop that goes on then would hold the process up when it stops.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def follow_log_level(service: str, level: str, also: Callable[[int], None] | None = None) -> None:
    """Let SIGUSR1 set the log's level to debug and SIGUSR2 back to `level`, in the loop that runs.

    `also` is called with the signal, after that.
    """

    def on_signal(number: int, wanted: str) -> None:
        logs.set_level(service, wanted)
        # Shown whatever is in force.
        logs.event(log, "log_level", level=max(logging.WARNING, log.getEffectiveLevel()), log_level=wanted)
        if also is not None:
            also(number)

    loop = asyncio.get_running_loop()
    for number, wanted in ((signal.SIGUSR1, "debug"), (signal.SIGUSR2, level)):
        loop.add_signal_handler(number, on_signal, number, wanted)


async def wait_for(event: asyncio.Event, seconds: float) -> bool:
    """Whether `event` is set within this time."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True


async def unless(event: asyncio.Event, work: Coroutine[Any, Any, object]) -> bool:
    """Do `work` unless `event` is set before it is done: then it is cancelled, and the answer is False.

    Raises what `work` raises.
    """
    task, stopped = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        return False
    finally:
        for waiter in (task, stopped):
            waiter.cancel()
        await asyncio.wait({task, stopped})


async def gather_or_fail(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results, in order. The first failure cancels the others and is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
