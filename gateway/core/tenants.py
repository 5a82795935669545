"""Who a key belongs to, and what it may do.

A tenant and a key are described by the same fields wherever they stand: in the file of tenants (directory.py), in the
documents of Redis, and, for what a token may say of its bearer, in its claims.

    models: [chat, "llama-*"]               # names or patterns; left out: all
    priority: {default: 5, highest: 7}
    weight: 2                               # of its share where tenants compete; left out: 1
    limits: {max_output_tokens: 1000}
    quota: {requests_per_minute: 600, tokens_per_month: 20000000}
    model_quotas: {"llama-70b*": {tokens_per_minute: 10000}}
    token_weights: {input: 1, cached: 0.1, output: 3}
    quota_mode: shadow                      # counts and reports, refuses nothing
    quota_outage: open                      # while Redis is away; local, open or closed
    cache_domain: platform                  # tenants that name the same one share caches; left out: its own
    choose_workers: true

What stands for a key narrows what the tenant may do, except for its priority, which takes the tenant's place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from inferway.errors import ApiError, Reason
from inferway.settings import each, shaped

from .generation_fields import ServiceTier
from .limits import UNLIMITED, Limits, tightest
from .quota.policy import NO_QUOTA, UNBOUNDED, Outage, Quota, QuotaPolicy, TokenWeights

LEAST_PRIORITY, DEFAULT_PRIORITY, HIGHEST_PRIORITY = 0, 5, 9
# How far OpenAI's tiers are from the default.
_TIER_STEPS: Mapping[ServiceTier | None, int] = {"flex": -2, "priority": 2}

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,64}\Z")]
_Priority = Annotated[int, Meta(ge=0, le=9)]
# Beyond these a share is as good as none, or as all.
_Weight = Annotated[float, Meta(ge=0.001, le=1000)]
_Pattern = Annotated[str, Meta(min_length=1, max_length=256)]
# Every request is matched with all of them, and what it is bound by is looked up at one time.
_MOST_MODEL_QUOTAS = 100
Patterns = tuple[_Pattern, ...] | None


class Priorities(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    default: _Priority = DEFAULT_PRIORITY
    highest: _Priority = HIGHEST_PRIORITY

    def __post_init__(self) -> None:
        if self.default > self.highest:
            raise ValueError(f"the default priority {self.default} is above {self.highest}")


class KeyFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may be said of a key. None: as the tenant."""

    # What the use of the key is for; only told apart in the ledger.
    project: Name | None = None
    models: Patterns = None
    priority: Priorities | None = None
    limits: Limits = UNLIMITED
    quota: Quota = NO_QUOTA
    choose_workers: bool | None = None


class TenantFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What may be said of a tenant."""

    models: Patterns = None
    priority: Priorities = Priorities()
    weight: _Weight = 1.0
    choose_workers: bool = False
    limits: Limits = UNLIMITED
    quota: Quota = NO_QUOTA
    # By pattern of model names.
    model_quotas: Annotated[dict[_Pattern, Quota], Meta(max_length=_MOST_MODEL_QUOTAS)] = {}
    token_weights: TokenWeights = TokenWeights()
    quota_mode: Literal["enforce", "shadow"] = "enforce"
    quota_outage: Outage = "local"
    cache_domain: Name | None = None


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
    project: str = ""
    quota: QuotaPolicy = UNBOUNDED
    # The name of the one that it shares with other tenants; empty: its own.
    shared_cache_domain: str = ""

    @property
    def cache_domain(self) -> str:
        """Prompts of one domain are never found in the cache by another."""
        # No tenant's name has a colon: what one is called is never a domain that others have agreed on.
        return f"shared:{self.shared_cache_domain}" if self.shared_cache_domain else self.tenant_id

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


def caller_of(tenant_id: str, tenant: TenantFields, key_id: str, key: KeyFields) -> Caller:
    """The bearer of a key of the tenant."""
    priority = key.priority or tenant.priority
    return Caller(
        tenant_id,
        key_id,
        tuple(patterns for patterns in (tenant.models, key.models) if patterns is not None),
        tightest(tenant.limits, key.limits),
        priority.default,
        priority.highest,
        tenant.weight,
        tenant.choose_workers if key.choose_workers is None else key.choose_workers,
        key.project or "",
        QuotaPolicy(
            tenant.quota,
            key.quota,
            tuple(tenant.model_quotas.items()),
            tenant.token_weights,
            tenant.quota_mode == "shadow",
            tenant.quota_outage,
        ),
        tenant.cache_domain or "",
    )


def shaped_tenant(raw: Any, path: str = "") -> TenantFields:
    """What a document says of a tenant. Raises SettingsError."""
    check_model_quotas(raw, path)
    return shaped(raw, TenantFields, path)


def check_model_quotas(raw: Any, path: str) -> None:
    """Raises SettingsError for a mistake in a tenant's quotas by model, with the model's place.

    The rest of the document is not looked at: where it has no such quotas, whatever it is, this is silent.
    """
    quotas = raw.get("model_quotas") if isinstance(raw, Mapping) else None
    if isinstance(quotas, Mapping):
        each(quotas, Quota, f"{path}.model_quotas".removeprefix("."))


def digest_of(key: str) -> str:
    """SHA-256 of a key, as the file of tenants holds it."""
    return hashlib.sha256(key_bytes(key)).hexdigest()


def key_bytes(key: str) -> bytes:
    """Of a key as it came in a header, bytes that are no text included."""
    return key.encode("utf-8", "surrogateescape")
