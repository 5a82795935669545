"""The tests of this folder need what `make test-containers` brings: an engine, and images."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.support.containers import Mesh

collect_ignore_glob = [] if os.environ.get("INFERWAY_CONTAINERS") else ["test_*.py"]


@pytest.fixture(scope="package")
def mesh() -> Iterator[Mesh]:
    with Mesh() as mesh:
        yield mesh
