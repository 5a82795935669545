"""What decisions read of all workers, as columns: one row for each worker, one array for each quantity.

A decision looks at every worker of a model. Arrays make that a few operations for all of them together, where a loop
over objects would take a microsecond for each. A worker that has changed is touched; its row is written when the next
decision needs it, once however often it has changed since.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]

N = TypeVar("N")

_FIRST_ROWS = 16


class Reading(NamedTuple, Generic[N]):
    """One worker's row, or the columns of several. Tokens, requests, seconds, tokens a second."""

    # 1.0: it may get requests, if it has room; 0.0: it may not.
    is_open: N
    # Requests that it has or is about to get.
    load: N
    # Requests that it may have at most as things stand.
    slots: N
    # Requests that run in its batch at most, and that it ever takes.
    max_running: N
    could_take: N
    # KV cache: what it holds at most (infinite where unknown), what is used or promised, and what of an expected
    # completion token is reckoned with.
    kv_total: N
    kv_promised: N
    kv_growth_share: N
    # Prompt tokens that it has to compute before it comes to a new request, and how many it computes a second.
    pending_tokens: N
    prefill_rate: N
    # From dispatch to release, on average; 0.0 before the first.
    mean_lease_s: N
    # Share of the cached tokens that the index predicts which the worker has in truth.
    trust: N


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

    def table(self, rows: Rows) -> Floats:
        """The readings of some rows as they are now, a line for each field: Reading(*table) has them as columns."""
        if self._touched:
            for row, worker in self._touched.items():
                self._table[:, row] = worker.reading()
            self._touched.clear()
        return self._table[:, rows]
