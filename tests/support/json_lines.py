"""A growing file of JSON lines, each read and parsed once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class JsonLines:
    """`read` takes in what has come since the last call and returns all objects so far; other lines are left out."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._objects: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        with self._path.open("rb") as file:
            file.seek(self._offset)
            # A last line without its end is still being written.
            complete = file.read().rpartition(b"\n")[0]
        if complete:
            self._offset += len(complete) + 1
            self._objects += [parsed for line in complete.split(b"\n") if (parsed := _object(line)) is not None]
        return self._objects


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        parsed = json.loads(line)
    except ValueError:
        return None
    return parsed if isinstance(parsed, dict) else None
