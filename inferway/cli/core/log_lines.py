"""Reads the logs of services: JSON lines, and whatever else a dying process writes."""

from __future__ import annotations

import json
from collections.abc import Sequence

_ROUTINE = ("debug", "info")


def telling(lines: Sequence[str], count: int) -> list[str]:
    """The last `count` lines that may explain an end: routine ones are left out, unless there are no others."""
    return [line for line in lines if line.strip() and not is_routine(line)][-count:] or list(lines[-count:])


def is_routine(line: str) -> bool:
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and record.get("level") in _ROUTINE
