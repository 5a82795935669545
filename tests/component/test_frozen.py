"""A router that no longer answers though its connections stand; tests/component/test_failures.py has a worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.support.client import send
from tests.support.probes import http_json, http_text
from tests.support.processes import Mesh, Process
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}


@contextmanager
def frozen(process: Process) -> Iterator[None]:
    process.popen.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.popen.send_signal(signal.SIGCONT)


def _has_decided(router: Process) -> bool:
    return "inferway_router_decisions_total{" in http_text(f"http://{router.ops_address}/metrics")


@pytest.mark.parametrize("routers", [1, 2])
async def test_a_router(routers: int) -> None:
    """What waits in it goes elsewhere within ten seconds or so, the next requests at once; it is used again after."""
    with Mesh(num_routers=routers) as mesh:
        ready = f"http://{mesh.gateway.address}/health/ready"

        async def answered() -> bool:
            return (await send(mesh.gateway.address, "POST /v1/chat/completions", body=ASK)).status == 200

        assert await answered()
        (asked,) = filter(_has_decided, mesh.routers)
        with frozen(asked):
            for _ in range(3):
                assert await answered()
            assert [event["waiting"] for event in mesh.gateway.events("tickets_resubmitted")] == [1]
            assert len(http_json(ready)[1]["routers"]) == routers - 1
        await until(lambda: len(http_json(ready)[1]["routers"]) == routers, 20, "the router is met again")
