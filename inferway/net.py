"""Addresses that a process listens on: how they are written, who can reach them, and taking hold of them."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable
from typing import NamedTuple

# A name, an IPv4 address, or an IPv6 address in brackets; then the port.
_ADDRESS = re.compile(r"(?P<host>[^\[\]:\s/]+|\[[^\[\]\s/]+\]):(?P<port>[0-9]{1,9})", re.ASCII)
# Connections that may wait to be accepted by a server of probes and scrapers.
_BACKLOG = 128


class HostAndPort(NamedTuple):
    """An IPv6 host is without its brackets."""

    host: str
    port: int


class CannotListen(Exception):
    """The sentence for the operator: which address cannot be had, and why."""


def host_and_port(address: str, *, least_port: int = 0) -> HostAndPort:
    """Take host:port apart. Raises ValueError with what it must be."""
    match = _ADDRESS.fullmatch(address)
    if match is None or not least_port <= int(match["port"]) <= 65535:
        raise ValueError(f"must be host:port with a port from {least_port} to 65535")
    return HostAndPort(match["host"].strip("[]"), int(match["port"]))


def peer(address: str) -> HostAndPort:
    """`host_and_port` for an address to connect to, where port 0 makes no sense."""
    return host_and_port(address, least_port=1)


def no_address_or(check: Callable[[str], object]) -> Callable[[str], object]:
    """The check of an address that may be left empty."""
    return lambda address: check(address) if address else None


def bind(address: str, *, backlog: int = _BACKLOG) -> socket.socket:
    """A socket that listens on host:port; port 0 picks a free one. Raises CannotListen."""
    try:
        target = host_and_port(address)
        family, _, _, _, resolved = socket.getaddrinfo(*target, type=socket.SOCK_STREAM)[0]
        return socket.create_server(resolved[:2], family=family, backlog=backlog)
    except ValueError as error:
        raise CannotListen(f"cannot listen on {address}: an address {error}") from error
    except OSError as error:
        raise CannotListen(f"cannot listen on {address}: {error.strerror}") from error


def shown(listener: socket.socket) -> str:
    """host:port of a socket as one would type it: an IPv6 host is in brackets."""
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(address: str) -> bool:
    """Whether host:port stays on this machine."""
    host = address.rsplit(":", 1)[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_exposure(address: str, *, authenticated: bool, insecure: bool) -> str | None:
    """The sentence with which a process refuses to start, or None: closed by default off loopback."""
    if is_loopback(address) or authenticated or insecure:
        return None
    return (
        f"refusing to listen on {address} without authentication: "
        "configure it, bind to 127.0.0.1, or pass --insecure to accept anyone who can connect"
    )
