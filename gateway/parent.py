"""The parent of several gateway processes: owns the listening sockets, starts children by exec, and never serves.

Children share the sockets, one directory of metrics, so that any of them answers for all, and the secrets, which one
that starts after a rotation would otherwise derive differently. A child that dies is replaced, one that hangs is killed
first; a signal to the parent reaches all, and so does its death: what it leaves behind would hold the port against its
successor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Mapping, Sequence

from inferway import logs, metrics
from inferway.grpc_util import InternalToken
from inferway.lifecycle import StopSignals, follow_log_level, unless
from inferway.service import CANNOT_START, STOPPED, CannotStart
from inferway.tether import tethered

from .admin.credentials import admin_credentials
from .config import CACHE_SECRET_VARIABLE, KEY_SECRET_VARIABLE, Config
from .directory.access import tenants_file
from .listener import open_admin_listener, open_listener, shown_addresses
from .metrics import DIED, STALLED
from .pulse import BEAT_S, Pulse
from .shared_secrets import cache_secret, key_secret

log = logging.getLogger(__name__)

# A child that cannot stay up is not started again faster than this.
_RESTART_S = 1.0
# Beyond its drain a child may take the first of these, and after it is told again the other: together less than the
# 20 s that the chart leaves beside the drain.
_OVERDUE_S, _CLOSE_S = 5.0, 10.0


class Parent:
    """`listen`, `serve` and `close` are called in this order; `close` always."""

    def __init__(self, config: Config, argv: Sequence[str]) -> None:
        """`argv` are the gateway's own flags. Raises CannotStart."""
        self._config = config
        self._argv = argv
        token = InternalToken(config.internal_token, config.internal_token_file)
        self._secrets = {
            CACHE_SECRET_VARIABLE: str(cache_secret(config, token)),
            KEY_SECRET_VARIABLE: str(key_secret(config, token)),
        }
        # Only to refuse what the children would: each reads them itself.
        admin_credentials(config)
        tenants_file(config, b"")
        self._listener: socket.socket | None = None
        self._admin_listener: socket.socket | None = None
        self._children: set[asyncio.subprocess.Process] = set()
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._status = STOPPED

    async def listen(self) -> None:
        """Raises CannotListen and CannotStart."""
        try:
            self._directory = tempfile.TemporaryDirectory(prefix="inferway-gateway-metrics-")
        except OSError as error:
            message = "--processes: their metrics need a folder for temporary files; name one with TMPDIR"
            raise CannotStart(f"{message}: {error.strerror or error}") from error
        self._listener = open_listener(self._config)
        self._admin_listener = open_admin_listener(self._config)
        logs.event(log, "listening", **shown_addresses(self._listener, self._admin_listener))

    async def serve(self, signals: StopSignals) -> int:
        """Keep the children alive until it is asked to stop; then let them drain.

        Ends by itself with CANNOT_START where a child cannot start, for a reason that it has told, and none serves.
        """
        assert self._listener is not None, "listen first"
        assert self._directory is not None, "listen first"
        inherited = {"--listen-fd": self._listener.fileno()}
        if self._admin_listener is not None:
            inherited["--admin-listen-fd"] = self._admin_listener.fileno()
        follow_log_level("gateway", self._config.log_level, also=self._tell_children)
        directory = self._directory.name
        environ = {**os.environ, **self._secrets, metrics.MULTIPROC_DIR: directory}
        async with asyncio.TaskGroup() as group:
            for slot in range(self._config.processes):
                group.create_task(self._keep(slot, inherited, environ, directory, signals))
        logs.event(log, "closed")
        return self._status

    async def close(self) -> None:
        for listener in (self._listener, self._admin_listener):
            if listener is not None:
                listener.close()
        if self._directory is not None:
            self._directory.cleanup()

    async def _keep(
        self,
        slot: int,
        inherited: Mapping[str, int],
        environ: Mapping[str, str],
        directory: str,
        signals: StopSignals,
    ) -> None:
        """`inherited` has the sockets' numbers by the flags that name them."""
        environ = {**environ, metrics.MULTIPROC_SLOT: str(slot)}
        follows = ""
        while not signals.stop.is_set():
            pulse = Pulse(self._config.process_stall_s)
            given = {**inherited, "--pulse-fd": pulse.child_fd}
            flags = [word for flag, number in given.items() for word in (flag, str(number))]
            child = await asyncio.create_subprocess_exec(
                *tethered([sys.executable, "-m", "gateway", *self._argv, *flags, "--follows", follows]),
                pass_fds=list(given.values()),
                env=environ,
            )
            pulse.child_has_it()
            self._children.add(child)
            if not await unless(signals.stop, self._watch(child, pulse)):
                await self._end(child, signals)
            pulse.close()
            follows = STALLED if pulse.has_stalled else DIED
            self._children.discard(child)
            metrics.forget_process(slot, directory)
            if not signals.stop.is_set():
                status = child.returncode
                logs.event(log, "process_died", pid=child.pid, exit_status=status, level=logging.WARNING)
                if status == CANNOT_START and not self._children:
                    # Whoever supervises this process is to see that it does not serve.
                    self._status = CANNOT_START
                    signals.stop.set()
                    return
                await unless(signals.stop, asyncio.sleep(_RESTART_S))

    async def _watch(self, child: asyncio.subprocess.Process, pulse: Pulse) -> None:
        """Until it has ended, of itself or because it hung."""
        ended = asyncio.ensure_future(child.wait())
        try:
            while not ended.done():
                await asyncio.wait({ended}, timeout=BEAT_S)
                if pulse.listen() and not ended.done():
                    silent_s = self._config.process_stall_s
                    logs.event(log, "process_stalled", pid=child.pid, silent_s=silent_s, level=logging.ERROR)
                    child.kill()
                    await ended
        finally:
            ended.cancel()

    async def _end(self, child: asyncio.subprocess.Process, signals: StopSignals) -> None:
        """Let it drain and close. One that hangs is killed: it would hold up this process, and the port after it."""
        drain_s = self._config.drain_delay_s + self._config.drain_limit_s
        ended, told = asyncio.ensure_future(child.wait()), asyncio.ensure_future(signals.stop_now.wait())
        child.terminate()
        await asyncio.wait({ended, told}, timeout=drain_s + _OVERDUE_S, return_when=asyncio.FIRST_COMPLETED)
        told.cancel()
        if not ended.done():
            child.terminate()  # the second one means: at once
            await asyncio.wait({ended}, timeout=_CLOSE_S)
        if not ended.done():
            logs.event(log, "process_killed", pid=child.pid, level=logging.ERROR)
            child.kill()
        await ended

    def _tell_children(self, number: int) -> None:
        for child in self._children:
            if child.returncode is None:
                child.send_signal(number)
