"""How much more a model's workers can take, in figures that say when to add some."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

# Prompts that take the workers so long to compute leave no room for another: its first token would come that much
# later than the prompt itself needs.
FULL_BACKLOG_S = 2.0


class Capacity(NamedTuple):
    """What one worker has, and what of it is taken."""

    # Whether it may get requests.
    is_open: bool
    load: int
    slots: int
    # Infinite where it is not known.
    kv_total: float
    kv_promised: float
    # Prompt tokens that it has to compute, and how many it computes a second.
    pending_tokens: float
    prefill_rate: float


class Headroom(NamedTuple):
    # Of workers that may get requests.
    workers: int
    slots_free: float
    slots: float
    # Infinite where prompts wait and nobody computes them.
    prefill_backlog_s: float
    # In [0, 1]: the least of the free shares of slots, KV cache and prefill.
    ratio: float


def headroom(capacities: Iterable[Capacity], *, queued_tokens: int) -> Headroom:
    """Of one model's workers, and the prompt tokens that wait for them in the queue.

    Only workers that may get requests count. One that has more than its slots has none free, and takes none from the
    others. A worker of unknown KV capacity is left out of the share of the KV cache.
    """
    workers = 0
    slots = slots_free = rate = kv_total = kv_promised = 0.0
    pending: float = queued_tokens
    for capacity in capacities:
        if not capacity.is_open:
            continue
        workers += 1
        slots += capacity.slots
        slots_free += max(0.0, capacity.slots - capacity.load)
        rate += capacity.prefill_rate
        pending += capacity.pending_tokens
        if capacity.kv_total != inf:
            kv_total += capacity.kv_total
            kv_promised += min(capacity.kv_promised, capacity.kv_total)
    backlog_s = pending / rate if rate else (inf if pending else 0.0)
    shares = (
        slots_free / slots if slots else 0.0,
        1.0 - kv_promised / kv_total if kv_total else 1.0,
        max(0.0, 1.0 - backlog_s / FULL_BACKLOG_S),
    )
    return Headroom(workers, slots_free, slots, backlog_s, min(shares))
