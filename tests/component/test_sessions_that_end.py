"""Sessions of a gateway that break at the moment in which their process stops."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.router_client import RouterClient
from gateway.worker_sessions import WorkerSession
from inferway.grpc_util import InternalToken
from tests.support import router_harness, worker_harness

Session = RouterClient | WorkerSession


@asynccontextmanager
async def to_a_router(called: Callable[..., None], _tmp_path: Path) -> AsyncIterator[Session]:
    async with router_harness.router("127.0.0.1:1") as app:
        yield RouterClient(app.address, "g", InternalToken(), called, lambda _: None)


@asynccontextmanager
async def to_a_worker(called: Callable[..., None], tmp_path: Path) -> AsyncIterator[Session]:
    async with worker_harness.running(tmp_path) as mesh:
        yield WorkerSession(mesh.app.address, "g", InternalToken(), called)


@pytest.mark.parametrize("session_to", [to_a_router, to_a_worker])
async def test_the_end_is_not_lost_in_a_break(session_to: Any, tmp_path: Path) -> None:
    """A task group of Python 3.11 that is cancelled while one of its tasks fails tells of the failure alone."""

    def breaks(*_: Any) -> None:
        if session.connected:
            running.cancel()
            raise asyncio.InvalidStateError  # what a call says that is read after its end

    async with session_to(breaks, tmp_path) as session:
        running = asyncio.create_task(session.run())
        done, _ = await asyncio.wait({running}, timeout=10)
        running.cancel()
        assert done
        assert running.cancelled()
