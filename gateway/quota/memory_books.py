"""The books of all tenants in the memory of this process, for a mesh of one gateway."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence

from ..core.quota.books import REMEMBER_MS, QuotaBooks
from ..core.quota.calls import Reserve, Settlement, Standing, Verdict
from ..core.quota.policy import Bound

# Of more tenants than this, those that have asked for nothing for longest begin anew.
MOST_TENANTS = 100_000

Record = Sequence[tuple[str, str]]


class MemoryBooks:
    """As `RedisBooks`, without anything that could be away. What was used is forgotten with the process.

    `write` is given the ledger's entry of each settlement, once. `clock` tells milliseconds since 1970.
    """

    def __init__(
        self,
        *,
        write: Callable[[str, Record], None] | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        most_tenants: int = MOST_TENANTS,
        remember_ms: int = REMEMBER_MS,
    ) -> None:
        self._write, self._clock, self._most, self._remember_ms = write, clock, most_tenants, remember_ms
        self._books: OrderedDict[str, QuotaBooks] = OrderedDict()
        # As RedisBooks says them.
        self.gateways: int | None = 1
        self.away = ""

    async def wait_up(self, timeout_s: float) -> bool:
        return True

    async def run(self) -> None:
        """Nothing to keep."""

    async def reserve(self, tenant_id: str, call: Reserve) -> Verdict:
        return self._of(tenant_id).reserve(call, now_ms=self._clock())

    async def standings(self, tenant_id: str, bounds: Sequence[Bound]) -> Sequence[Standing]:
        return self._of(tenant_id).standings(bounds, now_ms=self._clock())

    async def settle(self, tenant_id: str, settlement: Settlement) -> bool:
        now_ms = self._clock()
        is_new = self._of(tenant_id).settle(settlement, now_ms=now_ms)
        if is_new and settlement.record and self._write is not None:
            self._write(tenant_id, (*settlement.record, ("finished_ms", str(now_ms - settlement.age_ms))))
        return is_new

    async def settle_many(self, settlements: Sequence[tuple[str, Settlement]]) -> list[bool]:
        return [await self.settle(tenant_id, settlement) for tenant_id, settlement in settlements]

    async def forget(self, tenant_id: str) -> None:
        self._books.pop(tenant_id, None)

    def _of(self, tenant_id: str) -> QuotaBooks:
        books = self._books.get(tenant_id)
        if books is None:
            if len(self._books) >= self._most:
                self._books.popitem(last=False)
            books = self._books[tenant_id] = QuotaBooks(remember_ms=self._remember_ms)
        else:
            self._books.move_to_end(tenant_id)
        return books
