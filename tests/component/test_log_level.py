"""The level of the log is changed while processes run."""

from __future__ import annotations

import signal

from tests.support.client import send
from tests.support.processes import Mesh, Process
from tests.support.waiting import until

ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}


def levels(process: Process) -> list[str]:
    return [line["log_level"] for line in process.events("log_level")]


async def test_debug_and_back() -> None:
    """SIGUSR1 is debug and SIGUSR2 the level of the start, at a parent for its children as well; all serve on."""
    with Mesh(gateway_args=["--processes", "2"]) as mesh:
        router, gateway, worker = mesh.routers[0], mesh.gateway, mesh.workers[0]

        async def ask() -> None:
            assert (await send(gateway.address, "POST /v1/chat/completions", body=ASK)).status == 200

        await ask()
        assert router.events("decided") == []
        for process, lines in ((router, 1), (gateway, 3), (worker, 1)):
            process.popen.send_signal(signal.SIGUSR1)
            await until(lambda process=process, lines=lines: levels(process) == ["debug"] * lines, what="debug")
        await ask()
        await until(lambda: len(router.events("decided")) == 1, what="the decision is logged")
        router.popen.send_signal(signal.SIGUSR2)
        await until(lambda: levels(router) == ["debug", "info"], what="back at info")
        await ask()
        assert len(router.events("decided")) == 1
        for process, lines in ((gateway, 3), (worker, 1)):
            process.popen.send_signal(signal.SIGUSR2)
            back = ["debug"] * lines + ["info"] * lines
            await until(lambda process=process, back=back: levels(process) == back, what="back at info")
        await ask()
