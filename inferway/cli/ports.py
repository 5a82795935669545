"""Which ports of this machine are free."""

from __future__ import annotations

import errno
import socket
from collections.abc import Mapping
from contextlib import ExitStack

from inferway.cli.core.local_mesh import LOOPBACK


class PortError(Exception):
    """The sentence for the caller."""


def free_ports(wanted: Mapping[str, int]) -> dict[str, int]:
    """The wanted port of each role where it is free, else another free one; all different.

    Nothing holds them afterwards: a program that starts in the same moment may still take one.
    """
    with ExitStack() as held:
        ports = {}
        for role, port in wanted.items():
            try:
                probe = held.enter_context(_bound(port))
            except OSError:
                probe = held.enter_context(_bound(0))
            ports[role] = probe.getsockname()[1]
        return ports


def require_port(port: int) -> int:
    """`port` itself, or a free one for 0; PortError when it cannot be had."""
    try:
        with _bound(port) as probe:
            chosen: int = probe.getsockname()[1]
            return chosen
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            what = f"port {port} is in use by another program: stop that one"
        elif error.errno == errno.EACCES:
            what = f"port {port} is reserved for the system administrator: use a port above 1023"
        else:
            what = f"port {port} cannot be used ({error.strerror}): free it"
        raise PortError(f"{what}, or choose another with --port (make run PORT=8001)") from error


def _bound(port: int) -> socket.socket:
    probe = socket.socket()
    try:
        # As servers do: a port whose last connections are still closing is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((LOOPBACK, port))
    except OSError:
        probe.close()
        raise
    return probe
