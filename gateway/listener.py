"""The listening socket for clients: a new one, or the one that the parent process has passed on."""

from __future__ import annotations

import contextlib
import resource
import socket

from inferway import net

from .config import Config

BACKLOG = 4096


def open_listener(config: Config) -> socket.socket:
    """Raises CannotListen."""
    if config.listen_fd is not None:
        return socket.socket(fileno=config.listen_fd)
    _allow_many_connections()
    listener = net.bind(config.listen, backlog=BACKLOG)
    # Accepted sockets inherit it: what a client does not read waits here, where it is counted, not in the kernel.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, config.coalesce_bytes)
    return listener


def _allow_many_connections() -> None:
    """Raise the soft limit on open files to the hard one: a connection is a file. Child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems say "unlimited" and mean less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
