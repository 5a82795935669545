"""Where workers are found: addresses that are given, names that are resolved, services of Kubernetes."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from inferway.net import peer

_DNS_PREFIX = "dns:"
_KUBERNETES_PREFIX = "k8s:"
_LABEL = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SERVICE = re.compile(f"(?P<namespace>{_LABEL})/(?P<service>{_LABEL})(:(?P<port_name>{_LABEL}))?", re.ASCII)


@dataclass(frozen=True, slots=True)
class DnsName:
    """All addresses of `host` are workers."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class KubernetesService:
    """All endpoints of a service are workers, at its port of this name; empty: at the only one that it has."""

    namespace: str
    service: str
    port_name: str = ""

    def __str__(self) -> str:
        port = f":{self.port_name}" if self.port_name else ""
        return f"{_KUBERNETES_PREFIX}{self.namespace}/{self.service}{port}"


@dataclass(frozen=True, slots=True)
class Sources:
    static: tuple[str, ...]
    names: tuple[DnsName, ...]
    services: tuple[KubernetesService, ...] = ()


def source(value: str) -> str | DnsName | KubernetesService:
    """One value of --workers; a plain address stays as it is. Raises ValueError with what it must be."""
    if value.startswith(_KUBERNETES_PREFIX):
        match = _SERVICE.fullmatch(value.removeprefix(_KUBERNETES_PREFIX))
        if match is None:
            raise ValueError(
                f"must be {_KUBERNETES_PREFIX}NAMESPACE/SERVICE or {_KUBERNETES_PREFIX}NAMESPACE/SERVICE:PORT_NAME"
            )
        return KubernetesService(match["namespace"], match["service"], match["port_name"] or "")
    if value.startswith(_DNS_PREFIX):
        return DnsName(*peer(value.removeprefix(_DNS_PREFIX)))
    peer(value)
    return value


def parse_sources(values: Sequence[str]) -> Sources:
    """Sort the values of --workers, each of which `source` has accepted. What is given twice counts once."""
    found = list(dict.fromkeys(source(value) for value in values))
    return Sources(
        tuple(item for item in found if isinstance(item, str)),
        tuple(item for item in found if isinstance(item, DnsName)),
        tuple(item for item in found if isinstance(item, KubernetesService)),
    )


async def resolve(name: DnsName) -> list[str]:
    """The host:port of each address behind a name. Raises OSError when it does not resolve."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(name.host, name.port, type=socket.SOCK_STREAM)
    hosts = dict.fromkeys(str(address[0]) for _, _, _, _, address in found)
    return [f"[{host}]:{name.port}" if ":" in host else f"{host}:{name.port}" for host in hosts]
