"""The endpoint that tells how a tenant stands: what is used now of each of its bounds, those of its keys included."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..core.quota.calls import Standing
from ..core.quota.policy import UNITS_A_TOKEN, Bound, Quota, QuotaPolicy
from .calls import Call, Handler, Result, not_found
from .sources import Sources

# What is used of the bounds of a tenant, in their order.
Books = Callable[[str, Sequence[Bound]], Awaitable[Sequence[Standing]]]


class StandingEndpoints:
    def __init__(self, sources: Sources, books: Books | None) -> None:
        self._sources = sources
        self._books = books

    def handlers(self) -> Mapping[str, Handler]:
        return {"standings": self._standings}

    async def _standings(self, call: Call) -> Result:
        tenant = await self._sources.tenant(call.places["tenant"])
        if self._books is None:
            raise not_found("store of quotas")
        documents = self._sources.documents
        keys = {caller.key_id: caller.quota.key for caller in self._sources.file().callers_of(tenant.id)}
        if documents is not None:
            keys |= {document.key_id: document.quota for document in await documents.keys(tenant.id)}
        bounds = all_bounds(tenant.fields.quota, tenant.fields.model_quotas, keys)
        standings = await self._books(tenant.id, bounds) if bounds else ()
        shown = [_shown(bound, standing) for bound, standing in zip(bounds, standings, strict=True)]
        return Result({"standings": shown})


def all_bounds(tenant: Quota, models: Mapping[str, Quota], keys: Mapping[str, Quota]) -> list[Bound]:
    """The tenant's own, those of its keys, those of its use of models."""
    bounds = [*QuotaPolicy(tenant=tenant).bounds("")]
    for key_id, quota in sorted(keys.items()):
        bounds += QuotaPolicy(key=quota).bounds(key_id)
    for pattern, quota in models.items():
        bounds += [replace(bound, scope=f"m:{pattern}") for bound in QuotaPolicy(tenant=quota).bounds("")]
    return bounds


def _shown(bound: Bound, standing: Standing) -> dict[str, Any]:
    """Tokens are weighted, with up to three decimal places."""
    unit = UNITS_A_TOKEN if bound.kind.counts_tokens else 1
    kind, _, name = bound.scope.partition(":")
    return {
        "scope": {"t": "tenant", "k": "key", "m": "model"}[kind],
        "name": name,
        "limit": bound.kind.field,
        "most": bound.most // unit,
        "used": standing.used / unit if unit > 1 else standing.used,
        "reset_ms": standing.reset_ms,
    }
