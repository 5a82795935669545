"""The listening sockets, for clients and for admins: new ones, or those that the parent process has passed on."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import socket
from collections.abc import Callable
from typing import Any

from inferway import logs, net

from .config import Config

log = logging.getLogger(__name__)

BACKLOG = 4096
# What waits is taken at once, but leaves some to the other processes of a gateway.
_ACCEPTS_A_TURN = 64
_OUT_OF_FILES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_S = 1.0


def open_listener(config: Config) -> socket.socket:
    """Raises CannotListen."""
    if config.listen_fd is not None:
        return socket.socket(fileno=config.listen_fd)
    _allow_many_connections()
    listener = net.bind(config.listen, backlog=BACKLOG)
    # Accepted sockets inherit it: what a client does not read waits here, where it is counted, not in the kernel.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.coalesce_bytes)
    return listener


def open_admin_listener(config: Config) -> socket.socket | None:
    """None where no such port is asked for. Raises CannotListen."""
    if config.admin_listen_fd is not None:
        return socket.socket(fileno=config.admin_listen_fd)
    return net.bind(config.admin_listen) if config.admin_listen else None


def shown_addresses(listener: socket.socket, admin_listener: socket.socket | None) -> dict[str, Any]:
    """As the line in the log says them; health and metrics are on the port for clients."""
    address = net.shown(listener)
    addresses = {"address": address, "ops_address": address}
    return addresses if admin_listener is None else {**addresses, "admin_address": net.shown(admin_listener)}


class Acceptor:
    """Gives each connection that arrives at a listening socket to a protocol that `new_protocol` makes.

    uvloop's own servers accept one connection in a turn of the loop (libuv/libuv#3696). In a gateway that streams,
    whose turns are long, a probe would wait for seconds behind a burst of new clients.
    """

    def __init__(
        self, listener: socket.socket, new_protocol: Callable[[], asyncio.Protocol], *, pause_s: float = _PAUSE_S
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._new_protocol = new_protocol
        self._pause_s = pause_s
        # Of connections that are being opened: the loop itself keeps no hold on them.
        self._opening: set[asyncio.Task[Any]] = set()
        self._pause: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._pause = None
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._loop.add_reader(self._listener, self._accept)

    def stop(self) -> None:
        """What waits in the backlog is left to whoever else listens there."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listener)

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                connection, _ = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FILES:
                    raise
                logs.event(log, "accept_failed", level=logging.ERROR, error=repr(error), again_in_s=self._pause_s)
                self._loop.remove_reader(self._listener)
                self._pause = self._loop.call_later(self._pause_s, self.start)
                return
            connection.setblocking(False)
            opening = self._loop.create_task(self._open(connection))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)

    async def _open(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._new_protocol, connection)
        except OSError:  # the client has gone already
            connection.close()


def _allow_many_connections() -> None:
    """Raise the soft limit on open files to the hard one: a connection is a file. Child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems say "unlimited" and mean less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
