"""Sums of ledger entries, and the times that they are asked for by; for the command and for the admin API."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from inferway.ledger import LedgerEntry

GROUPS = ("tenant", "project", "key", "model", "endpoint", "worker", "day", "outcome")
_AGO = re.compile(r"(\d{1,9})([smhd])")
_AGO_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def unix_ms(text: str, *, now_ms: int) -> int:
    """A day (its beginning), a time, or so long ago ("24h"); in UTC where nothing else is said. Raises ValueError."""
    if found := _AGO.fullmatch(text):
        return now_ms - round(timedelta(**{_AGO_UNITS[found[2]]: int(found[1])}).total_seconds() * 1000)
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("must be a day (2026-11-30), a time (2026-11-30T12:00) or so long ago (24h)") from None
    return round((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)


def day_of(entry: LedgerEntry) -> str:
    """The UTC day of its end."""
    return day_at(entry.finished_ms)


def day_at(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms / 1000, UTC):%Y-%m-%d}"


@dataclass(slots=True)
class Totals:
    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    reasoning_tokens: int = 0
    units: int = 0
    # Requests by outcome.
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, entry: LedgerEntry, requests: int) -> None:
        self.requests += requests
        self.prompt_tokens += entry.prompt_tokens
        self.cached_tokens += entry.cached_tokens
        self.completion_tokens += entry.completion_tokens
        self.reasoning_tokens += entry.reasoning_tokens
        self.units += entry.units
        if requests:
            self.outcomes[entry.outcome] += requests

    def as_json(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "completion_tokens": self.completion_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "units": self.units,
            "outcomes": dict(sorted(self.outcomes.items())),
        }


class Sums:
    """Of the entries that ended in [`since_ms`, `until_ms`), in groups; a request in several parts counts once."""

    def __init__(self, by: Sequence[str], since_ms: int | None = None, until_ms: int | None = None) -> None:
        """`by` are names of GROUPS."""
        self.by = by
        self.since_ms = since_ms
        self.until_ms = until_ms
        self.total = Totals()
        self._groups: dict[tuple[str, ...], Totals] = {}
        # Of the requests that were booked in parts, those that have been counted.
        self._in_parts: set[str] = set()

    def add(self, entry: LedgerEntry) -> None:
        if self.since_ms is not None and entry.finished_ms < self.since_ms:
            return
        if self.until_ms is not None and entry.finished_ms >= self.until_ms:
            return
        requests = 1
        if entry.part:
            requests = int(entry.reservation_id not in self._in_parts)
            self._in_parts.add(entry.reservation_id)
        group = tuple(day_of(entry) if name == "day" else str(getattr(entry, name)) for name in self.by)
        self._groups.setdefault(group, Totals()).add(entry, requests)
        self.total.add(entry, requests)

    def groups(self) -> Sequence[tuple[Mapping[str, str], Totals]]:
        """The values that each stands for, by name, in order."""
        return [(dict(zip(self.by, group, strict=True)), self._groups[group]) for group in sorted(self._groups)]

    def as_json(self) -> dict[str, Any]:
        return {
            "since_ms": self.since_ms,
            "until_ms": self.until_ms,
            "by": list(self.by),
            "groups": [{**names, **totals.as_json()} for names, totals in self.groups()],
            "total": self.total.as_json(),
        }
