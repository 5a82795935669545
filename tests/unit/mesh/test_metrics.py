"""What all metrics have in common, and what bounds them."""

from __future__ import annotations

import mmap
import re
import struct
import threading
import time
import tomllib
from pathlib import Path

import pytest

from inferway import REVISION, VERSION
from inferway.metrics import MULTIPROC_DIR, OTHER, CappedLabel, Described, Registry
from scripts.metrics_page import LABELS, services

METRICS = [metric for metrics in services().values() for metric in metrics]


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_labels_and_docs(metric: Described) -> None:
    """Names say service and unit, labels are bounded ones, and the meaning is one sentence."""
    assert re.fullmatch(r"inferway_(gateway|router|worker)_[a-z][a-z0-9_]*[a-z0-9]", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert metric.kind != "histogram" or metric.name.endswith("_seconds")
    assert set(metric.labels) <= LABELS.keys()
    assert not {"le", "quantile", "request_id", "key_id", "user"} & set(metric.labels)
    assert ("tenant" in metric.labels) == metric.name.startswith("inferway_gateway_tenant_")
    assert metric.doc[0].isupper() or metric.doc[0].isdigit()
    assert metric.doc.endswith(".")


def test_names_are_declared_once() -> None:
    """No two metrics of a service have one name."""
    names = [metric.name for metric in METRICS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("service", ["gateway", "router", "worker"])
def test_build_info(service: str) -> None:
    """Every service tells which version runs, and that is the one of the project."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["version"] == VERSION
    page = Registry(service).render().decode()
    labels = rf'python="3[^"]+",revision="{REVISION}",version="{VERSION}"'
    assert re.search(rf"^inferway_{service}_build_info\{{{labels}\}} 1\.0$", page, re.M)


def test_families_are_made_anew() -> None:
    """What a collector reads at a scrape is described like the rest, and has no samples of the scrape before."""
    registry = Registry("router")
    family = registry.family("worker_slots", "Slots.", "worker")
    family().add_metric(["a"], 1.0)
    assert family().samples == []
    assert registry.described[-1] == ("inferway_router_worker_slots", "gauge", ("worker",), "Slots.")


def test_series_of_a_counter() -> None:
    """A counter is one series, a histogram its buckets, sum and count."""
    registry = Registry("gateway")
    registry.counter("requests", "Requests.").inc()
    registry.histogram("queue_time_seconds", "Queued.", buckets=(1.0,)).observe(0.5)
    lines = [line.split()[0] for line in registry.render().decode().splitlines() if line.startswith("inferway_")]
    assert lines[1:] == [
        "inferway_gateway_requests_total",
        'inferway_gateway_queue_time_seconds_bucket{le="1.0"}',
        'inferway_gateway_queue_time_seconds_bucket{le="+Inf"}',
        "inferway_gateway_queue_time_seconds_count",
        "inferway_gateway_queue_time_seconds_sum",
    ]


def test_capped_label() -> None:
    """The first names are kept for good, further ones are counted together."""
    label = CappedLabel(2)
    assert [label(name) for name in ("a", "b", "c", "a", "c", "b")] == ["a", "b", OTHER, "a", OTHER, "b"]


def test_a_file_that_is_being_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that starts beside another one waits for what that has made and not filled yet."""
    monkeypatch.setenv(MULTIPROC_DIR, str(tmp_path))
    registry = Registry("gateway")
    made = tmp_path / "counter_9.db"
    made.touch()

    def fill() -> None:
        time.sleep(0.05)
        made.write_bytes(struct.pack("<i", 8).ljust(mmap.PAGESIZE, b"\0"))

    filling = threading.Thread(target=fill)
    filling.start()
    assert registry.label_values("model") == set()
    filling.join()
