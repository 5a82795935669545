"""A call's bounds as the books want them, worked out once: requests of one key and model have the same bounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from .policy import Bound, Kind

# As `gateway/quota/books.lua` numbers them.
NUMBERS = {kind: number for number, kind in enumerate(Kind, start=1)}
# So many sets of bounds are remembered; a key and a model that are asked for have one each.
_PLANS = 4096


class Row(NamedTuple):
    """A bound with what its kind means."""

    name: str
    most: int
    kind: Kind
    counts_requests: bool
    counts_tokens: bool
    is_parallel: bool


@dataclass(frozen=True, slots=True)
class Plan:
    rows: Sequence[Row]
    # For the scripts: all names, then all kinds, then all amounts.
    packed: bytes


_plans: dict[Sequence[Bound], Plan] = {}


def plan_of(bounds: Sequence[Bound]) -> Plan:
    """Costs a look-up where these bounds were asked for before."""
    key = bounds if isinstance(bounds, tuple) else tuple(bounds)
    plan = _plans.get(key)
    if plan is None:
        if len(_plans) >= _PLANS:
            _plans.clear()
        plan = _plans[key] = _make(key)
    return plan


def _make(bounds: Sequence[Bound]) -> Plan:
    rows = [
        Row(
            bound.name,
            bound.most,
            bound.kind,
            bound.kind is Kind.REQUESTS_PER_MINUTE,
            bound.kind.counts_tokens,
            bound.kind is Kind.PARALLEL_REQUESTS,
        )
        for bound in bounds
    ]
    columns = [*(row.name for row in rows), *(NUMBERS[row.kind] for row in rows), *(row.most for row in rows)]
    return Plan(rows, msgspec.msgpack.encode(columns))
