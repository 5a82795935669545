"""Dashboards ask for what there is, in words that Prometheus understands."""

from __future__ import annotations

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.prometheus import (
    OF_REDIS,
    Shown,
    alerts,
    dashboards,
    declared,
    labels_of,
    needs_promtool,
    promtool,
    rules,
    shown,
)

SERIES = declared()
# Prometheus puts these to every series.
OF_SCRAPES = {"instance", "job"}


@needs_promtool
def test_expressions_are_valid(tmp_path: Path) -> None:
    """Each is one that Prometheus would take as a rule."""
    recorded = [{"record": f"shown:{number}", "expr": one.expr} for number, one in enumerate(shown())]
    assert recorded
    file = tmp_path / "shown.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "shown", "rules": recorded}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "expr",
    [one.expr for one in shown()] + [rule["expr"] for rule in rules()],
    ids=[f"{one.dashboard}: {one.panel}" for one in shown()] + [rule.get("alert", "recorded") for rule in rules()],
)
def test_metrics_are_there(expr: str) -> None:
    """Every metric that is named is declared by a service."""
    recorded = {rule["record"] for rule in rules() if "record" in rule}
    names = re.findall(r"\binferway[:_][a-z0-9_:]+", expr)
    assert names
    assert set(names) <= SERIES.keys() | recorded


@pytest.mark.parametrize("expr", {*(one.expr for one in shown()), *(rule["expr"] for rule in rules())})
def test_labels_are_there(expr: str) -> None:
    """Every label that a metric is selected or summed by is one that it is declared with."""
    for name, label in labels_of(expr):
        if name.startswith("inferway:"):
            continue
        assert label in SERIES[name] | OF_SCRAPES, (name, label)


@pytest.mark.parametrize("one", shown(), ids=lambda one: f"{one.dashboard}: {one.panel}")
def test_legends(one: Shown) -> None:
    """A legend names labels that are left when the query has summed."""
    kept = {label for _, label in labels_of(one.expr)}
    assert set(re.findall(r"\{\{(\w+)\}\}", one.legend)) <= kept


def test_the_parts_are_shown() -> None:
    """What an alert looks at can be seen on a dashboard, to know since when."""
    seen = set(re.findall(r"inferway_[a-z0-9_]+", " ".join(one.expr for one in shown())))
    looked_at = set(re.findall(r"inferway_[a-z0-9_]+", " ".join(alert["expr"] for alert in alerts().values())))
    not_shown = {"inferway_worker_num_requests_running", "inferway_worker_step_seconds_count"}
    not_shown |= {name for name in looked_at if "settings_versions" in name or OF_REDIS.match(name)}
    assert looked_at - seen - not_shown == set()


@pytest.mark.parametrize("name", dashboards())
def test_panels(name: str) -> None:
    """They have different numbers and titles, do not overlap, fit the width, and say which data source they take."""
    dashboard = dashboards()[name]
    panels: list[dict[str, Any]] = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)
    assert dashboard["uid"] == f"inferway-{name}"
    for panel in panels:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["type"] == "row" or panel["datasource"]["uid"] == "${datasource}"
    for one, other in combinations([panel["gridPos"] for panel in panels], 2):
        apart = [one[side] + one[size] <= other[side] for side, size in (("x", "w"), ("y", "h"))]
        apart += [other[side] + other[size] <= one[side] for side, size in (("x", "w"), ("y", "h"))]
        assert any(apart), (one, other)
    used = set(re.findall(r"\$(\w+)", " ".join(target["expr"] for it in panels for target in it.get("targets", ()))))
    assert used | {"datasource"} == {variable["name"] for variable in dashboard["templating"]["list"]}
