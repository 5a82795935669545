"""How much more a model's workers can take, in figures that say when to add some."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf
from typing import NamedTuple

from .fleet import Reading

# Prompts that take the workers so long to compute leave no room for another: its first token would come that much
# later than the prompt itself needs.
FULL_BACKLOG_S = 2.0


class Headroom(NamedTuple):
    # Of workers that may get requests.
    workers: int
    slots_free: float
    slots: float
    # Infinite where prompts wait and nobody computes them.
    prefill_backlog_s: float
    # In [0, 1]: the least of the free shares of slots, KV cache and prefill.
    ratio: float


def headroom(readings: Iterable[Reading[float]], *, queued_tokens: int) -> Headroom:
    """Of one model's workers, and the prompt tokens that wait for them in the queue.

    Only workers that may get requests count. One that has more than its slots has none free, and takes none from the
    others. A worker of unknown KV capacity is left out of the share of the KV cache.
    """
    workers = 0
    slots = slots_free = rate = kv_total = kv_promised = 0.0
    pending: float = queued_tokens
    for reading in readings:
        if not reading.is_open:
            continue
        workers += 1
        slots += reading.slots
        slots_free += max(0.0, reading.slots - reading.load)
        rate += reading.prefill_rate
        pending += reading.pending_tokens
        if reading.kv_total != inf:
            kv_total += reading.kv_total
            kv_promised += min(reading.kv_promised, reading.kv_total)
    backlog_s = pending / rate if rate else (inf if pending else 0.0)
    shares = (
        slots_free / slots if slots else 0.0,
        1.0 - kv_promised / kv_total if kv_total else 1.0,
        max(0.0, 1.0 - backlog_s / FULL_BACKLOG_S),
    )
    return Headroom(workers, slots_free, slots, backlog_s, min(shares))
