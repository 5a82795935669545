"""Where workers are found: addresses that are given, and names that are resolved."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from inferway.net import HostAndPort, peer

_DNS_PREFIX = "dns:"


@dataclass(frozen=True, slots=True)
class DnsName:
    """All addresses of `host` are workers."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Sources:
    static: tuple[str, ...]
    names: tuple[DnsName, ...]


def worker_address(value: str) -> HostAndPort:
    """The address in one value of --workers. Raises ValueError with what it must be."""
    return peer(value.removeprefix(_DNS_PREFIX))


def parse_sources(values: Sequence[str]) -> Sources:
    """Sort the values of --workers, each of which `worker_address` has accepted."""
    static = [value for value in values if not value.startswith(_DNS_PREFIX)]
    names = [DnsName(*worker_address(value)) for value in values if value.startswith(_DNS_PREFIX)]
    return Sources(tuple(dict.fromkeys(static)), tuple(dict.fromkeys(names)))


async def resolve(name: DnsName) -> list[str]:
    """The host:port of each address behind a name. Raises OSError when it does not resolve."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    hosts = dict.fromkeys(str(address[0]) for _, _, _, _, address in found)
    return [f"[{host}]:{name.port}" if ":" in host else f"{host}:{name.port}" for host in hosts]
