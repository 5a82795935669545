"""Which bounds a request falls under, and what it counts against them.

Amounts of tokens are kept in units of a thousandth of a weighted token, whole numbers, so that the books of the memory
and of Redis agree to the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from ..sse import Usage

UNITS_A_TOKEN = 1000

_Count = Annotated[int, Meta(ge=1, le=10**12)] | None
_Weight = Annotated[float, Meta(ge=0, le=1000)]

# What becomes of requests while the store of quotas is away: each gateway grants its slice, everything, or nothing.
Outage = Literal["local", "open", "closed"]


class Quota(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of a tenant, a key, or a tenant's use of a model. None: no bound."""

    requests_per_minute: _Count = None
    # Weighted tokens, as those of a day (UTC) and of a calendar month (UTC).
    tokens_per_minute: _Count = None
    parallel_requests: _Count = None
    tokens_per_day: _Count = None
    tokens_per_month: _Count = None


NO_QUOTA = Quota()


class TokenWeights(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many tokens one of each kind counts as."""

    input: _Weight = 1.0
    # Of a prompt's tokens, those that were found in the cache.
    cached: _Weight = 1.0
    output: _Weight = 1.0

    def units(self, usage: Usage) -> int:
        uncached = usage.prompt_tokens - usage.cached_tokens
        weighted = self.input * uncached + self.cached * usage.cached_tokens + self.output * usage.completion_tokens
        return round(weighted * UNITS_A_TOKEN)


class Kind(Enum):
    """What a bound counts. The value is its name in the books."""

    REQUESTS_PER_MINUTE = "rpm"
    TOKENS_PER_MINUTE = "tpm"
    PARALLEL_REQUESTS = "par"
    TOKENS_PER_DAY = "tpd"
    TOKENS_PER_MONTH = "tpmo"

    @property
    def field(self) -> str:
        """The field of Quota, which is also what callers and metrics are told."""
        return self.name.lower()

    @property
    def counts_tokens(self) -> bool:
        return self not in (Kind.REQUESTS_PER_MINUTE, Kind.PARALLEL_REQUESTS)

    @property
    def is_budget(self) -> bool:
        """What is spent comes back with the next day or month, not by waiting a little."""
        return self in (Kind.TOKENS_PER_DAY, Kind.TOKENS_PER_MONTH)


@dataclass(frozen=True, slots=True)
class Bound:
    """One bound of one scope: "t" is the tenant, "k:NAME" a key, "m:PATTERN" the tenant's use of models."""

    scope: str
    kind: Kind
    # Requests, or units of tokens.
    most: int

    @property
    def name(self) -> str:
        """Its name in the tenant's books."""
        return f"{self.scope}|{self.kind.value}"


@dataclass(frozen=True, slots=True)
class QuotaPolicy:
    """Everything that bounds the bearer of one key."""

    tenant: Quota = NO_QUOTA
    key: Quota = NO_QUOTA
    # By pattern of model names; all that match one pattern count together.
    models: Sequence[tuple[str, Quota]] = ()
    weights: TokenWeights = field(default_factory=TokenWeights)
    # Counts and reports, and refuses nothing.
    is_shadow: bool = False
    outage: Outage = "local"

    def bounds(self, key_id: str, *model_names: str) -> tuple[Bound, ...]:
        """Those of a request for a model that goes by any of these names."""
        found = _bounds("t", self.tenant) + _bounds(f"k:{key_id}", self.key)
        for pattern, quota in self.models:
            if any(fnmatchcase(name, pattern) for name in model_names):
                found += _bounds(f"m:{pattern}", quota)
        return found


UNBOUNDED = QuotaPolicy()


@lru_cache(maxsize=8192)
def _bounds(scope: str, quota: Quota) -> tuple[Bound, ...]:
    if quota is NO_QUOTA:
        return ()
    given = ((kind, getattr(quota, kind.field)) for kind in Kind)
    return tuple(
        Bound(scope, kind, most * UNITS_A_TOKEN if kind.counts_tokens else most)
        for kind, most in given
        if most is not None
    )
