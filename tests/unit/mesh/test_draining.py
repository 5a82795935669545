"""What `python -m inferway drain` says."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.cli.core.draining import progress


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ({"drained": True, "requests": 2}, "a gets nothing new; 2 requests left"),
        ({"drained": True}, "a gets nothing new; nothing runs there"),
        ({"drained": True, "status": "lost", "requests": 9}, "a gets nothing new; nothing runs there (is lost)"),
        (
            {"drained": True, "status": "lost", "requests": 9, "requests_in_flight": 1},
            "a gets nothing new; 1 request left (is lost)",
        ),
        ({"drained": True, "status": "unspecified"}, "a gets nothing new; nothing runs there (is not here)"),
        ({"status": "ready", "requests": 5}, "a gets requests"),
        ({"status": "draining"}, "a gets requests again when it stops draining by itself"),
        ({"status": "lost"}, "a gets requests when it is back (is lost)"),
        ({"status": "unspecified"}, "a gets requests when it is back (is not here)"),
        ({"worker_id": "a\x1b[2J", "status": "ready"}, "a?[2J gets requests"),
    ],
)
def test_a_line_for_each_router(answer: dict[str, Any], line: str) -> None:
    """What becomes of the worker there, how much is left, and why it is away where it is."""
    response = {
        "router_id": "r",
        "worker_id": "a",
        "drained": False,
        "status": "draining" if answer.get("drained") else "ready",
        "requests_in_flight": 0,
        "requests": 0,
    }
    assert progress(response | answer) == f"r: {line}"
