"""Prometheus metrics for one process or, with PROMETHEUS_MULTIPROC_DIR set, for all processes of a service.

prometheus_client chooses its storage when it is imported, so a parent sets the variable in its children's
environment and never in its own. It also gives each child a slot: files are named by it, and not by the process, so
that whoever follows a process that died counts on where that stopped, and the directory does not grow.
"""

from __future__ import annotations

import asyncio
import os
import platform
import struct
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, Literal, NamedTuple

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    values,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead
from prometheus_client.registry import Collector

from inferway import REVISION, VERSION
from inferway.exposition import TEXT, Readings, page

MULTIPROC_DIR = "PROMETHEUS_MULTIPROC_DIR"
MULTIPROC_SLOT = "INFERWAY_METRICS_SLOT"
# The label of what has no bound: names that come from outside, and those beyond a cap.
OTHER = "other"
# How often, and how long, a file is waited for that another process is about to fill.
_ATTEMPTS = 10
_FILLED_S = 0.02

# Seconds. Wide enough for a queue and a long prefill, fine enough for one decode step.
LATENCY_BUCKETS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0)
GAP_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0)


Kind = Literal["counter", "gauge", "histogram"]


class Described(NamedTuple):
    """A metric as it is listed in docs/metrics.md; `name` is the one to ask Prometheus for."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    doc: str


class Registry:
    """The metrics of one service: `inferway_<service>_<name>`. Several can live in one process."""

    def __init__(self, service: str) -> None:
        self._prefix = f"inferway_{service}_"
        self._is_shared = MULTIPROC_DIR in os.environ
        self.collectors = CollectorRegistry()
        # In the order in which they were declared.
        self.described: list[Described] = []
        self._readers: list[Callable[[], Iterable[Readings]]] = []
        # A further series for each counter and histogram, which nobody asks for.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        if not self._is_shared:
            for collector in (ProcessCollector, PlatformCollector, GCCollector):
                collector(registry=self.collectors)
        else:
            _use_slot()
        self._share = _ProcessShare(self.collectors) if self._is_shared else None
        build = self._new_gauge(
            "build_info",
            "1, with the version that runs and the revision it was built from.",
            *("version", "revision", "python"),
            multiprocess_mode="livemax",
        )
        build.labels(VERSION, REVISION, platform.python_version()).set(1)

    def name(self, name: str) -> str:
        return self._prefix + name

    def counter(self, name: str, doc: str, *labels: str) -> Counter:
        """Prometheus shows it with `_total` behind its name."""
        self._describe(f"{name}_total", "counter", doc, labels)
        return Counter(self.name(name), doc, labels, registry=self.collectors)

    def gauge(self, name: str, doc: str, *labels: str) -> Gauge:
        """Of several processes, the sum over those that live."""
        return self._new_gauge(name, doc, *labels, multiprocess_mode="livesum")

    def family(self, name: str, doc: str, *labels: str) -> Callable[[], Readings]:
        """A gauge of what is given to `add`: each call makes it anew, without samples."""
        self._describe(name, "gauge", doc, labels)
        return lambda: Readings(self.name(name), doc, labels)

    def histogram(self, name: str, doc: str, *labels: str, buckets: Sequence[float]) -> Histogram:
        self._describe(name, "histogram", doc, labels)
        return Histogram(self.name(name), doc, labels, buckets=buckets, registry=self.collectors)

    def bulk_histogram(self, name: str, doc: str, *, buckets: Sequence[float]) -> BulkHistogram:
        return BulkHistogram(self.histogram(name, doc, buckets=buckets), buckets)

    def add(self, read: Callable[[], Iterable[Readings]]) -> None:
        """What reads its gauges when it is asked, on the thread of the service; for services of one process."""
        self._readers.append(read)

    def label_values(self, label: str) -> set[str]:
        """Those that series of other processes, or of a predecessor, have; none where there is only this one."""
        if not self._is_shared:
            return set()
        samples = (sample for family in _Everything().collect() for sample in family.samples)
        return {sample.labels[label] for sample in samples if label in sample.labels}

    def tell_process(self) -> None:
        """Of several processes each adds what it takes of the machine, every few seconds; one alone is asked itself."""
        if self._share is not None:
            self._share.tell()

    def render(self, content_type: str = TEXT) -> bytes:
        """The page of metrics, summed over all processes where there are several."""
        return self._write(self._read(), content_type)

    async def scrape(self, content_type: str = TEXT) -> bytes:
        """The same without holding up the loop: it only reads, a thread writes."""
        return await asyncio.to_thread(self._write, self._read(), content_type)

    def _read(self) -> list[Readings]:
        return [readings for read in self._readers for readings in read()]

    def _write(self, readings: Iterable[Readings], content_type: str) -> bytes:
        if not self._is_shared:
            return page(self.collectors, readings, content_type)
        return page(_Everything(), readings, content_type)

    def _new_gauge(self, name: str, doc: str, *labels: str, multiprocess_mode: Literal["livesum", "livemax"]) -> Gauge:
        self._describe(name, "gauge", doc, labels)
        return Gauge(self.name(name), doc, labels, registry=self.collectors, multiprocess_mode=multiprocess_mode)

    def _describe(self, name: str, kind: Kind, doc: str, labels: tuple[str, ...]) -> None:
        self.described.append(Described(self.name(name), kind, labels, doc))


class _Everything(Collector):
    """What all processes of the service tell, each in its files."""

    def __init__(self) -> None:
        files = MultiProcessCollector(CollectorRegistry())  # type: ignore[no-untyped-call]
        self._read: Callable[[], Iterable[Metric]] = files.collect

    def collect(self) -> Iterable[Metric]:
        for _ in range(_ATTEMPTS):
            # A file is empty for a moment when its process has just made it.
            with suppress(struct.error):
                return list(self._read())
            time.sleep(_FILLED_S)
        return self._read()


class _ProcessShare:
    """This process's part of `process_*`, which are the sums over those that live; CPU time of the dead is kept."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._own = ProcessCollector(registry=None)
        self._cpu = Counter("process_cpu_seconds", "CPU time of all processes.", registry=registry)
        self._cpu_told = 0.0
        self._gauges = {
            name: Gauge(name, doc, registry=registry, multiprocess_mode="livesum")
            for name, doc in (
                ("process_resident_memory_bytes", "Resident memory of all processes."),
                ("process_open_fds", "Open files of all processes."),
            )
        }
        self.tell()

    def tell(self) -> None:
        found = {sample.name: sample.value for family in self._own.collect() for sample in family.samples}
        cpu = found.get("process_cpu_seconds_total", self._cpu_told)
        self._cpu.inc(max(0.0, cpu - self._cpu_told))
        self._cpu_told = cpu
        for name, gauge in self._gauges.items():
            gauge.set(found.get(name, 0.0))


class CappedLabel:
    """Values of a label of which there may be many: the first `limit` that come keep their name, the rest are OTHER."""

    def __init__(self, limit: int, known: Iterable[str] = ()) -> None:
        """`known` are names that have series already."""
        self._limit = limit
        self._known = set(known)

    def __call__(self, value: str) -> str:
        if value not in self._known:
            if len(self._known) >= self._limit:
                return OTHER
            self._known.add(value)
        return value


def forget_process(slot: int, directory: str) -> None:
    """Drop the gauges of a process that has ended; its counters stay in the sums, and its successor continues them."""
    mark_process_dead(slot, directory)  # type: ignore[no-untyped-call]


@cache
def _use_slot() -> None:
    """Name the files of this process by its slot, if it was given one."""
    slot = os.environ.get(MULTIPROC_SLOT)
    if slot is not None:
        values.ValueClass = values.MultiProcessValue(lambda: slot)  # type: ignore[no-untyped-call]


class BulkHistogram:
    """A histogram for the path of a token: counts in a list, handed to Prometheus by `flush`.

    `observe` costs a bisection; `flush`, to be called about once a second, costs one addition a bucket.
    """

    def __init__(self, histogram: Any, buckets: Sequence[float]) -> None:
        """`buckets` are those that the histogram was made with."""
        self._histogram = histogram
        self._bounds = list(buckets)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float, count: int = 1) -> None:
        self._counts[bisect_left(self._bounds, value)] += count
        self._sum += value * count

    def flush(self) -> None:
        """Uses the buckets of prometheus_client's Histogram, which has no call for many observations at once."""
        for bucket, count in zip(self._histogram._buckets, self._counts, strict=True):
            if count:
                bucket.inc(count)
        self._histogram._sum.inc(self._sum)
        self._counts = [0] * len(self._counts)
        self._sum = 0.0
