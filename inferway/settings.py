"""Files of settings: plain data brought into a declared shape, every mistake told by its place."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, date, datetime
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")


class SettingsError(ValueError):
    """What is wrong and where, a line for each mistake."""


def shaped(raw: Any, shape: type[T], path: str = "") -> T:
    """Raises SettingsError; `path` is where in the file `raw` stands."""
    try:
        return msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        message, _, location = str(error).partition(" - at ")
        # "`$.keys`", or "`key` in `$.keys`" for one of its names.
        kind, _, inside = location.strip("`").partition("` in `")
        place = (path + (inside or kind).removeprefix("$")).removeprefix(".")
        message = message.replace("`", "'").replace(" | null'", "'").replace("Object", "Mapping")
        sentence = "a name: " + message if inside else message
        raise SettingsError(f"{place}: {sentence}" if place else sentence) from None


def each(raw: Mapping[str, Any], shape: type[T], path: str) -> dict[str, T]:
    """The entries of a mapping, each in its shape. Raises SettingsError with the mistakes of all of them."""
    found: dict[str, T] = {}
    mistakes = []
    for name, entry in raw.items():
        try:
            found[name] = shaped(entry, shape, f"{path}.{name}")
        except SettingsError as error:
            mistakes.append(str(error))
    refuse(mistakes)
    return found


def refuse(mistakes: list[str]) -> None:
    """Raises SettingsError if there are any."""
    if mistakes:
        raise SettingsError("\n".join(mistakes))


def unix_s(day: date) -> int:
    """Unix seconds of the beginning of a day in UTC."""
    return int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp())
