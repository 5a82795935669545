"""The figures of a simulation as text: tables for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from .figures import Figures, Summary

# Groups in a table; JSON has all.
_SHOWN_GROUPS = 20
_DIGITS = 6

_TIMES = ("TTFT mean", "p50", "p99", "E2E mean", "p99", "queue mean")


@dataclass(frozen=True, slots=True)
class Run:
    """One policy on one trace."""

    policy: str
    speed: float
    workers: int
    seed: int
    # Where the speed was chosen by it: the share of what round robin carries, and the speed that this is.
    load: float | None
    round_robin_speed: float | None
    summary: Summary


def json_line(run: Run) -> str:
    """One object; times in seconds, ratios from 0 to 1, null for what no request tells."""
    summary = run.summary
    values: dict[str, Any] = {
        "policy": run.policy,
        "speed": run.speed,
        "workers": run.workers,
        "seed": run.seed,
        "load": run.load,
        "round_robin_speed": run.round_robin_speed,
        **asdict(summary.figures),
        "request_spread": summary.spread.requests,
        "token_spread": summary.spread.tokens,
        "drain_s": summary.drain_s,
        "tenants": {name: asdict(figures) for name, figures in sorted(summary.tenants.items())},
        "priorities": {str(name): asdict(figures) for name, figures in sorted(summary.priorities.items())},
    }
    return json.dumps(_rounded(values))


def tables(runs: Sequence[Run]) -> str:
    """All policies in one table, then each policy's tenants and priorities where the trace has several."""
    head = ("policy", *_TIMES, "cached", "predicted", "requests max/mean", "tokens max/mean", "failed")
    rows = [
        (
            run.policy,
            *_times(run.summary.figures),
            *_ratios(run.summary.figures),
            _number(run.summary.spread.requests, 2),
            _number(run.summary.spread.tokens, 2),
            str(run.summary.figures.failed),
        )
        for run in runs
    ]
    parts = ["times in seconds; cached, predicted: share of the prompt tokens\n\n" + _table(head, rows)]
    for run in runs:
        # The largest tenants, the highest priorities.
        tenants = sorted(run.summary.tenants.items(), key=lambda item: (-item[1].requests, item[0]))
        priorities = sorted(run.summary.priorities.items(), reverse=True)
        parts += _groups(run.policy, "tenant", [(name or "(none)", figures) for name, figures in tenants])
        parts += _groups(run.policy, "priority", [(str(name), figures) for name, figures in priorities])
    return "\n\n".join(parts)


def _groups(policy: str, kind: str, groups: Sequence[tuple[str, Figures]]) -> list[str]:
    if not groups:
        return []
    shown = groups[:_SHOWN_GROUPS]
    head = (kind, "requests", *_TIMES, "cached", "predicted", "failed")
    rows = [
        (name, str(figures.requests), *_times(figures), *_ratios(figures), str(figures.failed))
        for name, figures in shown
    ]
    more = f"\nand {len(groups) - len(shown)} more" if len(groups) > len(shown) else ""
    return [f"{policy}, by {kind}\n\n{_table(head, rows)}{more}"]


def _times(figures: Figures) -> tuple[str, ...]:
    times = (
        figures.ttft_mean_s,
        figures.ttft_p50_s,
        figures.ttft_p99_s,
        figures.e2e_mean_s,
        figures.e2e_p99_s,
        figures.queue_mean_s,
    )
    return tuple(_number(time, 3) for time in times)


def _ratios(figures: Figures) -> tuple[str, str]:
    return _number(figures.hit_ratio, 3), _number(figures.predicted_hit_ratio, 3)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns of the width of their longest cell, numbers to the right."""
    lines = [head, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _rounded(value: Any) -> Any:
    """Numbers short enough to be read."""
    if isinstance(value, float):
        return round(value, _DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(inner) for name, inner in value.items()}
    return value
