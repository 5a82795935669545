"""What a decision knows: the request, the workers that may have it, and what of its prompt each of them has cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..fleet import Columns, Floats, Reading, Rows
from ..messages import Request
from ..worker import Worker


class Pool:
    """All workers of the request's model. Sequences, columns and `cached_tokens` have one element for each in order.
    Nobody changes them, and nobody keeps `table` and `now` beyond the decision.
    """

    __slots__ = ("cached_tokens", "indexed_blocks", "mean_load", "names", "now", "table", "utilisation", "workers")

    def __init__(
        self,
        request: Request,
        workers: Sequence[Worker],
        columns: Columns,
        *,
        names: Sequence[str],
        predicted_tokens: Floats,
        mean_load: float,
        utilisation: float,
        indexed_blocks: Callable[[Worker], int],
    ) -> None:
        """`names` are the workers' ids; `predicted_tokens` of the prompt the index expects in each cache.

        `mean_load` is that of the open ones; `utilisation` the share of what they can prefill that lately arrived.
        """
        self.workers = workers
        self.names = names
        # A line for each field of Reading, and the same as columns.
        self.table = columns.table
        self.now = columns.now
        # As far as each worker's index is to be trusted. The last token of a prompt is always computed.
        self.cached_tokens: Floats = np.minimum(predicted_tokens * self.now.trust, request.prompt_tokens - 1.0)
        self.mean_load = mean_load
        self.utilisation = utilisation
        # Blocks that the index holds for a worker.
        self.indexed_blocks = indexed_blocks


class Candidates:
    """Those of a pool that may have the request. Arrays have one element for each; nobody changes them."""

    def __init__(self, request: Request, pool: Pool, places: Rows) -> None:
        self.request = request
        self.pool = pool
        # In the pool's order, rising.
        self.places = places
        if len(places) == len(pool.workers):
            self.now, self.cached_tokens = pool.now, pool.cached_tokens
        else:
            self.now = Reading(*pool.table.take(places, axis=1))
            self.cached_tokens = pool.cached_tokens[places]
        self.uncached_tokens: Floats = float(request.prompt_tokens) - self.cached_tokens

    def __len__(self) -> int:
        return len(self.places)

    def worker(self, candidate: int) -> Worker:
        return self.pool.workers[int(self.places[candidate])]

    def workers(self) -> list[Worker]:
        workers = self.pool.workers
        return [workers[place] for place in self.places.tolist()]

    def only(self, kept: Rows) -> Candidates:
        """Some of them, by their numbers."""
        return Candidates(self.request, self.pool, self.places[kept])
