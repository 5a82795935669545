"""Endpoints of blocks: who or what is refused on all gateways from this moment, until the block is taken away."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import Meta

from ..core.tenants import Name
from ..directory.documents import Block, key_subject, model_subject, tenant_subject
from ..in_flight import Selection
from .audit import AuditLog
from .calls import Call, Handler, Result, in_shape, not_found, shown_time
from .endpoints import NewBlock
from .running import Running
from .sources import Sources

# A key by its name, or the bearer of tokens: the name of their issuer, and the subject (core/issuers.py).
_Bearer = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}(:[^\x00-\x1f\x7f]{1,128})?\Z")]
_WHERE = "Blocks are kept in Redis, for all gateways"
# In this time every gateway that hears of changes has read the blocks anew.
_AGAIN_S = 0.5


class BlockEndpoints:
    def __init__(self, sources: Sources, running: Running, audit: AuditLog) -> None:
        self._sources = sources
        self._running = running
        self._audit = audit

    def handlers(self) -> Mapping[str, Handler]:
        kinds = ("tenant", "key", "model")
        put = {f"block_{kind}": self._put for kind in kinds}
        return {"list_blocks": self._list, **put, **{f"unblock_{kind}": self._delete for kind in kinds}}

    async def _list(self, call: Call) -> Result:
        documents = self._sources.documents
        blocks = await documents.blocks() if documents is not None else {}
        return Result({"blocks": [_shown(subject, block) for subject, block in sorted(blocks.items())]})

    async def _put(self, call: Call) -> Result:
        """Also for names that there are not (yet): who blocks in an emergency is not asked to spell tenants first."""
        asked = call.body
        assert isinstance(asked, NewBlock)
        documents = self._sources.store(_WHERE)
        subject, selection = _subject(call.places)
        after = {"reason": asked.reason, "kill": asked.kill}
        await self._audit.record(call.by, "block", subject, None, after)
        block = await documents.block(subject, asked.reason)
        shown: dict[str, Any] = _shown(subject, block)
        if asked.kill:
            first = await self._running.kill(selection)
            # What another gateway let in before it heard of the block.
            await asyncio.sleep(_AGAIN_S)
            last = await self._running.kill(selection)
            shown |= {"killed": first.killed + last.killed, "gateways": last.gateways, "silent": last.silent}
        return Result(shown)

    async def _delete(self, call: Call) -> Result:
        documents = self._sources.store(_WHERE)
        subject, _ = _subject(call.places)
        block = (await documents.blocks()).get(subject)
        if block is None:
            raise not_found(f"block of {subject}")
        await self._audit.record(call.by, "unblock", subject, {"reason": block.reason})
        await documents.unblock(subject)
        return Result(_shown(subject, block))


def _subject(places: Mapping[str, str]) -> tuple[str, Selection]:
    """The block's name, and the requests that it is about. Raises ApiError (400)."""
    if "model" in places:
        return model_subject(places["model"]), Selection(model=places["model"])
    tenant_id = in_shape(places["tenant"], Name, "tenant")
    if "key" not in places:
        return tenant_subject(tenant_id), Selection(tenant_id=tenant_id)
    key_id = in_shape(places["key"], _Bearer, "key")
    return key_subject(tenant_id, key_id), Selection(tenant_id=tenant_id, key_id=key_id)


def _shown(subject: str, block: Block) -> dict[str, Any]:
    kind, _, name = subject.partition(":")
    return {"kind": kind, "name": name, "since": shown_time(block.since_s), "reason": block.reason}
