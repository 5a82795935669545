"""Generated pages are what the code says now."""

from __future__ import annotations

import pytest

from scripts.generate_docs import CHECKOUT, pages

DOCS = ["docs/api.md", "docs/configuration.md", "docs/errors.md", "docs/metrics.md"]
DASHBOARDS = [f"helm/inferway/files/dashboards/{name}.json" for name in ("platform", "routing", "tenant")]


@pytest.mark.parametrize("path", DOCS + DASHBOARDS)
def test_generated_pages_are_fresh(path: str) -> None:
    """The committed page is what `make docs` would write."""
    assert (CHECKOUT / path).read_text() == pages()[path], "run `make docs`"
