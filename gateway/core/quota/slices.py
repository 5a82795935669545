"""What one gateway may grant alone while the store that all share is away.

While the store is well, a gateway keeps own books beside it of what it grants and settles itself. Once the store is
away these decide, with every bound divided by the number of gateways that were living when it was last heard of: the
slice that this gateway holds. Of a budget the slice is what was left then, divided, on top of what it had spent itself;
of one that has begun anew since, the bound, divided.

How far all gateways together can pass a bound of a minute: before the store went one may have granted the whole bound
and the others nothing, and then each of the others grants its slice: the bound times (2 - 1/gateways), and a request a
gateway. From a minute later on it is the bound and a request a gateway. What is divided is whole, so that a gateway has
at least one request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .books import MINUTE_MS, QuotaBooks, period
from .calls import Reserve, Settlement, Standing, Verdict
from .policy import Bound

# A tenant that has asked for nothing for longest is forgotten beyond this number.
_MOST_TENANTS = 10_000


class _Heard(NamedTuple):
    """Of a budget, when the store last spoke of it."""

    # The number of the day or month.
    period: int
    by_all: int
    # What this gateway had spent of it.
    alone: int


class _Tenant:
    __slots__ = ("books", "heard")

    def __init__(self) -> None:
        # A request is closed here once: its end need not be remembered for long.
        self.books = QuotaBooks(remember_ms=MINUTE_MS)
        # By the budget's name.
        self.heard: dict[str, _Heard] = {}

    def hear(
        self, bounds: Sequence[Bound], standings: Sequence[Standing], own: Sequence[Standing], now_ms: int
    ) -> None:
        for bound, standing, alone in zip(bounds, standings, own, strict=True):
            if bound.kind.is_budget:
                self.heard[bound.name] = _Heard(period(bound.kind, now_ms), standing.used, alone.used)


class Slices:
    """Of one gateway, for all tenants. Times are Unix milliseconds."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def granted(self, tenant_id: str, call: Reserve, standings: Sequence[Standing], *, now_ms: int) -> None:
        """The store has granted this call, and said how the bounds stand."""
        tenant = self._find(tenant_id)
        own = tenant.books.reserve(replace(call, is_shadow=True), now_ms=now_ms)
        tenant.hear(call.bounds, standings, own.standings, now_ms)

    def refused(self, tenant_id: str, call: Reserve, standings: Sequence[Standing], *, now_ms: int) -> None:
        """The store has refused it: others may have spent what this gateway has not."""
        tenant = self._find(tenant_id)
        tenant.hear(call.bounds, standings, tenant.books.standings(call.bounds, now_ms=now_ms), now_ms)

    def reserve(self, tenant_id: str, call: Reserve, *, gateways: int, now_ms: int) -> Verdict:
        """Decide within the slice of one of so many gateways."""
        tenant = self._find(tenant_id)
        bounds = [_slice(bound, tenant.heard.get(bound.name), gateways, now_ms) for bound in call.bounds]
        return tenant.books.reserve(replace(call, bounds=bounds), now_ms=now_ms)

    def open_calls(self) -> list[tuple[str, Reserve]]:
        """What was granted here and has not been settled, with its tenant."""
        return [(tenant_id, call) for tenant_id, tenant in self._tenants.items() for call in tenant.books.open_calls()]

    def settle(self, tenant_id: str, settlement: Settlement, *, now_ms: int) -> None:
        self._find(tenant_id).books.settle(settlement, now_ms=now_ms)

    def _find(self, tenant_id: str) -> _Tenant:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _Tenant()
            if len(self._tenants) > _MOST_TENANTS:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant_id)
        return tenant


def _slice(bound: Bound, heard: _Heard | None, gateways: int, now_ms: int) -> Bound:
    # What was spent of yesterday's budget says nothing of today's.
    if heard is not None and heard.period == period(bound.kind, now_ms):
        return replace(bound, most=heard.alone + max(0, bound.most - heard.by_all) // gateways)
    return replace(bound, most=max(1, bound.most // gateways))
