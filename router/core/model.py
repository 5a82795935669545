"""Everything the dispatcher keeps for one model name."""

from __future__ import annotations

from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared, KvEvent

from .index import PrefixIndex
from .queue import QueueLimits, WaitingQueue
from .rate import DecayingRate
from .worker import Worker

# Blocks that the index keeps for a worker whose KV capacity is unknown.
_DEFAULT_CAPACITY_BLOCKS = 16_384
_RETRY_AFTER_S = (1.0, 60.0)
# Before any rate of dispatches is known.
_DEFAULT_RETRY_AFTER_S = 5.0


class Model:
    def __init__(self, name: str, limits: QueueLimits) -> None:
        self.name = name
        self.queue = WaitingQueue(limits)
        self.index = PrefixIndex()
        self.workers: list[Worker] = []
        # Requests a second.
        self.dispatch_rate = DecayingRate()

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

    def size_index(self, worker: Worker) -> None:
        """Bound the worker's part of the index by its KV capacity."""
        total = worker.kv_total_tokens
        blocks = _DEFAULT_CAPACITY_BLOCKS if total is None else total // worker.info.models[self.name]
        self.index.add_worker(worker.worker_id, capacity_blocks=blocks)

    def take_kv_event(self, worker_id: str, event: KvEvent) -> None:
        match event:
            case BlocksStored():
                self.index.insert(worker_id, event.block_hashes)
            case BlocksRemoved():
                self.index.remove(worker_id, event.block_hashes)
            case CacheCleared():
                self.index.clear(worker_id)

    def retry_after_s(self, *, now: float) -> float:
        """When a request that is turned away now would find the present queue gone."""
        rate = self.dispatch_rate.per_second(now=now)
        if rate <= 0.0:
            return _DEFAULT_RETRY_AFTER_S
        least, most = _RETRY_AFTER_S
        return min(most, max(least, (len(self.queue) + 1) / rate))
