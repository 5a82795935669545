"""Waiting for events, and giving up work when one comes."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from inferway.lifecycle import end_if_cancelled, unless, wait_for


async def test_wait_for_tells_whether_it_came() -> None:
    """True for an event that is set, False when the time has passed."""
    event = asyncio.Event()
    assert await wait_for(event, 0.0) is False
    event.set()
    assert await wait_for(event, 0.0) is True


async def test_work_that_is_done_in_time() -> None:
    """Work that ends before the event is done."""
    assert await unless(asyncio.Event(), asyncio.sleep(0)) is True


async def test_work_that_is_given_up() -> None:
    """When the event comes first, the work is cancelled and has ended by the time of the answer."""
    event, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        event.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    assert await unless(event, work()) is False
    assert ended.is_set()


async def test_work_that_fails() -> None:
    """What the work raises is raised."""

    async def work() -> None:
        raise OSError("no disk")

    with pytest.raises(OSError, match="no disk"):
        await unless(asyncio.Event(), work())


async def test_a_caller_that_leaves_takes_the_work_along() -> None:
    """Cancelling the wait cancels the work."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(unless(asyncio.Event(), work()))
    await begun.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert ended.is_set()


async def test_a_cancellation_that_somebody_kept_is_noticed() -> None:
    """Where a task was asked to end it ends, though the one that it waited for went on; else nothing happens."""

    async def keeps_it() -> str:
        end_if_cancelled()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        end_if_cancelled()
        return "went on"

    task = asyncio.create_task(keeps_it())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
