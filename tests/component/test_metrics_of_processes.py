"""Metrics of several processes of one service: real processes that are killed, and what their directory says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from inferway.metrics import MULTIPROC_DIR, MULTIPROC_SLOT, forget_process

CHECKOUT = Path(__file__).parents[2]
COUNTS = """
import os, sys
from inferway.metrics import Registry
registry = Registry("gateway")
registry.counter("requests", "Requests.", "model").labels("m").inc(10)
registry.histogram("queue_time_seconds", "Queued.", buckets=(1.0,)).observe(0.5)
registry.gauge("requests_in_flight", "Requests.").inc(3)
print(registry.render().decode() if len(sys.argv) > 1 else "", flush=True)
os.kill(os.getpid(), 9)
"""
# Each process has tenants and models that no other has seen.
STRANGERS = """
import os
from gateway.metrics import Metrics
from inferway.metrics import Registry
registry = Registry("gateway")
metrics = Metrics(registry)
for number in range(1000):
    name = f"{os.getpid()}-{number}"
    metrics.tenant_requests.labels(metrics.tenant(name), "ok").inc()
    metrics.requests.labels(metrics.model(name, is_known=True), "ok").inc()
print(registry.render().decode(), flush=True)
os.kill(os.getpid(), 9)
"""


def run(directory: Path, slot: int, *args: str, script: str = COUNTS) -> str:
    """A process that counts ten requests, has three in flight, and is killed."""
    environ = {**os.environ, MULTIPROC_DIR: str(directory), MULTIPROC_SLOT: str(slot)}
    command = [sys.executable, "-c", script, *args]
    return subprocess.run(command, cwd=CHECKOUT, env=environ, capture_output=True, text=True).stdout


def test_a_successor_counts_on(tmp_path: Path) -> None:
    """Counts of killed processes stay, their gauges go, and the files do not become more."""
    for slot in (0, 1):
        run(tmp_path, slot)
    before = {path.name for path in tmp_path.iterdir()}
    for slot in (0, 1):
        forget_process(slot, str(tmp_path))
        run(tmp_path, slot)
    forget_process(0, str(tmp_path))
    page = run(tmp_path, 0, "show")
    assert 'inferway_gateway_requests_total{model="m"} 50.0' in page
    assert 'inferway_gateway_queue_time_seconds_bucket{le="1.0"} 5.0' in page
    assert "inferway_gateway_requests_in_flight 6.0" in page
    assert page.count("inferway_gateway_build_info{") == 1
    assert float(re.findall(r"^process_cpu_seconds_total (\S+)$", page, re.M)[0]) > 0.0
    assert float(re.findall(r"^process_open_fds (\S+)$", page, re.M)[0]) > 2.0
    assert float(re.findall(r"^process_resident_memory_bytes (\S+)$", page, re.M)[0]) > 1e6
    assert {path.name for path in tmp_path.iterdir()} == before


def test_successors_do_not_make_series_for_ever(tmp_path: Path) -> None:
    """The caps of tenants and models hold over restarts: who follows knows what has series."""
    pages = [run(tmp_path, 0, script=STRANGERS) for _ in range(3)]
    for name, most in (("tenant_requests", 201), ("requests", 501)):
        counts = [len(re.findall(rf"^inferway_gateway_{name}_total\{{", page, re.M)) for page in pages]
        assert counts == [most] * 3
