"""The runtime with an engine that misbehaves."""

from __future__ import annotations

import asyncio
import time

from inferway.errors import Reason
from inferway.metrics import Registry
from worker.core.choice import Delta
from worker.engine import GenerateRequest, Sampling
from worker.engines.scripted.engine import ScriptedEngine
from worker.metrics import WorkerMetrics
from worker.runtime import Runtime
from worker.sessions import GatewaySession


class Trips(ScriptedEngine):
    """Fails on one request in a way that the seam rules out."""

    def generate(self, request: GenerateRequest) -> None:
        if request.request_id == "trip":
            raise RuntimeError("tripped")
        super().generate(request)


def generate(runtime: Runtime, session: GatewaySession, key: int, request_id: str) -> None:
    runtime.generate(session, key, GenerateRequest(0, request_id, "m-text", [1, 2, 3], Sampling(max_tokens=3)), [])


async def last(session: GatewaySession, key: int) -> Delta:
    async with asyncio.timeout(10):
        while True:
            await session.wake.wait()
            session.wake.clear()
            for taken, delta in session.outbox.take():
                if taken == key and (delta.finish_reason or delta.error):
                    return delta


async def test_an_engine_that_trips_over_a_request_fails_that_one() -> None:
    """The caller gets an internal error without its text, nothing is left of the request, and others are served."""
    runtime = Runtime(Trips(), "w", time.monotonic, WorkerMetrics(Registry("worker")))
    await runtime.start()
    session = runtime.open_session()
    generate(runtime, session, 1, "trip")
    error = (await last(session, 1)).error
    assert error is not None
    assert error.reason is Reason.INTERNAL_ERROR
    assert "tripped" not in error.message
    assert session.live == {}
    assert runtime.idle.is_set()
    generate(runtime, session, 2, "fine")
    assert (await last(session, 2)).error is None
    await runtime.close()
