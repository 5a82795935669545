"""What one gateway may grant alone while the store that all share is away.

While the store is well, a gateway keeps own books beside it of what it grants and settles itself. Once the store is
away these decide, with every bound divided by the number of gateways that were living when it was last heard of: the
slice that this gateway holds. Of a budget the slice is what was left then, divided, on top of what it had spent itself.

How far all gateways together can pass a bound of a minute: before the store went one may have granted the whole bound
and the others nothing, and then each of the others grants its slice: the bound times (2 - 1/gateways), and a request a
gateway. From a minute later on it is the bound and a request a gateway. What is divided is whole, so that a gateway has
at least one request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

from .books import QuotaBooks
from .calls import Reserve, Settlement, Standing, Verdict
from .policy import Bound

# A tenant that has asked for nothing for longest is forgotten beyond this number.
_MOST_TENANTS = 10_000
# One gateway settles each of its requests once; what is settled twice is told apart by the books of all.
_REMEMBER_MS = 60_000


class _Tenant:
    __slots__ = ("books", "heard")

    def __init__(self) -> None:
        self.books = QuotaBooks(remember_ms=_REMEMBER_MS)
        # By the name of a budget: what all had spent of it when the store was last heard of, and this gateway alone.
        self.heard: dict[str, tuple[int, int]] = {}


class Slices:
    """Of one gateway, for all tenants. Times are Unix milliseconds."""

    def __init__(self) -> None:
        self._tenants: OrderedDict[str, _Tenant] = OrderedDict()

    def granted(self, tenant_id: str, call: Reserve, standings: Sequence[Standing], *, now_ms: int) -> None:
        """The store has granted this call, and said how the bounds stand."""
        tenant = self._find(tenant_id)
        own = tenant.books.reserve(replace(call, is_shadow=True), now_ms=now_ms)
        for bound, standing, alone in zip(call.bounds, standings, own.standings, strict=True):
            if bound.kind.is_budget:
                tenant.heard[bound.name] = standing.used, alone.used

    def reserve(self, tenant_id: str, call: Reserve, *, gateways: int, now_ms: int) -> Verdict:
        """Decide within the slice of one of so many gateways."""
        tenant = self._find(tenant_id)
        bounds = [_slice(bound, tenant.heard.get(bound.name), gateways) for bound in call.bounds]
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


def _slice(bound: Bound, heard: tuple[int, int] | None, gateways: int) -> Bound:
    if heard is not None:
        by_all, alone = heard
        return replace(bound, most=alone + max(0, bound.most - by_all) // gateways)
    return replace(bound, most=max(1, bound.most // gateways))
