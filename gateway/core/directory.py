"""Keys and tenants of the file of tenants.

    tenants:
      research:
        models: [chat]                          # what may be said of a tenant: tenants.py
        keys:
          anna-laptop:
            sha256: 9f86d081884c7d65...         # of the key: printf %s "$KEY" | sha256sum
            expires: 2027-06-30                 # the day, in UTC, from which it is refused
            models: [chat]                      # what may be said of a key: tenants.py

The file holds the SHA-256 of each key and the memory a keyed hash of that, so neither holds a key, and no caller can
choose how far a comparison gets.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from inferway.settings import each, refuse, shaped, unix_s

from .quota.policy import NO_QUOTA
from .tenants import Caller, KeyFields, Name, TenantFields, caller_of, check_model_quotas, digest_of

_UNSHARED = "has quotas, which several processes can only share with --redis"
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]


class _Key(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: _Digest
    expires: date | None = None


class _Tenant(TenantFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keys: dict[Name, Any] = msgspec.field(default_factory=dict)


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tenants: dict[Name, Any]


@dataclass(frozen=True, slots=True)
class _Entry:
    caller: Caller
    digest: bytes
    expires: float


@dataclass(frozen=True, slots=True)
class FileDirectory:
    """All keys and tenants of one version of the file."""

    tenants: Mapping[str, TenantFields] = field(default_factory=dict)
    _secret: bytes = b""
    _entries: Mapping[bytes, _Entry] = field(default_factory=dict)

    def find(self, key: str, *, now: float) -> Caller | None:
        """The bearer of a key that is valid at `now`, Unix seconds."""
        digest = _keyed(self._secret, digest_of(key))
        entry = self._entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest) or now >= entry.expires:
            return None
        return entry.caller

    def keys_of(self, tenant_id: str) -> list[str]:
        """The names of a tenant's keys."""
        return [caller.key_id for caller in self.callers_of(tenant_id)]

    def callers_of(self, tenant_id: str) -> list[Caller]:
        """The bearers of a tenant's keys."""
        return [entry.caller for entry in self._entries.values() if entry.caller.tenant_id == tenant_id]


def parse_tenants(raw: Any, secret: bytes = b"", *, may_have_quotas: bool = True) -> FileDirectory:
    """`secret` keys the hashes that are held in memory. Raises SettingsError, also for quotas where none may be."""
    tenants: dict[str, TenantFields] = {}
    entries: dict[bytes, _Entry] = {}
    mistakes = []
    given = shaped(raw, _File).tenants
    for tenant_id, tenant in given.items():
        check_model_quotas(tenant, f"tenants.{tenant_id}")
    for tenant_id, tenant in each(given, _Tenant, "tenants").items():
        tenants[tenant_id] = TenantFields(**{name: getattr(tenant, name) for name in TenantFields.__struct_fields__})
        if (tenant.quota != NO_QUOTA or tenant.model_quotas) and not may_have_quotas:
            mistakes.append(f"tenants.{tenant_id}: {_UNSHARED}")
        for key_id, key in each(tenant.keys, _Key, f"tenants.{tenant_id}.keys").items():
            digest = _keyed(secret, key.sha256)
            if digest in entries:
                place = f"tenants.{tenant_id}.keys.{key_id}.sha256"
                other = entries[digest].caller
                mistakes.append(f"{place}: is that of tenants.{other.tenant_id}.keys.{other.key_id} as well")
                continue
            if key.quota != NO_QUOTA and not may_have_quotas:
                mistakes.append(f"tenants.{tenant_id}.keys.{key_id}.quota: {_UNSHARED}")
            expires = float("inf") if key.expires is None else unix_s(key.expires)
            entries[digest] = _Entry(caller_of(tenant_id, tenant, key_id, key), digest, expires)
    refuse(mistakes)
    return FileDirectory(tenants, secret, entries)


def _keyed(secret: bytes, sha256: str) -> bytes:
    return hmac.digest(secret, sha256.encode(), "sha256")
