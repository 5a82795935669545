"""Sums of ledger entries, and the times that they are asked for by."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.cli.core.usage_table import usage_table
from inferway.ledger import LedgerEntry
from inferway.usage import Sums, unix_ms

NOW_MS = 1_796_050_000_000
DAY_MS = 86_400_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("2026-11-30", 1_795_996_800_000),
        ("2026-11-30T12:00", 1_796_040_000_000),
        ("2026-11-30T12:00:00+01:00", 1_796_036_400_000),
        ("2026-11-30T12:00:00Z", 1_796_040_000_000),
        ("90s", NOW_MS - 90_000),
        ("24h", NOW_MS - DAY_MS),
        ("7d", NOW_MS - 7 * DAY_MS),
    ],
)
def test_times(text: str, ms: int) -> None:
    """Days and times are in UTC unless they say otherwise; a number with a unit is so long ago."""
    assert unix_ms(text, now_ms=NOW_MS) == ms


@pytest.mark.parametrize("text", ["yesterday", "30", "2026-13-01", "24 h", "-1d"])
def test_what_is_no_time(text: str) -> None:
    """Is refused with what it must be."""
    with pytest.raises(ValueError, match="must be a day"):
        unix_ms(text, now_ms=NOW_MS)


NAMES = st.sampled_from(["a", "b"])
ENTRIES = st.builds(
    LedgerEntry,
    reservation_id=st.sampled_from("12345678"),
    part=st.sampled_from(["", "x", "y"]),
    tenant=NAMES,
    model=NAMES,
    outcome=st.sampled_from(["ok", "worker_failed"]),
    prompt_tokens=st.integers(0, 9),
    completion_tokens=st.integers(0, 9),
    units=st.integers(0, 9),
    finished_ms=st.integers(0, 3 * DAY_MS),
)


@given(st.lists(ENTRIES), st.integers(0, 3 * DAY_MS), st.integers(0, 3 * DAY_MS))
def test_sums_are_those_of_the_entries(entries: list[LedgerEntry], since: int, until: int) -> None:
    """In every group and in all, for what ended in the time asked for; a request in parts counts once."""
    sums = Sums(("tenant", "model"), since, until)
    for entry in entries:
        sums.add(entry)
    counting = [entry for entry in entries if since <= entry.finished_ms < until]
    in_parts = {entry.reservation_id for entry in counting if entry.part}
    requests = sum(not entry.part for entry in counting) + len(in_parts)
    assert sums.total.requests == requests == sum(sums.total.outcomes.values())
    assert sums.total.prompt_tokens == sum(entry.prompt_tokens for entry in counting)
    tokens: Counter[tuple[str, str]] = Counter()
    for entry in counting:
        tokens[entry.tenant, entry.model] += entry.completion_tokens
    assert {tuple(names.values()): totals.completion_tokens for names, totals in sums.groups()} == dict(tokens)
    assert sum(totals.units for _, totals in sums.groups()) == sums.total.units
    assert sum(totals.requests for _, totals in sums.groups()) == requests


def test_days_are_those_of_the_end() -> None:
    """In UTC; the table has a row a group, and one for all."""
    sums = Sums(("day",))
    for number, finished in enumerate((0, DAY_MS - 1, DAY_MS)):
        entry = LedgerEntry(
            reservation_id=str(number),
            tenant="t",
            outcome="ok",
            prompt_tokens=1000,
            units=2_000_500,
            finished_ms=finished,
        )
        sums.add(entry)
    assert usage_table(sums).splitlines() == [
        "day         requests  prompt  cached  completion  reasoning  weighted  outcomes",
        "1970-01-01         2   2,000       0           0          0   4,001.0  ok 2",
        "1970-01-02         1   1,000       0           0          0   2,000.5  ok 1",
        "total              3   3,000       0           0          0   6,001.5  ok 3",
    ]
