"""Where workers are found: addresses that are given, and names that are resolved."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_DNS_PREFIX = "dns:"


class HostAndPort(NamedTuple):
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class DnsName:
    """All addresses of `host` are workers."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Sources:
    static: tuple[str, ...]
    names: tuple[DnsName, ...]


def parse_sources(values: Sequence[str]) -> Sources:
    """Read the values of --workers. Raises ValueError with a sentence that names the value at fault."""
    if not values:
        raise ValueError("--workers: at least one address is needed, got none")
    static, names = [], []
    for value in values:
        address = value.removeprefix(_DNS_PREFIX)
        host, port = host_and_port("--workers", address)
        if address == value:
            static.append(address)
        else:
            names.append(DnsName(host, port))
    return Sources(tuple(dict.fromkeys(static)), tuple(dict.fromkeys(names)))


def host_and_port(option: str, address: str, *, least_port: int = 1) -> HostAndPort:
    """Take host:port apart. Raises ValueError with a sentence that names the option and the value."""
    host, separator, port = address.rpartition(":")
    if not separator or not host or not port.isdecimal() or not least_port <= int(port) <= 65535:
        raise ValueError(f"{option}: must be host:port with a port from {least_port} to 65535, got {address!r}")
    return HostAndPort(host.strip("[]"), int(port))


async def resolve(name: DnsName) -> list[str]:
    """The host:port of each address behind a name. Raises OSError when it does not resolve."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    hosts = dict.fromkeys(str(address[0]) for _, _, _, _, address in found)
    return [f"[{host}]:{name.port}" if ":" in host else f"{host}:{name.port}" for host in hosts]
