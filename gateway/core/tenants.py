"""Who a key belongs to, and what it may do.

The file of tenants:

    tenants:
      research:
        models: [chat, "llama-*"]               # names or patterns; left out: all
        priority: {default: 5, highest: 7}
        weight: 2                               # of its share where tenants compete; left out: 1
        limits: {max_output_tokens: 1000}
        keys:
          anna-laptop:
            sha256: 9f86d081884c7d65...         # of the key: printf %s "$KEY" | sha256sum
            expires: 2027-06-30                 # the day, in UTC, from which it is refused
            models: [chat]                      # these as well narrow what the tenant may do
            limits: {max_choices: 1}
            choose_workers: true                # by header; may stand for the whole tenant, too

A key is looked up by its SHA-256, so neither the file nor the memory holds one, and no comparison sees its text.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date
from fnmatch import fnmatchcase
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from inferway.errors import ApiError, Reason
from inferway.settings import each, refuse, shaped, unix_s

from .generation_fields import ServiceTier
from .limits import UNLIMITED, Limits, tightest

LEAST_PRIORITY, DEFAULT_PRIORITY, HIGHEST_PRIORITY = 0, 5, 9
# How far OpenAI's tiers are from the default.
_TIER_STEPS: Mapping[ServiceTier | None, int] = {"flex": -2, "priority": 2}

_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
_Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
_Priority = Annotated[int, Meta(ge=0, le=9)]
# Beyond these a share is as good as none, or as all.
_Weight = Annotated[float, Meta(ge=0.001, le=1000)]
_Patterns = tuple[Annotated[str, Meta(min_length=1)], ...] | None


class _Priorities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default: _Priority = DEFAULT_PRIORITY
    highest: _Priority = HIGHEST_PRIORITY


class _Key(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sha256: _Digest
    expires: date | None = None
    models: _Patterns = None
    priority: _Priorities | None = None
    limits: Limits = UNLIMITED
    # None: as the tenant.
    choose_workers: bool | None = None


class _Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    models: _Patterns = None
    priority: _Priorities = _Priorities()
    weight: _Weight = 1.0
    choose_workers: bool = False
    limits: Limits = UNLIMITED
    keys: dict[_Name, Any] = {}


class _File(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    tenants: dict[_Name, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """The bearer of a key. `key_id` is its name, which may be logged; the key itself may not."""

    tenant_id: str
    key_id: str = ""
    # A model must match one pattern of each list.
    models: tuple[tuple[str, ...], ...] = ()
    limits: Limits = UNLIMITED
    default_priority: int = DEFAULT_PRIORITY
    highest_priority: int = HIGHEST_PRIORITY
    # What the tenant gets where several wait at one priority, in relation to theirs.
    weight: float = 1.0
    # Whether it may say by header which worker is to serve it.
    may_choose_workers: bool = False

    def may_use(self, *names: str) -> bool:
        """Whether a model is allowed by any of the names that it goes by."""
        return all(
            any(fnmatchcase(name, pattern) for name in names for pattern in patterns) for patterns in self.models
        )

    def priority(self, asked: int | None = None, tier: ServiceTier | None = None) -> int:
        """0 to 9, larger is sooner. Raises ApiError (PRIORITY_NOT_ALLOWED) above the highest: nothing is clamped."""
        if asked is None:
            asked = min(max(self.default_priority + _TIER_STEPS.get(tier, 0), LEAST_PRIORITY), HIGHEST_PRIORITY)
        if asked > self.highest_priority:
            param = "service_tier" if tier == "priority" else "priority"
            message = f"This key may not ask for priority {asked}; its highest is {self.highest_priority}."
            raise ApiError(Reason.PRIORITY_NOT_ALLOWED, message, param)
        return asked


@dataclass(frozen=True, slots=True)
class _Entry:
    caller: Caller
    digest: str
    expires: float


@dataclass(frozen=True, slots=True)
class Directory:
    """All keys."""

    _entries: Mapping[str, _Entry] = field(default_factory=dict)

    def find(self, key: str, *, now: float) -> Caller | None:
        """The bearer of a key that is valid at `now`, Unix seconds."""
        digest = digest_of(key)
        entry = self._entries.get(digest)
        if entry is None or not hmac.compare_digest(entry.digest, digest) or now >= entry.expires:
            return None
        return entry.caller


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def parse_tenants(raw: Any) -> Directory:
    """Raises SettingsError."""
    entries: dict[str, _Entry] = {}
    mistakes = []
    for tenant_id, tenant in each(shaped(raw, _File).tenants, _Tenant, "tenants").items():
        for key_id, key in each(tenant.keys, _Key, f"tenants.{tenant_id}.keys").items():
            place = f"tenants.{tenant_id}.keys.{key_id}"
            priority = key.priority or tenant.priority
            if priority.default > priority.highest:
                mistakes.append(f"{place}: the default priority {priority.default} is above {priority.highest}")
            if key.sha256 in entries:
                other = entries[key.sha256].caller
                mistakes.append(f"{place}.sha256: is that of tenants.{other.tenant_id}.keys.{other.key_id} as well")
                continue
            entries[key.sha256] = _Entry(
                Caller(
                    tenant_id,
                    key_id,
                    tuple(patterns for patterns in (tenant.models, key.models) if patterns is not None),
                    tightest(tenant.limits, key.limits),
                    priority.default,
                    priority.highest,
                    tenant.weight,
                    tenant.choose_workers if key.choose_workers is None else key.choose_workers,
                ),
                key.sha256,
                float("inf") if key.expires is None else unix_s(key.expires),
            )
    refuse(mistakes)
    return Directory(entries)
