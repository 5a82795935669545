"""Endpoints of tenants: listed, made, changed, taken away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferway.errors import ApiError

from ..core.tenants import TenantFields
from ..directory.documents import Documents, Unreadable, tenant_subject
from .audit import AuditLog
from .calls import Call, Handler, Result, fields_of, in_shape, merged, not_found
from .endpoints import Page
from .sources import Sources, Tenant

# What stands for a document in the audit log that this version could not read.
UNREADABLE = "not understood"
# A tenant that is listed and has no document.
_HALF = "it is being made or deleted, or that broke off: put or delete it again"


class TenantEndpoints:
    def __init__(self, sources: Sources, audit: AuditLog) -> None:
        self._sources = sources
        self._audit = audit

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "list_tenants": self._list,
            "get_tenant": self._get,
            "put_tenant": self._put,
            "patch_tenant": self._patch,
            "delete_tenant": self._delete,
        }

    async def _list(self, call: Call) -> Result:
        page: Page = call.query
        ids = [one for one in await self._sources.tenant_ids() if one > page.after]
        shown: list[Mapping[str, Any]] = []
        for tenant_id in ids[: page.limit]:
            try:
                shown.append(_shown(await self._sources.tenant(tenant_id)))
            except Unreadable as error:
                shown.append({"id": tenant_id, "source": "redis", "unreadable": str(error)})
            except ApiError:
                shown.append({"id": tenant_id, "source": "redis", "unreadable": _HALF})
        return Result({"tenants": shown, "next": ids[page.limit - 1] if len(ids) > page.limit else None})

    async def _get(self, call: Call) -> Result:
        return Result(_shown(await self._sources.tenant(call.places["tenant"])))

    async def _put(self, call: Call) -> Result:
        tenant_id = call.places["tenant"]
        fields = call.body
        assert isinstance(fields, TenantFields)
        before = await self._before(self._sources.store_for(tenant_id), tenant_id)
        await self._write(call, tenant_id, before, fields)
        return Result(_shown(Tenant(tenant_id, "redis", fields)), 201 if before is None else 200)

    async def _patch(self, call: Call) -> Result:
        tenant_id = call.places["tenant"]
        old = (await self._sources.tenant(tenant_id)).fields
        before = fields_of(old, TenantFields)
        fields = in_shape(merged(before, call.body), TenantFields)
        self._sources.store_for(tenant_id)
        await self._write(call, tenant_id, before, fields)
        return Result(_shown(Tenant(tenant_id, "redis", fields)))

    async def _delete(self, call: Call) -> Result:
        tenant_id = call.places["tenant"]
        documents = self._sources.store_for(tenant_id)
        before = await self._before(documents, tenant_id)
        # Where deleting it broke off, keys are left that are to be revoked.
        if before is None and not await documents.is_listed(tenant_id):
            raise not_found(f"tenant '{tenant_id}'")
        await self._audit.record(call.by, "delete", tenant_subject(tenant_id), before)
        await documents.delete_tenant(tenant_id)
        return Result({"id": tenant_id, "deleted": True})

    async def _before(self, documents: Documents, tenant_id: str) -> Any:
        """What the audit log is told of a tenant that is to be replaced or deleted; None: there is none."""
        try:
            old = await documents.tenant(tenant_id)
        except Unreadable:
            return UNREADABLE
        return None if old is None else fields_of(old, TenantFields)

    async def _write(self, call: Call, tenant_id: str, before: Any, fields: TenantFields) -> None:
        after = fields_of(fields, TenantFields)
        await self._audit.record(call.by, "put", tenant_subject(tenant_id), before, after)
        await self._sources.store().put_tenant(tenant_id, fields)


def _shown(tenant: Tenant) -> dict[str, Any]:
    return {"id": tenant.id, "source": tenant.source, **fields_of(tenant.fields, TenantFields)}
