"""Generated pages are what the code says now."""

from __future__ import annotations

from scripts.generate_docs import CHECKOUT, pages


def test_generated_pages_are_fresh() -> None:
    """Every committed page is what `make docs` would write."""
    stale = [path for path, text in pages().items() if (CHECKOUT / path).read_text() != text]
    assert stale == [], "run `make docs`"
