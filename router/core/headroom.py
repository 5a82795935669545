"""How much more a model's workers can take, in figures that say when to add some."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from .messages import WorkerStatus
from .worker import Worker

# Prompts that take the workers so long to compute leave no room for another: its first token would come that much
# later than the prompt itself needs.
FULL_BACKLOG_S = 2.0


class Capacity(NamedTuple):
    """What a worker has, and what of it is taken: requests and tokens, and prompt tokens a second."""

    slots: int
    load: int
    # None: unknown.
    kv_total_tokens: int | None
    # Used, or promised to prompts on their way.
    kv_taken_tokens: int
    pending_tokens: int
    prefill_rate: float


class Headroom(NamedTuple):
    # Workers that may get requests.
    workers: int
    slots_free: int
    slots: int
    # Infinite where prompts wait and nobody computes them.
    prefill_backlog_s: float
    # In [0, 1]: the least of the free shares of slots, KV cache and prefill.
    ratio: float


def capacity(worker: Worker) -> Capacity | None:
    """None for a worker that may get no requests."""
    if worker.status is not WorkerStatus.READY or not worker.breaker.admits:
        return None
    return Capacity(
        slots=worker.slots_now,
        load=worker.books.load,
        kv_total_tokens=worker.kv_total_tokens,
        kv_taken_tokens=worker.report.kv_used_tokens + worker.books.uncached_tokens,
        pending_tokens=worker.books.pending_tokens,
        prefill_rate=worker.prefill_rate,
    )


def headroom(capacities: Iterable[Capacity | None], *, queued_tokens: int) -> Headroom:
    """Of one model's workers, and the prompt tokens that wait for them in the queue.

    One that has more than its slots has none free, and takes none from the others. A worker of unknown KV capacity is
    left out of the share of the KV cache.
    """
    workers = slots = slots_free = kv_total = kv_taken = 0
    pending, rate = queued_tokens, 0.0
    for one in capacities:
        if one is None:
            continue
        workers += 1
        slots += one.slots
        slots_free += max(0, one.slots - one.load)
        rate += one.prefill_rate
        pending += one.pending_tokens
        if one.kv_total_tokens:
            kv_total += one.kv_total_tokens
            kv_taken += min(one.kv_taken_tokens, one.kv_total_tokens)
    backlog_s = pending / rate if rate else (inf if pending else 0.0)
    shares = (
        slots_free / slots if slots else 0.0,
        1.0 - kv_taken / kv_total if kv_total else 1.0,
        max(0.0, 1.0 - backlog_s / FULL_BACKLOG_S),
    )
    return Headroom(workers, slots_free, slots, backlog_s, min(shares))
