"""Endpoints of keys: made, changed, given a new text, revoked. A key's text is in one answer and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferway.errors import ApiError, Reason

from ..core.tenants import KeyFields
from ..directory.documents import KeyDocument, NotFound, Taken, key_subject
from .audit import AuditLog
from .calls import Call, Handler, Result, fields_of, in_shape, merged, not_found, read_time, shown_time
from .endpoints import KeySettings, NewKey
from .sources import Sources, key_fields


class KeyEndpoints:
    def __init__(self, sources: Sources, audit: AuditLog) -> None:
        self._sources = sources
        self._audit = audit

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "list_keys": self._list,
            "create_key": self._create,
            "get_key": self._get,
            "patch_key": self._patch,
            "rotate_key": self._rotate,
            "revoke_key": self._revoke,
        }

    async def _list(self, call: Call) -> Result:
        tenant_id = call.places["tenant"]
        await self._sources.tenant(tenant_id)
        documents = self._sources.documents
        stored = await documents.keys(tenant_id) if documents is not None else []
        keys = [_of_file(tenant_id, key_id) for key_id in self._sources.keys_in_file(tenant_id)]
        return Result({"keys": keys + [_shown(document) for document in stored]})

    async def _get(self, call: Call) -> Result:
        tenant_id, key_id = call.places["tenant"], call.places["key"]
        if key_id in self._sources.keys_in_file(tenant_id):
            return Result(_of_file(tenant_id, key_id))
        if self._sources.documents is None:
            raise _no_key(tenant_id, key_id)
        return Result(_shown(await self._sources.stored_key(tenant_id, key_id)))

    async def _create(self, call: Call) -> Result:
        tenant_id, asked = call.places["tenant"], call.body
        assert isinstance(asked, NewKey)
        documents = self._sources.store()
        await self._sources.tenant(tenant_id)
        if asked.id in self._sources.keys_in_file(tenant_id) or await documents.key(tenant_id, asked.id) is not None:
            raise _taken(tenant_id, asked.id)
        expires_s = read_time(asked.expires, "expires")
        fields = KeyFields(**{name: getattr(asked, name) for name in KeyFields.__struct_fields__})
        after = _settings(fields, expires_s)
        await self._audit.record(call.by, "create", key_subject(tenant_id, asked.id), None, after)
        try:
            text = await documents.create_key(tenant_id, asked.id, fields, expires_s=expires_s)
        except Taken:
            raise _taken(tenant_id, asked.id) from None
        except NotFound:
            raise _meanwhile(tenant_id, asked.id) from None
        return Result({**await self._now(tenant_id, asked.id), "key": text}, 201)

    async def _patch(self, call: Call) -> Result:
        tenant_id, key_id = call.places["tenant"], call.places["key"]
        document = await self._sources.stored_key(tenant_id, key_id)
        before = _settings(key_fields(document), document.expires_s)
        asked = in_shape(merged(before, call.body), KeySettings)
        # A time that was not named stays as it is, to the second.
        expires_s = read_time(asked.expires, "expires") if "expires" in call.body else document.expires_s
        fields = KeyFields(**{name: getattr(asked, name) for name in KeyFields.__struct_fields__})
        await self._audit.record(call.by, "put", key_subject(tenant_id, key_id), before, _settings(fields, expires_s))
        try:
            await self._sources.store().change_key(tenant_id, key_id, fields, expires_s=expires_s)
        except NotFound:
            raise _meanwhile(tenant_id, key_id) from None
        return Result(await self._now(tenant_id, key_id))

    async def _rotate(self, call: Call) -> Result:
        tenant_id, key_id = call.places["tenant"], call.places["key"]
        await self._sources.stored_key(tenant_id, key_id)
        await self._audit.record(call.by, "rotate", key_subject(tenant_id, key_id))
        try:
            text = await self._sources.store().rotate_key(tenant_id, key_id)
        except NotFound:
            raise _meanwhile(tenant_id, key_id) from None
        return Result({**await self._now(tenant_id, key_id), "key": text})

    async def _revoke(self, call: Call) -> Result:
        tenant_id, key_id = call.places["tenant"], call.places["key"]
        document = await self._sources.stored_key(tenant_id, key_id)
        before = _settings(key_fields(document), document.expires_s)
        await self._audit.record(call.by, "revoke", key_subject(tenant_id, key_id), before)
        await self._sources.store().revoke_key(tenant_id, key_id)
        return Result({"id": key_id, "tenant": tenant_id, "revoked": True})

    async def _now(self, tenant_id: str, key_id: str) -> dict[str, Any]:
        document = await self._sources.store().key(tenant_id, key_id)
        if document is None:
            raise _meanwhile(tenant_id, key_id)
        return _shown(document)


def _of_file(tenant_id: str, key_id: str) -> dict[str, Any]:
    return {"id": key_id, "tenant": tenant_id, "source": "file"}


def _shown(document: KeyDocument) -> dict[str, Any]:
    return {
        "id": document.key_id,
        "tenant": document.tenant,
        "source": "redis",
        "created": shown_time(document.created_s),
        "expires": shown_time(document.expires_s),
        **fields_of(document, KeyFields),
    }


def _settings(fields: KeyFields, expires_s: int | None) -> dict[str, Any]:
    expires = {} if expires_s is None else {"expires": shown_time(expires_s)}
    return {**fields_of(fields, KeyFields), **expires}


def _no_key(tenant_id: str, key_id: str) -> ApiError:
    return not_found(f"key '{key_id[:100]}' of the tenant '{tenant_id[:100]}'")


def _taken(tenant_id: str, key_id: str) -> ApiError:
    message = f"The tenant '{tenant_id}' has a key '{key_id}' already: revoke it, or give it a new text (rotate)."
    return ApiError(Reason.CONFLICT, message, "id")


def _meanwhile(tenant_id: str, key_id: str) -> ApiError:
    return ApiError(Reason.CONFLICT, f"The key '{key_id}' of the tenant '{tenant_id}' was revoked meanwhile.")
