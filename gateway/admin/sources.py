"""Tenants and keys as admins see them: those of the file, which can only be read here, and those of Redis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from inferway.errors import ApiError, Reason

from ..core.directory import FileDirectory
from ..core.tenants import KeyFields, Name, TenantFields
from ..directory.documents import Documents, KeyDocument
from .calls import in_shape, not_found

Source = Literal["file", "redis"]


class Tenant(NamedTuple):
    id: str
    source: Source
    fields: TenantFields


@dataclass(frozen=True, slots=True)
class Sources:
    """`documents` None: there is no Redis, and nothing can be changed."""

    file: Callable[[], FileDirectory]
    documents: Documents | None

    def store(self, what: str = "Tenants and keys are set in the file of tenants (--tenants)") -> Documents:
        """Where changes go; `what` says how it is without Redis. Raises ApiError (READ_ONLY)."""
        if self.documents is None:
            raise ApiError(Reason.READ_ONLY, f"{what}: this gateway has no Redis (--redis).")
        return self.documents

    def store_for(self, tenant_id: str) -> Documents:
        """The same, for a change of a tenant, which must not be in the file."""
        documents = self.store()
        in_shape(tenant_id, Name, "tenant")
        if tenant_id in self.file().tenants:
            message = (
                f"The tenant '{tenant_id}' is set in the file of tenants (--tenants) and can only be changed there."
            )
            raise ApiError(Reason.READ_ONLY, message)
        return documents

    async def tenant_ids(self) -> list[str]:
        stored = await self.documents.tenant_ids() if self.documents is not None else []
        return sorted({*self.file().tenants, *stored})

    async def tenant(self, tenant_id: str) -> Tenant:
        """That of the file goes first, as it does for requests. Raises ApiError (NOT_FOUND), Unreadable."""
        fields = self.file().tenants.get(tenant_id)
        if fields is not None:
            return Tenant(tenant_id, "file", fields)
        fields = await self.documents.tenant(tenant_id) if self.documents is not None else None
        if fields is None:
            raise not_found(f"tenant '{tenant_id[:100]}'")
        return Tenant(tenant_id, "redis", fields)

    def keys_in_file(self, tenant_id: str) -> Sequence[str]:
        """Their names."""
        return sorted(self.file().keys_of(tenant_id))

    async def stored_key(self, tenant_id: str, key_id: str) -> KeyDocument:
        """One that can be changed. Raises ApiError (NOT_FOUND, READ_ONLY), Unreadable."""
        if key_id in self.keys_in_file(tenant_id):
            message = f"The key '{key_id}' is set in the file of tenants (--tenants) and can only be changed there."
            raise ApiError(Reason.READ_ONLY, message)
        document = await self.store().key(tenant_id, key_id)
        if document is None:
            raise not_found(f"key '{key_id[:100]}' of the tenant '{tenant_id[:100]}'")
        return document


def key_fields(document: KeyDocument) -> KeyFields:
    return KeyFields(**{name: getattr(document, name) for name in KeyFields.__struct_fields__})
