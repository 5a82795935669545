"""Which lines of a log are shown to somebody who wonders why a process ended."""

from __future__ import annotations

import pytest

from inferway.cli.core.log_lines import telling

INFO = '{"level":"info","event":"config"}'
ERROR = '{"level":"error","event":"engine failed"}'
SENTENCE = "worker: --limit: must be at least 1, got '0'"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([], []),
        ([INFO, SENTENCE], [SENTENCE]),
        ([INFO, ERROR, INFO], [ERROR]),
        ([SENTENCE, ERROR, "Traceback"], [ERROR, "Traceback"]),
        # Nothing else there: the routine is better than silence.
        ([INFO, INFO, INFO], [INFO, INFO]),
        (["", "killed", ""], ["killed"]),
        (["[1, 2]", "17"], ["[1, 2]", "17"]),
    ],
)
def test_telling(lines: list[str], expected: list[str]) -> None:
    """Sentences, warnings and errors are shown, at most as many as asked for; routine lines only for want of others."""
    assert telling(lines, 2) == expected
