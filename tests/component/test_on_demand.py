"""A model whose workers come when it is asked for: requests wait without any, are counted, and end in time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.asleep import asleep
from tests.support.client import send
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


async def test_requests_wait_for_the_first_worker(tmp_path: Path) -> None:
    """Without a worker the gateway takes requests, which wait, over a restart of the router, and are all served."""
    with asleep(tmp_path, "--drain-delay-s", "0", "--drain-limit-s", "0.5") as mesh:
        await until(mesh.is_ready, what="the gateway takes requests")
        listed = (await send(mesh.gateway.address, "GET /v1/models")).json["data"]
        assert {one["id"]: one["alias_of"] for one in listed} == {"m-text": [], "late": [], "chat": ["m-text"]}
        for one in listed:
            assert (await send(mesh.gateway.address, f"GET /v1/models/{one['id']}")).json == one
        asks = [asyncio.create_task(mesh.ask(stream=stream)) for stream in (False, True, True)]
        asks += [asyncio.create_task(mesh.ask(model="chat"))]
        gone = asyncio.create_task(mesh.ask())
        await until(lambda: mesh.waiting() == 5, what="all are waiting")
        gone.cancel()
        await until(lambda: mesh.waiting() == 4, what="one has left")
        # What is not said to come by itself is refused at once, what does not come in time then; both may be repeated.
        for model, stream in (("away", False), ("late", False), ("late", True)):
            refused = await mesh.ask(model=model, stream=stream)
            assert (refused.status, refused.error["code"]) == (503, "model_not_ready")
            assert int(refused.headers["Retry-After"]) >= 1
        assert 'inferway_gateway_requests_total{model="late",outcome="model_not_ready"} 2.0' in mesh.metrics()

        await asyncio.to_thread(mesh.router.kill)
        with await asyncio.to_thread(mesh.start_router_again):
            assert mesh.waiting() == 4
            with mesh.worker():
                answers = await asyncio.gather(*asks)
                assert [answer.status for answer in answers] == [200] * 4
                assert mesh.waiting() == 0
                listed = (await send(mesh.gateway.address, "GET /v1/models")).json["data"]
                assert {"chat", "m-text"} <= {one["id"] for one in listed if one["max_model_len"]}
                assert {one["id"] for one in listed if not one["max_model_len"]} == {"late"}
                assert mesh.is_ready()
            # Its worker has gone again, and who asks waits again.
            again = asyncio.create_task(mesh.ask())
            await until(lambda: mesh.waiting() == 1, what="it waits")
            assert mesh.is_ready()
            # A gateway that has to leave meanwhile says so.
            mesh.gateway.popen.terminate()
            left = await again
            assert (left.status, left.error["code"]) == (503, "shutting_down")
            assert await asyncio.to_thread(mesh.gateway.popen.wait, 10) == 0
