"""What a worker is busy with, as far as its end and its leases go."""

from __future__ import annotations

import asyncio


class Occupancy:
    """Choices and requests for embeddings that have begun and not ended, and the leases that they belong to."""

    def __init__(self) -> None:
        # Set while there is none.
        self.idle = asyncio.Event()
        self.idle.set()
        self._count = 0
        # How many each lease has.
        self._leases: dict[int, int] = {}

    def begin(self, lease_id: int) -> None:
        """0: of no lease."""
        self._count += 1
        self.idle.clear()
        if lease_id:
            self._leases[lease_id] = self._leases.get(lease_id, 0) + 1

    def end(self, lease_id: int) -> None:
        self._count -= 1
        if not self._count:
            self.idle.set()
        if lease_id:
            left = self._leases[lease_id] - 1
            if left:
                self._leases[lease_id] = left
            else:
                del self._leases[lease_id]

    def lease_ids(self) -> list[int]:
        """Each once."""
        return list(self._leases)
