"""Membership: which workers there are, and one task for each that keeps in touch with it.

    address appears -> CONNECTING --Describe, first report--> READY <-> DRAINING
                            ^                                   |
                            '------- reconnect, <= 1 s <--- LOST (its stream broke)

An address that vanishes from DNS, or from the endpoints of a Kubernetes service, is withdrawn (nothing new for it) and
dropped once it has no leases or is lost. One whose pod terminates is withdrawn at once, whoever else names it; one that
is not ready is withdrawn and kept. Another pod at the address of an earlier one is another member.
What an operator wants of a worker is told to the worker itself, which remembers it for routers that start later.
The pool owns connections and addresses; what is known of a worker's load lives in the dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, Protocol

import grpc

from inferway import logs
from inferway.grpc_util import InternalToken
from inferway.lifecycle import wait_for

from .core.endpoints import Endpoints, merged
from .core.messages import Report, WorkerInfo
from .kubernetes import EndpointWatch
from .sources import DnsName, Sources, resolve
from .worker_client import WorkerClient, WorkerContractError

log = logging.getLogger(__name__)

_RECONNECT_S = (0.05, 1.0)
_RESOLVE_INTERVAL_S = 3.0
# A worker without its first report is used after this time all the same.
_FIRST_REPORT_S = 1.0


class WorkerEvents(Protocol):
    """Who is told what happens to workers."""

    def worker_up(self, info: WorkerInfo, report: Report | None) -> None: ...
    def worker_report(self, worker_id: str, report: Report) -> None: ...
    def worker_lost(self, worker_id: str) -> None: ...
    def worker_down(self, worker_id: str) -> None: ...
    def withdraw(self, worker_id: str, withdrawn: bool) -> None: ...
    def has_leases(self, worker_id: str) -> bool: ...
    def drain(self, worker_id: str, drained: bool) -> None: ...
    def is_drained(self, worker_id: str) -> bool: ...

    def membership_changed(self) -> None:
        """An address has come or gone."""


class MemberView(NamedTuple):
    """An address and, once it has described itself, the worker behind it."""

    address: str
    worker_id: str | None


@dataclass(slots=True, eq=False)
class _Member:
    address: str
    client: WorkerClient
    # Of the pod that listens there; empty where it is not known.
    identity: str = ""
    task: asyncio.Task[None] | None = None
    # The worker that this address stands for; None before Describe and for a second address of a known worker.
    worker_id: str | None = None
    is_up: bool = False
    has_answered: bool = False
    is_wanted: bool = True
    # Whether a source still names it, wanted or not.
    is_listed: bool = True
    # Before the next attempt to reach it.
    pause_s: float = _RECONNECT_S[0]
    # What was last logged about it, so that a failure is told once and not at each attempt.
    trouble: str = ""

    def stands_for(self, info: WorkerInfo) -> bool:
        """Not so once another address has claimed the worker, before this one was up."""
        return self.worker_id == info.worker_id


class WorkerPool:
    """`run` keeps the pool going until it is cancelled."""

    def __init__(
        self,
        sources: Sources,
        token: InternalToken,
        router_id: str,
        events: WorkerEvents,
        rng: Random,
        *,
        watches: Sequence[EndpointWatch] = (),
        resolver: Callable[[DnsName], Awaitable[list[str]]] = resolve,
        resolve_interval_s: float = _RESOLVE_INTERVAL_S,
    ) -> None:
        """`watches` are those of `sources.services`."""
        self._sources = sources
        self._watches = watches
        self._token = token
        self._router_id = router_id
        self._events = events
        self._rng = rng
        self._resolver = resolver
        self._resolve_interval_s = resolve_interval_s
        self._members: dict[str, _Member] = {}
        self._resolved: dict[DnsName, tuple[str, ...]] = {}
        # A source knows something new.
        self._moved = asyncio.Event()
        self._trouble: dict[DnsName, str] = {}
        # Of operators, by worker id, and not told to the worker yet: whether it is taken out.
        self._orders: dict[str, bool] = {}

    def members(self) -> Iterator[MemberView]:
        for member in self._members.values():
            yield MemberView(member.address, member.worker_id)

    def unanswered(self) -> list[str]:
        """Names and services that nothing is known of, and addresses where no worker has been met since the start."""
        names = [name.host for name in self._sources.names if name not in self._resolved]
        services = [str(watch.service) for watch in self._watches if watch.endpoints is None]
        coming = [address for address in self._known().usable if address not in self._members]
        members = [member for member in self._members.values() if member.is_wanted and not member.has_answered]
        return names + services + coming + [member.address for member in members]

    def untried(self) -> list[str]:
        """Of those that are unanswered, the ones that have not failed yet either."""
        failed = {name.host for name, trouble in self._trouble.items() if trouble}
        failed |= {member.address for member in self._members.values() if member.trouble}
        return [name for name in self.unanswered() if name not in failed]

    async def cordon(self, worker_id: str, cordoned: bool) -> None:
        """Tell the worker that it is taken out, or back; one that is away hears it when it is met again."""
        self._orders[worker_id] = cordoned
        for member in list(self._members.values()):
            if member.is_up and member.worker_id == worker_id:
                await self._tell_order(member, worker_id)
                return

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._follow(group)
            if self._sources.names:
                group.create_task(self._keep_resolving(), name="names of workers")
            for watch in self._watches:
                group.create_task(watch.run(self._moved.set), name=str(watch.service))
            while self._sources.names or self._watches:
                await wait_for(self._moved, self._resolve_interval_s)
                self._moved.clear()
                self._follow(group)
                self._drop_unwanted()

    async def _keep_resolving(self) -> None:
        while True:
            for name in self._sources.names:
                await self._resolve(name)
            self._moved.set()
            await asyncio.sleep(self._resolve_interval_s)

    async def _resolve(self, name: DnsName) -> None:
        """A name that does not resolve keeps the addresses that it had: DNS going away takes no worker away."""
        trouble = ""
        try:
            # Sorted: name servers rotate their answers.
            addresses = tuple(sorted(await self._resolver(name)))
            if self._resolved.get(name) != addresses:
                self._resolved[name] = addresses
                self._events.membership_changed()
        except (OSError, UnicodeError) as error:
            trouble = getattr(error, "strerror", None) or "not a host name"
        if trouble != self._trouble.get(name, ""):
            if trouble:
                logs.event(log, "name_not_resolved", level=logging.WARNING, name=name.host, error=trouble)
            self._trouble[name] = trouble
            self._events.membership_changed()

    def _known(self) -> Endpoints:
        """What all sources say together."""
        given = [self._sources.static, *self._resolved.values()]
        known = [Endpoints(dict.fromkeys(addresses, "")) for addresses in given]
        return merged([*known, *(watch.current() for watch in self._watches)])

    def _follow(self, group: asyncio.TaskGroup) -> None:
        """Make the members those that the sources name."""
        known = self._known()
        for address, identity in known.usable.items():
            member = self._members.get(address)
            if member is not None and identity and member.identity not in ("", identity):
                self._drop(member)
                member = None
            if member is None:
                member = self._members[address] = _Member(address, WorkerClient(address, self._token), identity)
                member.task = group.create_task(self._keep_in_touch(member), name=f"worker {address}")
                logs.event(log, "worker_address_added", address=address)
                self._events.membership_changed()
            member.identity = identity or member.identity
            if not member.is_wanted:
                self._want(member, True)
        for address, member in self._members.items():
            member.is_listed = address in known
            if member.is_wanted and address not in known.usable:
                self._want(member, False)

    def _want(self, member: _Member, wanted: bool) -> None:
        member.is_wanted = wanted
        logs.event(log, "worker_address_back" if wanted else "worker_address_gone", address=member.address)
        if member.worker_id is not None:
            self._events.withdraw(member.worker_id, not wanted)

    def _drop_unwanted(self) -> None:
        for member in list(self._members.values()):
            busy = member.is_up and member.worker_id is not None and self._events.has_leases(member.worker_id)
            if not (member.is_listed or busy):
                self._drop(member)

    def _drop(self, member: _Member) -> None:
        del self._members[member.address]
        assert member.task is not None
        member.task.cancel()
        if member.worker_id is not None:
            self._events.worker_down(member.worker_id)
        logs.event(log, "worker_address_dropped", address=member.address, worker_id=member.worker_id)
        self._events.membership_changed()

    async def _keep_in_touch(self, member: _Member) -> None:
        client = member.client
        try:
            while True:
                try:
                    info = await client.describe(patient=bool(member.trouble) or member.has_answered)
                    if self._claim(member, info):
                        await self._agree(member, info)
                        await self._watch(client, member, info)
                        self._note_trouble(member, "the worker ended its stream")
                except grpc.aio.AioRpcError as error:
                    self._note_trouble(member, f"{error.code().name}: {error.details()}")
                except WorkerContractError as error:
                    self._note_trouble(member, f"its answer breaks the contract: {error}")
                except Exception:
                    log.exception("worker_task_failed", extra={"fields": {"address": member.address}})
                await asyncio.sleep(member.pause_s * self._rng.uniform(0.5, 1.0))
                member.pause_s = min(_RECONNECT_S[1], member.pause_s * 2)
        finally:
            await client.close()

    async def _agree(self, member: _Member, info: WorkerInfo) -> None:
        """Whether it is taken out. A router that has had no order learns from the worker, else it is the other way."""
        worker_id, is_drained = info.worker_id, self._events.is_drained(info.worker_id)
        if is_drained == info.is_cordoned:
            self._orders.pop(worker_id, None)
        elif is_drained or worker_id in self._orders:
            self._orders[worker_id] = is_drained
            await self._tell_order(member, worker_id)
        else:
            self._events.drain(worker_id, True)

    async def _tell_order(self, member: _Member, worker_id: str) -> None:
        order = self._orders[worker_id]
        try:
            await member.client.cordon(order)
        except grpc.aio.AioRpcError as error:
            # One of an earlier version remembers nothing.
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                logs.event(log, "cordon_not_told", level=logging.WARNING, worker_id=worker_id, error=error.details())
                return
        if self._orders.get(worker_id) is order:
            del self._orders[worker_id]

    async def _watch(self, client: WorkerClient, member: _Member, info: WorkerInfo) -> None:
        """Follow the reports of one incarnation until the stream ends or another answers."""
        timer = asyncio.get_running_loop().call_later(_FIRST_REPORT_S, self._up, member, info)
        try:
            async for report in client.watch(self._router_id):
                if report.instance_id != info.instance_id or not member.stands_for(info):
                    return
                models_changed = report.models_version != info.models_version
                if models_changed:
                    info = await client.describe()
                    if info.instance_id != report.instance_id:
                        return
                if models_changed or not member.is_up:
                    timer.cancel()
                    self._up(member, info, report)
                else:
                    self._events.worker_report(info.worker_id, report)
        except asyncio.CancelledError:
            # Dropped, or the router closes: nobody has lost the worker.
            member.is_up = False
            raise
        finally:
            timer.cancel()
            if member.is_up:
                member.is_up = False
                logs.event(log, "worker_lost", level=logging.WARNING, worker_id=info.worker_id, address=member.address)
                self._events.worker_lost(info.worker_id)

    def _up(self, member: _Member, info: WorkerInfo, report: Report | None = None) -> None:
        if not member.is_wanted or not member.stands_for(info):
            return
        member.is_up = True
        member.has_answered = True
        member.trouble = ""
        member.pause_s = _RECONNECT_S[0]
        logs.event(
            log,
            "worker_ready",
            worker_id=info.worker_id,
            instance_id=info.instance_id,
            address=info.address,
            models=list(info.models),
        )
        self._events.worker_up(info, report)

    def _claim(self, member: _Member, info: WorkerInfo) -> bool:
        """Whether the address may stand for the worker that answered there.

        Of two addresses with one worker_id the first keeps it as long as it is up: they are one process twice, or
        two that are misnamed.
        """
        for other in self._members.values():
            if other is member or other.worker_id != info.worker_id:
                continue
            if other.is_up:
                member.has_answered = True
                self._note_trouble(member, f"it calls itself {info.worker_id}, as {other.address} does; not used")
                return False
            other.worker_id = None
            if not other.is_wanted:
                # Its address has gone, the worker has not.
                self._events.withdraw(info.worker_id, False)
        if member.worker_id not in (None, info.worker_id):
            assert member.worker_id is not None
            self._events.worker_down(member.worker_id)
        member.worker_id = info.worker_id
        return True

    def _note_trouble(self, member: _Member, trouble: str) -> None:
        if trouble != member.trouble:
            member.trouble = trouble
            logs.event(log, "worker_trouble", level=logging.WARNING, address=member.address, trouble=trouble)
            self._events.membership_changed()
