"""Prometheus and its tools, where they are installed, and the files that are made for them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
FILES = CHECKOUT / "helm/inferway/files"
RULES = FILES / "alerts/inferway.yaml"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is missing: scripts/setup_prometheus.sh installs it"
)


def rules() -> list[dict[str, Any]]:
    """All rules, recorded ones and alerts."""
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def promtool(*args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["promtool", *map(str, args)], capture_output=True, text=True, timeout=60)
