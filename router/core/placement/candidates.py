"""What a decision knows: the request, the workers that may have it, and what of its prompt each of them has cached."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..fleet import Floats, Reading, Rows
from ..messages import Request
from ..worker import Worker


@dataclass(slots=True)
class Pool:
    """All workers of the request's model. Lines of `table`, and `predicted_tokens`, have one element for each in order;
    nobody changes them.

    `mean_load` is that of the open ones; `utilisation` the share of what they can prefill that lately arrived.
    """

    workers: Sequence[Worker]
    # Reading(*table) is of them all.
    table: Floats
    # Prompt tokens that the index predicts in each cache.
    predicted_tokens: Floats
    mean_load: float
    utilisation: float
    # Blocks that the index holds for a worker.
    indexed_blocks: Callable[[Worker], int]


class Candidates:
    """Those of a pool that may have the request. Arrays have one element for each; nobody changes them."""

    def __init__(self, request: Request, pool: Pool, places: Rows) -> None:
        self.request = request
        self.pool = pool
        # In the pool's order, rising.
        self.places = places
        is_all = len(places) == len(pool.workers)
        self.now: Reading[Floats] = Reading(*(pool.table if is_all else pool.table[:, places]))
        predicted = pool.predicted_tokens if is_all else pool.predicted_tokens[places]
        # As far as each worker's index is to be trusted. The last token of a prompt is always computed.
        self.cached_tokens: Floats = np.minimum(predicted * self.now.trust, request.prompt_tokens - 1)
        self.uncached_tokens: Floats = request.prompt_tokens - self.cached_tokens

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
