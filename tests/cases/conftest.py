"""The installation that most cases share: one scripted worker that plays the case file and keeps a record."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cases.installation import CASES_FILE, Installation
from tests.support.processes import Mesh


@pytest.fixture(scope="package")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    record = tmp_path_factory.mktemp("handed") / "record.jsonl"
    worker = ["--engine", "scripted", "--name", "A", "--scripts", str(CASES_FILE), "--record", str(record)]
    worker += ["--max-running", "600", "--max-waiting", "600"]
    with Mesh(workers=[worker], gateway_args=["--heartbeat-s", "1"]) as mesh:
        yield Installation(mesh, record)
