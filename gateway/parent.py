"""The parent of several gateway processes: owns the listening socket, starts children by exec, and never serves.

Children share the socket, one directory of metrics, so that any of them answers for all, and the cache secret, which
one that starts after a rotation would otherwise derive differently. A child that dies is replaced; a signal to the
parent reaches all, and so does its death: what it leaves behind would hold the port against its successor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence

from inferway import logs, metrics, net
from inferway.grpc_util import InternalToken
from inferway.lifecycle import StopSignals, follow_log_level, unless
from inferway.service import STOPPED
from inferway.tether import tethered

from .cache_secret import cache_secret
from .config import CACHE_SECRET_VARIABLE, Config
from .listener import open_listener

log = logging.getLogger(__name__)

# A child that cannot stay up is not started again faster than this.
_RESTART_S = 1.0


class Parent:
    """`listen`, `serve` and `close` are called in this order; `close` always."""

    def __init__(self, config: Config, argv: Sequence[str]) -> None:
        """`argv` are the gateway's own flags. Raises CannotStart."""
        self._config = config
        self._argv = argv
        self._secret = cache_secret(config, InternalToken(config.internal_token, config.internal_token_file))
        self._listener: socket.socket | None = None
        self._children: set[asyncio.subprocess.Process] = set()

    async def listen(self) -> None:
        """Raises CannotListen."""
        self._listener = open_listener(self._config)
        address = net.shown(self._listener)
        logs.event(log, "listening", address=address, ops_address=address)

    async def serve(self, signals: StopSignals) -> int:
        """Keep the children alive until it is asked to stop; then let them drain."""
        listener = self._listener
        assert listener is not None, "listen first"
        follow_log_level("gateway", self._config.log_level, also=self._tell_children)
        with tempfile.TemporaryDirectory(prefix="inferway-gateway-metrics-") as directory:
            environ = {**os.environ, metrics.MULTIPROC_DIR: directory, CACHE_SECRET_VARIABLE: str(self._secret)}
            async with asyncio.TaskGroup() as group:
                for slot in range(self._config.processes):
                    group.create_task(self._keep(slot, listener.fileno(), environ, directory, signals))
        logs.event(log, "closed")
        return STOPPED

    async def close(self) -> None:
        if self._listener is not None:
            self._listener.close()

    async def _keep(
        self, slot: int, listen_fd: int, environ: Mapping[str, str], directory: str, signals: StopSignals
    ) -> None:
        environ = {**environ, metrics.MULTIPROC_SLOT: str(slot)}
        while not signals.stop.is_set():
            child = await asyncio.create_subprocess_exec(
                *tethered([sys.executable, "-m", "gateway", *self._argv, "--listen-fd", str(listen_fd)]),
                pass_fds=[listen_fd],
                env=environ,
            )
            self._children.add(child)
            if not await unless(signals.stop, child.wait()):
                child.terminate()
                if not await unless(signals.stop_now, child.wait()):
                    child.terminate()  # the second one means: at once
                await child.wait()
            self._children.discard(child)
            metrics.forget_process(slot, directory)
            if not signals.stop.is_set():
                status = child.returncode
                logs.event(log, "process_died", pid=child.pid, exit_status=status, level=logging.WARNING)
                await unless(signals.stop, asyncio.sleep(_RESTART_S))

    def _tell_children(self, number: int) -> None:
        for child in self._children:
            if child.returncode is None:
                child.send_signal(number)
