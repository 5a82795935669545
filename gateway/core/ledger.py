"""From what became of a request to what its tenant's books are told."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from inferway.ledger import LedgerEntry

from .quota.calls import Settlement
from .quota.policy import Bound, TokenWeights
from .sse import Usage


def settlement_of(
    entry: LedgerEntry,
    usage: Usage,
    *,
    bounds: Sequence[Bound] = (),
    weights: TokenWeights,
    is_request: bool = True,
    age_ms: int = 0,
) -> Settlement:
    """Books `usage` for the request that `entry` describes; whatever the entry says of tokens gives way to it.

    A request that reached no worker (`is_request` False) frees what it held, uses nothing and leaves no entry.
    """
    if not is_request:
        return Settlement(entry.reservation_id, bounds, 0, is_request=False, age_ms=age_ms, part=entry.part)
    units = weights.units(usage)
    counted = replace(
        entry,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        reasoning_tokens=usage.reasoning_tokens,
        units=units,
    )
    return Settlement(entry.reservation_id, bounds, units, age_ms=age_ms, part=entry.part, record=counted.record())
