"""The parent of several gateway processes: owns the listening socket, starts children by exec, and never serves.

Children share the socket and one directory of metrics, so that any of them answers for all. A child that dies is
replaced; a signal to the parent reaches all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Sequence

from inferway import logs, metrics

log = logging.getLogger(__name__)

# A child that cannot stay up is not started again faster than this.
_RESTART_S = 1.0


async def run(
    listener: socket.socket, processes: int, argv: Sequence[str], stop: asyncio.Event, stop_now: asyncio.Event
) -> None:
    """Keep `processes` children alive until `stop`; then let them drain. `argv` are the gateway's own flags."""
    with tempfile.TemporaryDirectory(prefix="inferway-gateway-metrics-") as directory:
        async with asyncio.TaskGroup() as group:
            for _ in range(processes):
                group.create_task(_keep(listener, argv, directory, stop, stop_now))


async def _keep(
    listener: socket.socket, argv: Sequence[str], directory: str, stop: asyncio.Event, stop_now: asyncio.Event
) -> None:
    while not stop.is_set():
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway",
            *argv,
            "--listen-fd",
            str(listener.fileno()),
            pass_fds=[listener.fileno()],
            env={**os.environ, metrics.MULTIPROC_DIR: directory},
        )
        await _until_exit_or(child, stop)
        if child.returncode is None:
            child.terminate()
            await _until_exit_or(child, stop_now)
            if child.returncode is None:
                child.terminate()  # the second one means: at once
            await child.wait()
        metrics.forget_process(child.pid, directory)
        if not stop.is_set():
            logs.event(
                log, "process died, restarting", pid=child.pid, exit_code=child.returncode, level=logging.WARNING
            )
            await asyncio.sleep(_RESTART_S)


async def _until_exit_or(child: asyncio.subprocess.Process, event: asyncio.Event) -> None:
    exited = asyncio.ensure_future(child.wait())
    signalled = asyncio.ensure_future(event.wait())
    await asyncio.wait({exited, signalled}, return_when=asyncio.FIRST_COMPLETED)
    for waiter in (exited, signalled):
        waiter.cancel()
