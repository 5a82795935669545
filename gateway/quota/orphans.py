"""Books what workers have produced for gateways that died before they had booked it themselves.

A worker offers what it has when the session of a gateway has broken. That gateway may live and have lost no more than
a connection: then it books its requests itself, and knows best. So an orphan waits here until its gateway has been
silent for long enough to be dead, or its reservation is found settled. Who says nothing is asked again, or another is.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Protocol

from inferway import logs

from ..core.quota.note import Note, decode_note
from ..worker_messages import Orphan
from ..worker_sessions import WorkerSession
from .settling import Settling
from .wire import StoreAway

log = logging.getLogger(__name__)

_LOOK_EVERY_S = 1.0
# Its client may have had all of the answer or none: nobody is left who knows.
_OUTCOME = "gateway_lost"


class Registry(Protocol):
    async def is_living(self, gateway_id: str) -> bool:
        """Whether a gateway has been heard of lately. Raises StoreAway."""

    async def is_settled(self, tenant_id: str, reservation_id: str) -> bool:
        """Raises StoreAway."""


class OrphanBooking:
    """`offered` is told of them, `run` books them."""

    def __init__(self, gateway_id: str, registry: Registry, settling: Settling) -> None:
        self._gateway_id = gateway_id
        self._registry = registry
        self._settling = settling
        self._waiting: dict[str, tuple[WorkerSession, Orphan, Note]] = {}

    def offered(self, session: WorkerSession, orphans: Sequence[Orphan]) -> None:
        for orphan in orphans:
            if orphan.gateway_id == self._gateway_id:
                # Of a session of our own that broke: what it produced is booked with its request.
                session.orphans_booked([orphan.orphan_id])
                continue
            try:
                note = decode_note(orphan.settlement)
            except ValueError:
                logs.event(log, "orphan_unreadable", level=logging.ERROR, gateway_id=orphan.gateway_id)
                session.orphans_booked([orphan.orphan_id])
                continue
            self._waiting[orphan.part] = session, orphan, note

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            for part, (session, orphan, note) in list(self._waiting.items()):
                entry = note.entry
                try:
                    is_dead = not await self._registry.is_living(orphan.gateway_id)
                    if not is_dead and not await self._registry.is_settled(entry.tenant, entry.reservation_id):
                        continue
                except StoreAway:
                    break
                del self._waiting[part]
                if is_dead:
                    self._book(session, orphan, note)
                else:
                    session.orphans_booked([orphan.orphan_id])

    def _book(self, session: WorkerSession, orphan: Orphan, note: Note) -> None:
        settlement = note.settlement(
            orphan.usage,
            part=orphan.part,
            outcome=_OUTCOME,
            worker=session.worker_id,
            age_ms=orphan.age_ms,
        )
        logs.event(log, "orphan_booked", request_id=note.entry.request_id, gateway_id=orphan.gateway_id)
        self._settling.book(note.entry.tenant, settlement, lambda: session.orphans_booked([orphan.orphan_id]))
