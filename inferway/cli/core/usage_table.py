"""Sums of the ledger, for people."""

from __future__ import annotations

from inferway.cli.core.tables import count, table
from inferway.usage import Sums, Totals

_UNITS_A_TOKEN = 1000


def usage_table(sums: Sums) -> str:
    """A row for each group and, unless there is just one, one for all."""
    header = (*sums.by, "requests", "prompt", "cached", "completion", "reasoning", "weighted", "outcomes")
    rows = [(*names.values(), *_cells(totals)) for names, totals in sums.groups()]
    if not sums.by or len(rows) != 1:
        rows.append((*("total" if not at else "" for at in range(len(sums.by))), *_cells(sums.total)))
    return table(header, rows, left=(*range(len(sums.by)), len(header) - 1))


def _cells(totals: Totals) -> tuple[str, ...]:
    counts = (totals.prompt_tokens, totals.cached_tokens, totals.completion_tokens, totals.reasoning_tokens)
    outcomes = ", ".join(f"{name} {count(number)}" for name, number in totals.outcomes.most_common())
    return (count(totals.requests), *map(count, counts), f"{totals.units / _UNITS_A_TOKEN:,.1f}", outcomes)
