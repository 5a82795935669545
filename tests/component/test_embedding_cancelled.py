"""An embedding whose caller leaves at a bad moment: the gateway's own parts."""

from __future__ import annotations

import asyncio
import time

from gateway.embedding import Embedding
from gateway.metrics import Metrics
from gateway.router_client import Ask
from gateway.routing import Routing
from gateway.worker_messages import EmbedSpec
from gateway.worker_sessions import WorkerSessions
from inferway.grpc_util import InternalToken
from inferway.metrics import Registry


async def test_the_caller_leaves_as_nobody_is_found() -> None:
    """Its end is not taken for the answer of the router, or the request would go on without a caller."""
    metrics, token = Metrics(Registry("gateway")), InternalToken()
    sessions = WorkerSessions("g", token, lambda: None, lambda *_: None)
    routing = Routing([], (), "g", token, sessions, metrics)
    ask = Ask("r", "m", "t", 5, 1, 0, (), 1, queue_deadline=time.monotonic())
    spec = EmbedSpec("r", "m", [[1]], None, 5, "")
    running = asyncio.create_task(Embedding(ask, spec, ask.queue_deadline + 60, routing, sessions, metrics).run())
    await asyncio.sleep(0)
    routing.place_parked()
    running.cancel()
    await asyncio.wait({running})
    assert running.cancelled()
