"""What decisions read of all workers, as columns: one row for each worker, one array for each quantity.

A decision looks at every worker of a model. Arrays make that a few operations for all of them together, where a loop
over objects would take a microsecond for each. Each operation takes about a microsecond itself, however few workers
there are: so rows hold what can be said of a worker alone, worked out once, and decisions only what the request adds.
A worker that has changed is touched; its row is written when the next decision needs it, once however often it has
changed since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

N = TypeVar("N")

_FIRST_ROWS = 16


class Reading(NamedTuple, Generic[N]):
    """One worker's row, or the columns of several. Tokens, requests, milliseconds."""

    # For sums over those that may get requests: 1.0, and the next two as they are; of others all three are 0.0.
    is_open: N
    open_load: N
    # Prompt tokens that it computes a second.
    open_rate: N
    # Requests that it has or is about to get.
    load: N
    # Requests that it may get as things stand, 0.0 or less: none; and how many more its batch can run.
    room: N
    batch_room: N
    # KV cache: what it has left for a new request, infinite where that does not count; what is used or promised, and
    # its share of the cache, 0.0 where the size is unknown; what of an expected completion token is reckoned with.
    kv_room: N
    kv_promised: N
    kv_share: N
    kv_growth_share: N
    # Prompt tokens that it has to compute before it comes to a new request, and how long it takes for each.
    pending_tokens: N
    ms_per_token: N
    # Share of its batch that runs, 1.0 at most.
    crowding: N
    # Until one of a full batch ends, on average; 0.0 before the first.
    slot_ms: N
    # Share of the cached tokens that the index predicts which the worker has in truth.
    trust: N


# The first lines of a table, in the order of Reading.
SUMMED = slice(0, 3)


class HasRow(Protocol):
    row: int

    def reading(self) -> Reading[float]: ...


class Fleet:
    """Rows keep their place for as long as their worker is there."""

    def __init__(self) -> None:
        self._table: Floats = np.zeros((len(Reading._fields), _FIRST_ROWS))
        self._free = list(range(_FIRST_ROWS - 1, -1, -1))
        self._touched: dict[int, HasRow] = {}

    def add(self, worker: HasRow) -> None:
        """Give a worker a row."""
        if not self._free:
            rows = self._table.shape[1]
            self._table = np.concatenate([self._table, np.zeros_like(self._table)], axis=1)
            self._free = list(range(2 * rows - 1, rows - 1, -1))
        worker.row = self._free.pop()
        self.touch(worker)

    def remove(self, worker: HasRow) -> None:
        self._touched.pop(worker.row, None)
        self._free.append(worker.row)

    def touch(self, worker: HasRow) -> None:
        """Something that its reading tells may have changed."""
        self._touched[worker.row] = worker

    def table(self) -> Floats:
        """All rows as they are now, a line for each field."""
        if self._touched:
            for row, worker in self._touched.items():
                self._table[:, row] = worker.reading()
            self._touched.clear()
        return self._table


class Columns:
    """Some rows of a fleet, read again and again."""

    def __init__(self, fleet: Fleet, rows: Sequence[int]) -> None:
        self._fleet = fleet
        self._whole: Floats | None = None
        self._rows = neighbours(rows)
        # The readings, a line for each field, and the same as columns; as the last `read` found them.
        self.table: Floats = np.empty((len(Reading._fields), 0))
        self.now: Reading[Floats] = Reading(*self.table)

    def read(self) -> None:
        """Bring `table` and `now` up to date."""
        whole = self._fleet.table()
        if isinstance(self._rows, slice):
            if self._whole is whole:
                return  # seen in place
            self._whole = whole
            self.table = whole[:, self._rows]
        else:
            self.table = whole.take(self._rows, axis=1)
        self.now = Reading(*self.table)


def neighbours(numbers: Sequence[int]) -> Rows | slice:
    """What takes these places of an array: where each follows the one before, without a copy."""
    if numbers and list(numbers) == list(range(numbers[0], numbers[0] + len(numbers))):
        return slice(numbers[0], numbers[-1] + 1)
    return np.array(numbers, np.intp)
