"""What Kubernetes says of a service's addresses: EndpointSlices (discovery.k8s.io/v1) as they are listed and watched.

    ready or serving                  USABLE    gets requests
    neither                           IDLE      gets none; what was known of it is kept
    terminating, whatever else        LEAVING   gets none, ever again: its identity is remembered

A service has several slices, an endpoint may move from one to another and for a moment be in both, and each family of
addresses has slices of its own. The identity is the uid of the pod; a pod that comes back has another one. `feed` is
given lists and events in the order in which they came, `endpoints` is what follows from all of them.

Cost: feed O(endpoints of the slices given), endpoints O(endpoints of the service).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import DecodeError, Meta, Raw, Struct
from msgspec.json import Decoder

# Pods that have been seen to leave; far more than can be on their way at one time.
_DEPARTED_LIMIT = 10_000
_GONE = 410
_FAMILIES = ("IPv4", "IPv6")
_SHOWN_CHARACTERS = 200


class BadAnswer(Exception):
    """The API server has answered with something that is of no use; says with what."""


class VersionGone(Exception):
    """The server does not remember the version that it was asked to go on from: list again."""


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Addresses (host:port) of one source or of several. Values are identities, empty where there is none."""

    usable: Mapping[str, str] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    leaving: Mapping[str, str] = field(default_factory=dict)

    def __contains__(self, address: str) -> bool:
        """Whether the address is listed at all."""
        return address in self.usable or address in self.idle or address in self.leaving


def merged(sources: Iterable[Endpoints]) -> Endpoints:
    """Each address once. One that leaves by one source is usable by another only under another identity."""
    usable: dict[str, str] = {}
    leaving: dict[str, str] = {}
    idle: set[str] = set()
    for source in sources:
        for address, identity in source.usable.items():
            usable[address] = identity or usable.get(address, "")
        leaving |= source.leaving
        idle |= source.idle
    for address, identity in leaving.items():
        if usable.get(address, "") in ("", identity):
            usable.pop(address, None)
    leaving = {address: identity for address, identity in leaving.items() if address not in usable}
    return Endpoints(usable, frozenset(idle - usable.keys() - leaving.keys()), leaving)


class Departed:
    """Identities that were seen to leave. Shared by the services of a router; the oldest are forgotten."""

    def __init__(self, limit: int = _DEPARTED_LIMIT) -> None:
        self._limit = limit
        self._identities: dict[str, None] = {}

    def add(self, identity: str) -> None:
        self._identities.pop(identity, None)
        self._identities[identity] = None
        if len(self._identities) > self._limit:
            del self._identities[next(iter(self._identities))]

    def __contains__(self, identity: str) -> bool:
        return identity in self._identities


class _Metadata(Struct, rename="camel"):
    name: str = ""
    resource_version: str = ""


class _Conditions(Struct, frozen=True):
    # None is unknown, which counts as ready; `serving` is then what `ready` is.
    ready: bool | None = None
    serving: bool | None = None
    terminating: bool | None = None


class _Target(Struct):
    uid: str = ""


class _Endpoint(Struct, rename="camel"):
    # All of them reach the same; the first is as good as any.
    addresses: Annotated[list[str], Meta(min_length=1)]
    conditions: _Conditions = _Conditions()
    target_ref: _Target | None = None

    @property
    def identity(self) -> str:
        return self.target_ref.uid if self.target_ref is not None else ""

    @property
    def is_usable(self) -> bool:
        return self.conditions.ready is not False or bool(self.conditions.serving)


class _Port(Struct):
    name: str | None = None
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None


class _Slice(Struct, rename="camel"):
    metadata: _Metadata
    address_type: str
    endpoints: list[_Endpoint] | None = None
    ports: list[_Port] | None = None


class _SliceList(Struct):
    metadata: _Metadata
    items: list[_Slice] | None = None


class _Event(Struct):
    type: str
    object: Raw


class _Bookmark(Struct):
    metadata: _Metadata


class _Status(Struct):
    code: int = 0
    message: str = ""


_list = Decoder(_SliceList)
_event = Decoder(_Event)
_slice = Decoder(_Slice)
_bookmark = Decoder(_Bookmark)
_status = Decoder(_Status)


class Slices:
    """The slices of one service. `port_name` empty: the only port that they have."""

    def __init__(self, port_name: str, departed: Departed) -> None:
        self._port_name = port_name
        self._departed = departed
        self._slices: dict[str, _Slice] = {}
        self._family = ""
        # The version to go on from; empty: list first.
        self.version = ""
        # What keeps endpoints from being used though they are listed.
        self.trouble = ""

    def feed_list(self, body: bytes) -> None:
        """All slices that there are. Raises BadAnswer, and then nothing has changed."""
        try:
            listed = _list.decode(body)
        except DecodeError as error:
            raise BadAnswer(f"not a list of EndpointSlices: {error}") from None
        slices = {item.metadata.name: _checked(item) for item in listed.items or ()}
        self._slices = slices
        self.version = listed.metadata.resource_version
        for item in slices.values():
            self._note_departures(item)

    def feed_event(self, line: bytes) -> None:
        """One line of a watch. Raises VersionGone and BadAnswer, and then nothing has changed."""
        try:
            event = _event.decode(line)
            match event.type:
                case "ADDED" | "MODIFIED":
                    item = _checked(_slice.decode(event.object))
                    self._slices[item.metadata.name] = item
                    self._note_departures(item)
                    metadata = item.metadata
                case "DELETED":
                    metadata = _slice.decode(event.object).metadata
                    self._slices.pop(metadata.name, None)
                case "BOOKMARK":
                    metadata = _bookmark.decode(event.object).metadata
                case "ERROR":
                    status = _status.decode(event.object)
                    if status.code == _GONE:
                        raise VersionGone
                    raise BadAnswer(said(status.code, bytes(event.object)))
                case _:
                    raise BadAnswer(f"an event of the type {event.type[:_SHOWN_CHARACTERS]!r}")
        except DecodeError as error:
            raise BadAnswer(f"not an event of a watch: {error}") from None
        self.version = metadata.resource_version or self.version

    def endpoints(self) -> Endpoints:
        """What is known now. Sets `trouble`."""
        usable: dict[str, str] = {}
        leaving: dict[str, str] = {}
        idle: set[str] = set()
        self.trouble = ""
        for item in self._of_one_family():
            port = self._port(item)
            for endpoint in item.endpoints or () if port is not None else ():
                host, identity = endpoint.addresses[0], endpoint.identity
                address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
                if endpoint.conditions.terminating or identity in self._departed:
                    leaving[address] = identity
                elif endpoint.is_usable:
                    usable[address] = identity
                else:
                    idle.add(address)
        return merged([Endpoints(usable, frozenset(idle), leaving)])

    def _of_one_family(self) -> Iterator[_Slice]:
        """Of a service with two families of addresses, the slices of one: each pod counts once.

        It is that of the first slice in the list with endpoints, for as long as there are slices of it.
        """
        slices = [item for item in self._slices.values() if item.address_type in _FAMILIES]
        if not any(item.address_type == self._family for item in slices):
            self._family = next((item.address_type for item in slices if item.endpoints), "")
        return (item for item in self._slices.values() if item.address_type == self._family)

    def _port(self, item: _Slice) -> int | None:
        if not item.endpoints:
            return None
        ports = [port for port in item.ports or () if port.port is not None]
        chosen = [port for port in ports if not self._port_name or port.name == self._port_name]
        if len(chosen) == 1:
            return chosen[0].port
        names = ", ".join(port.name or "one without a name" for port in ports) or "none"
        wanted = f"no port {self._port_name!r}" if self._port_name else "not one port"
        self.trouble = f"{wanted}; there are: {names}"
        return None

    def _note_departures(self, item: _Slice) -> None:
        for endpoint in item.endpoints or ():
            if endpoint.conditions.terminating and endpoint.identity:
                self._departed.add(endpoint.identity)


def said(code: int, body: bytes) -> str:
    """An answer that says no, in words: its status and, where it is one of Kubernetes', its message."""
    try:
        message = _status.decode(body).message
    except DecodeError:
        message = ""
    return f"{code} {message[:_SHOWN_CHARACTERS]}".strip()


def _checked(item: _Slice) -> _Slice:
    if item.address_type in _FAMILIES:
        for endpoint in item.endpoints or ():
            try:
                ipaddress.ip_address(endpoint.addresses[0])
            except ValueError:
                raise BadAnswer(f"{endpoint.addresses[0][:_SHOWN_CHARACTERS]!r} is no address") from None
    return item
