"""Prometheus and its tools, where they are installed, and the files that are made for them."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from scripts.metrics_page import services
from tests.support.probes import http_json, http_text
from tests.support.waiting import wait_until

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = CHECKOUT / "helm/inferway/files"
RULES = FILES / "alerts/inferway.yaml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: scripts/setup_prometheus.sh installs it"
)
needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="prometheus is missing: scripts/setup_prometheus.sh installs it"
)

# Metrics of the books of quotas, which are there where Redis is.
OF_REDIS = re.compile(r"inferway_gateway_(quota_|settlements|spool_|ledger_|redis_)")


def rules() -> list[dict[str, Any]]:
    """All rules, recorded ones and alerts."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def promtool(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=60)


def promtool_check(page: bytes) -> subprocess.CompletedProcess[bytes]:
    """`promtool check metrics` on a page."""
    return subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60)


_SELECTOR = re.compile(r"\binferway[:_][a-z0-9_:]+(?:\{[^}]*\})?")
_AGGREGATED = re.compile(rf"\bby \(([^)]*)\) \(.*?({_SELECTOR.pattern})")


def selectors(expr: str) -> set[str]:
    """What an expression reads: names of metrics, with the labels that it asks of them."""
    return set(_SELECTOR.findall(expr))


def labels_of(expr: str) -> set[tuple[str, str]]:
    """Each metric with each label that an expression asks of it, to select by or to keep."""
    read = [(one.partition("{")[0], one.partition("{")[2]) for one in selectors(expr)]
    found = {(name, label) for name, said in read for label in re.findall(r"(\w+)\s*[=!]", said)}
    for labels, selector in _AGGREGATED.findall(expr):
        found |= {(selector.partition("{")[0], label.strip()) for label in labels.split(",") if label.strip()}
    return found


def runbook_section(link: str) -> str:
    """The text below the heading that the annotation of an alert leads to; empty where there is none."""
    page, _, anchor = link.partition("#")
    sections = re.split(r"^## ", (CHECKOUT / page).read_text(), flags=re.M)[1:]
    found = {re.sub(r"[^a-z0-9 -]", "", one.splitlines()[0].lower()).replace(" ", "-"): one for one in sections}
    return found.get(anchor, "")


class Shown(NamedTuple):
    """A query of a panel, with the variables replaced by what they are at first: everything."""

    dashboard: str
    panel: str
    expr: str
    legend: str


def dashboards() -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text()) for path in sorted((FILES / "dashboards").glob("*.json"))}


def shown() -> list[Shown]:
    """Every query of every dashboard."""
    return [
        Shown(name, panel["title"], re.sub(r"\$\w+", ".*", target["expr"]), target["legendFormat"])
        for name, dashboard in dashboards().items()
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def declared() -> dict[str, set[str]]:
    """The labels of every series that a service can have, by its name."""
    found: dict[str, set[str]] = {}
    for metrics in services().values():
        for metric in metrics:
            parts = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
            for part in parts:
                found[metric.name + part] = set(metric.labels) | ({"le"} if part == "_bucket" else set())
    return found


class Prometheus:
    """A real one on a free port, which scrapes every second and has our rules."""

    def __init__(
        self, folder: Path, targets: Mapping[str, Sequence[str]], labels: Mapping[str, str] | None = None
    ) -> None:
        """`targets` are addresses by job; `labels` are those that a discovery would add."""
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [
                {"job_name": job, "static_configs": [{"targets": list(addresses), "labels": dict(labels or {})}]}
                for job, addresses in targets.items()
            ],
        }
        file = folder / "prometheus.yaml"
        file.write_text(yaml.safe_dump(config))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = "127.0.0.1:{1}".format(*free.getsockname())
        self._log = (folder / "prometheus.log").open("w")
        flags = (
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
        )
        self._popen = subprocess.Popen(["prometheus", *flags], stdout=self._log, stderr=self._log)

    def __enter__(self) -> Prometheus:
        try:
            wait_until(self._is_ready, 60, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self._popen.terminate()
        self._popen.wait()
        self._log.close()

    def _is_ready(self) -> bool:
        assert self._popen.poll() is None, "Prometheus has ended"
        try:
            return bool(http_text(f"http://{self.address}/-/ready"))
        except OSError:
            return False

    def query(self, expr: str) -> list[Any]:
        """The series that an expression has now."""
        query = urllib.parse.urlencode({"query": expr})
        status, body = http_json(f"http://{self.address}/api/v1/query?{query}")
        assert status == 200, body
        result: list[Any] = body["data"]["result"]
        return result

    def alerts(self, name: str) -> list[Any]:
        """An alert as it would be sent on, once for each set of labels."""
        _, body = http_json(f"http://{self.address}/api/v1/alerts")
        return [alert for alert in body["data"]["alerts"] if alert["labels"]["alertname"] == name]

    def firing(self) -> set[str]:
        """Names of the alerts that fire now."""
        return {series["metric"]["alertname"] for series in self.query('ALERTS{alertstate="firing"}')}
