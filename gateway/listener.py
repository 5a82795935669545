"""The listening sockets, for clients and for admins: new ones, or those that the parent process has passed on."""

from __future__ import annotations

import contextlib
import resource
import socket
from typing import Any

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


def _allow_many_connections() -> None:
    """Raise the soft limit on open files to the hard one: a connection is a file. Child processes inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # some systems say "unlimited" and mean less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
