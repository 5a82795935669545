"""Everything the dispatcher keeps for one model name."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared, KvEvent

from .demand import Demand
from .fleet import SUMMED, Columns, Fleet, Floats, Rows, neighbours
from .index import PrefixIndex
from .messages import Place, Request, Ticket
from .placement.candidates import Candidates, Pool
from .placement.policies import Policy
from .queue import Ageing, QueueLimits, WaitingQueue
from .rate import DrainRate
from .worker import Worker, mean_rate

# Blocks that the index keeps for a worker whose KV capacity is unknown.
_DEFAULT_CAPACITY_BLOCKS = 16_384
_RETRY_AFTER_S = (1.0, 60.0)
# Before any rate of dispatches is known.
_DEFAULT_RETRY_AFTER_S = 5.0


@dataclass(slots=True)
class Hits:
    """Tokens of prompts that were computed, and of them those predicted to be cached and those found cached."""

    prompt_tokens: int = 0
    predicted_tokens: int = 0
    actual_tokens: int = 0

    def add(self, *, prompt: int, predicted: int, actual: int) -> None:
        self.prompt_tokens += prompt
        self.predicted_tokens += predicted
        self.actual_tokens += actual


class Model:
    def __init__(self, name: str, fleet: Fleet, policy: Policy, limits: QueueLimits, ageing: Ageing) -> None:
        self.name = name
        self.policy = policy
        self.queue = WaitingQueue(limits, ageing)
        self.index = PrefixIndex()
        self.workers: list[Worker] = []
        # Prompt tokens that nobody had cached.
        self.demand = Demand()
        self._fleet = fleet
        # By the order of `workers`: ids, rows in the fleet's table, numbers in the index, and tokens of a block.
        self.names: Sequence[str] = ()
        self._columns = Columns(fleet, ())
        self._numbers: Rows | slice = slice(0)
        self._block_sizes: Floats = np.empty(0)
        self._ones: Floats = np.empty(0)
        self.drain_rate = DrainRate()
        self.hits = Hits()

    @property
    def is_unused(self) -> bool:
        return not self.workers and not self.queue

    def is_ready(self) -> bool:
        """Whether a worker is there that takes or will take requests."""
        return any(worker.is_ready for worker in self.workers)

    def add_worker(self, worker: Worker) -> None:
        self.workers.append(worker)
        self.size_index(worker)

    def remove_worker(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.index.forget(worker.worker_id)
        worker.forget_peers(self.name)
        self._arrange()

    def compare(self) -> Iterator[Worker]:
        """Tell each worker how warm the warmest is, and how fast those are that have measured it; gives those for whom
        that is news. To be called when the warmth of one has changed, or one has measured its speed for the first time.
        """
        warmest = max((worker.warmth for worker in self.workers), default=0)
        rate = mean_rate(worker.measured_rate for worker in self.workers)
        for worker in self.workers:
            if worker.take_peers(self.name, warmest=warmest, rate=rate):
                yield worker

    def size_index(self, worker: Worker) -> None:
        """Bound the worker's part of the index by its KV capacity."""
        total = worker.kv_total_tokens
        blocks = _DEFAULT_CAPACITY_BLOCKS if total is None else total // worker.info.models[self.name]
        self.index.add_worker(worker.worker_id, capacity_blocks=blocks)
        self._arrange()

    def candidates(self, request: Request, allowed: Container[str] | None, *, now: float) -> Candidates | None:
        """The workers that have room for the request now, of those `allowed` (None: all); None if there are none."""
        if not self.workers:
            return None
        columns = self._columns
        columns.read()
        readings = columns.now
        # Floats, as columns are: for an integer NumPy makes an array of its own first.
        prompt_tokens, num_choices = float(request.prompt_tokens), float(request.num_choices)
        kv_tokens = readings.kv_growth_share * (request.expected_tokens * num_choices) + prompt_tokens
        (places,) = ((kv_tokens <= readings.kv_room) & (readings.room >= num_choices)).nonzero()
        if allowed is not None:
            places = np.array([at for at in places.tolist() if self.workers[at].worker_id in allowed], np.intp)
        if not len(places):
            return None
        predicted = self.index.match(request.block_hashes)[self._numbers] * self._block_sizes
        num_open, load, rate = columns.table[SUMMED].dot(self._ones).tolist()
        pool = Pool(
            request,
            self.workers,
            columns,
            names=self.names,
            predicted_tokens=predicted,
            mean_load=load / num_open,
            utilisation=self.demand.per_second(now=now) / rate,
            indexed_blocks=self._indexed_blocks,
        )
        return Candidates(request, pool, places)

    def take_kv_event(self, worker_id: str, event: KvEvent) -> None:
        match event:
            case BlocksStored():
                self.index.store(worker_id, event.block_hashes)
            case BlocksRemoved():
                self.index.remove(worker_id, event.block_hashes)
            case CacheCleared():
                self.index.clear(worker_id)

    def _indexed_blocks(self, worker: Worker) -> int:
        return self.index.blocks(worker.worker_id)

    def _arrange(self) -> None:
        """The workers, or what they say of themselves, have changed."""
        self.names = tuple(worker.worker_id for worker in self.workers)
        self._columns = Columns(self._fleet, [worker.row for worker in self.workers])
        self._numbers = neighbours([self.index.number(name) for name in self.names])
        self._block_sizes = np.array([worker.info.models[self.name] for worker in self.workers], np.float64)
        self._ones = np.ones(len(self.workers))

    def place(self, ticket: Ticket, *, now: float) -> Place | None:
        """None for a ticket that does not wait here."""
        position = self.queue.position(ticket)
        return Place(position, self.wait_s(position, now=now)) if position is not None else None

    def wait_s(self, position: int, *, now: float) -> float | None:
        """When a request that has so many before it is dispatched, if the queue drains as lately; None if unknown."""
        rate = self.drain_rate.per_second(now=now)
        return (position + 1) / rate if rate > 0.0 else None

    def retry_after_s(self, priority: int, *, now: float) -> float:
        """When a request that is turned away now would find those gone that wait at its priority and above."""
        wait_s = self.wait_s(self.queue.num_from(priority), now=now)
        if wait_s is None:
            return _DEFAULT_RETRY_AFTER_S
        least, most = _RETRY_AFTER_S
        return min(most, max(least, wait_s))
