"""The installation that all clients share, and which tests there are: see docs/testing.md on `make test-clients`."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.cases.installation import Installation
from tests.clients.installation import running

# Outside of the clients' environment only the official client is there, which then is the one that `make test` has.
if importlib.util.find_spec("langchain_openai") is None:
    collect_ignore = [
        "test_backoff.py",
        "test_instructor.py",
        "test_langchain.py",
        "test_llama_index.py",
        "test_node.py",
        "test_snippets.py",
    ]


@pytest.fixture(scope="package")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with running(tmp_path_factory.mktemp("clients")) as installation:
        yield installation


@pytest.fixture(scope="package")
def base_url(installation: Installation) -> str:
    return installation.mesh.url("/v1")
