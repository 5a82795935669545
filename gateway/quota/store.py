"""What settling asks of the books, wherever they are kept."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ..core.quota.calls import Settlement


class Booking(NamedTuple):
    tenant_id: str
    settlement: Settlement


class Books(Protocol):
    async def settle_many(self, bookings: Sequence[Booking]) -> Sequence[bool]:
        """For each, in order, whether it has been booked now; False: it had been before.

        Raises StoreAway: some of them, or all, may have been booked.
        """
