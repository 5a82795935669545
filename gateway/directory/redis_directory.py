"""Keys, tenants and blocks of Redis as the gateway asks for them: remembered, and forgotten as soon as they change.

Redis is asked for a key only if it bears the mark that every key of ours has, which nobody can make without the key
secret: a flood of wrong keys costs one hash each and never gets further.

While Redis is away, keys and tenants that are known go on being served, for an hour at most, and whatever is not known
cannot be judged: that is said, and it is no 401. Blocks stay as they were last known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from inferway import logs
from inferway.lifecycle import end_if_cancelled

from ..core.tenants import Caller, TenantFields, caller_of
from .changes import Changes
from .documents import (
    AWAY_ERRORS,
    Block,
    Documents,
    KeyDocument,
    Unreadable,
    key_subject,
    model_subject,
    tenant_subject,
)
from .lookups import Away, Lookups

log = logging.getLogger(__name__)
T = TypeVar("T")

# Blocks are read again this often, whether or not a change was announced.
_BLOCKS_S = 10.0
# No request waits for them.
_BLOCKS_TIMEOUT_S = 1.0
# After a failure, lookups fail at once for this long instead of waiting for the same.
_AWAY_S = 1.0


@dataclass(slots=True)
class _Known:
    """A key, and who bears it as long as the tenant's document is the same."""

    document: KeyDocument
    _fields: TenantFields | None = None
    _caller: Caller | None = None

    def caller_by(self, fields: TenantFields) -> Caller:
        if self._caller is None or fields is not self._fields:
            self._fields = fields
            self._caller = caller_of(self.document.tenant, fields, self.document.key_id, self.document)
        return self._caller


class RedisDirectory:
    """`run` follows changes; without it nothing is taken for fresh."""

    def __init__(
        self,
        documents: Documents,
        changes: Changes,
        listed: Callable[[], Mapping[str, TenantFields]],
        timeout_s: float,
    ) -> None:
        """`listed` are the tenants of the file, which go before documents of the same names."""
        self._documents = documents
        self._changes = changes
        self._listed = listed
        self._timeout_s = timeout_s
        self._keys = Lookups(self._fetch_key, lambda: changes.is_listening)
        self._tenants = Lookups(self._fetch_tenant, lambda: changes.is_listening)
        self._blocks: Mapping[str, Block] = {}
        self._blocks_due = asyncio.Event()
        self._settled = asyncio.Event()
        self._away_until = 0.0
        changes.on("key", self._keys.forget)
        changes.on("tenant", self._tenants.forget)
        changes.on("blocks", lambda _: self._blocks_due.set())
        changes.on_missed(self._doubt)

    async def run(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._changes.run())
                group.create_task(self._follow_blocks())
        finally:
            await self._keys.close()
            await self._tenants.close()

    async def find(self, key: str) -> Caller | None:
        """The bearer of a key that is valid now. Raises ApiError (AUTH_UNAVAILABLE)."""
        if not self._documents.is_marked(key):
            return None
        known = await self._keys.get(self._documents.digest(key))
        if known is None or not known.document.is_valid(time.time()):
            return None
        fields = await self.tenant(known.document.tenant)
        return None if fields is None else known.caller_by(fields)

    async def tenant(self, tenant_id: str) -> TenantFields | None:
        """Of the file or of Redis. Raises ApiError (AUTH_UNAVAILABLE)."""
        return self._listed().get(tenant_id) or await self._tenants.get(tenant_id)

    async def settled(self) -> None:
        """Until Redis has been asked for blocks once: nobody is let in just because this process is new."""
        await self._settled.wait()

    def is_tenant_blocked(self, tenant_id: str) -> bool:
        return tenant_subject(tenant_id) in self._blocks

    def is_key_blocked(self, tenant_id: str, key_id: str) -> bool:
        return key_subject(tenant_id, key_id) in self._blocks

    def is_model_blocked(self, *names: str) -> bool:
        """By any of the names that it goes by."""
        return bool(self._blocks) and any(model_subject(name) in self._blocks for name in names)

    async def _fetch_key(self, digest: str) -> _Known | None:
        document = await self._reach(lambda: self._documents.key_by_digest(digest))
        return None if document is None else _Known(document)

    async def _fetch_tenant(self, tenant_id: str) -> TenantFields | None:
        return await self._reach(lambda: self._documents.tenant(tenant_id))

    async def _reach(self, call: Callable[[], Awaitable[T]]) -> T:
        """What Redis answers, in bounded time. Raises Away."""
        try:
            if time.monotonic() < self._away_until:
                raise Away
            async with asyncio.timeout(self._timeout_s):
                return await call()
        except Unreadable as error:
            logs.event(log, "document_unreadable", error=str(error), level=logging.ERROR)
            raise Away from error
        except AWAY_ERRORS as error:
            self._away_until = time.monotonic() + _AWAY_S
            fault = f"{type(error).__name__}: {error}"
            logs.event(log, "directory_away", error=fault, level=logging.WARNING)
            raise Away from error

    async def _follow_blocks(self) -> None:
        while True:
            self._blocks_due.clear()
            try:
                async with asyncio.timeout(_BLOCKS_TIMEOUT_S):
                    self._blocks = await self._documents.blocks()
                pause = _BLOCKS_S
            except AWAY_ERRORS:
                pause = _AWAY_S
            self._settled.set()
            end_if_cancelled()
            try:
                async with asyncio.timeout(pause):
                    await self._blocks_due.wait()
            except TimeoutError:
                continue

    def _doubt(self) -> None:
        self._keys.doubt()
        self._tenants.doubt()
        self._blocks_due.set()
