"""Prometheus metrics for one process or, with PROMETHEUS_MULTIPROC_DIR set, for all processes of a service.

prometheus_client chooses its storage when it is imported, so a parent sets the variable in its children's
environment and never in its own.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"

# Seconds. Wide enough for a queue and a long prefill, fine enough for one decode step.
LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)


def render() -> bytes:
    """The exposition text, summed over all processes where there are several."""
    if MULTIPROC_DIR not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def forget_process(pid: int, directory: str) -> None:
    """Drop the gauges of a process that has ended; its counters stay in the sums."""
    mark_process_dead(pid, directory)  # type: ignore[no-untyped-call]


class BulkHistogram:
    """A histogram for the path of a token: counts in a list, handed to Prometheus by `flush`.

    `observe` costs a bisection; `flush`, to be called about once a second, costs one addition a bucket.
    """

    def __init__(self, name: str, doc: str, buckets: Sequence[float] = GAP_BUCKETS) -> None:
        self._histogram: Any = Histogram(name, doc, buckets=buckets)
        self._bounds = list(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def flush(self) -> None:
        """Uses the buckets of prometheus_client's Histogram, which has no call for many observations at once."""
        for bucket, count in zip(self._histogram._buckets, self._counts, strict=True):
            if count:
                bucket.inc(count)
        self._histogram._sum.inc(self._sum)
        self._counts = [0] * len(self._counts)
        self._sum = 0.0
