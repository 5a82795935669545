"""Fields of tenants and keys as one types them: `quota.requests_per_minute=100 models=chat,llama-* project=`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

# Those that hold several words, so that nobody has to write JSON for them.
_LISTS = ("models",)
# Its names are patterns of models, which may have dots.
_BY_PATTERN = "model_quotas"


def patch_of(words: Sequence[str]) -> dict[str, Any]:
    """A merge patch; a value that is left empty takes the field away.

    A value is JSON where it can be read so, else text. Raises ValueError with a sentence.
    """
    patch: dict[str, Any] = {}
    for word in words:
        name, separator, text = word.partition("=")
        if not separator or not name or "" in (path := _path(name, text)):
            raise ValueError(f"must be FIELD=VALUE, got {word!r}")
        inner: Any = patch
        for step in path[:-1]:
            inner = inner.setdefault(step, {})
            if not isinstance(inner, dict):
                raise ValueError(f"{name!r} is given as a whole and in part")
        if path[-1] in inner:
            raise ValueError(f"{name!r} is given more than once")
        inner[path[-1]] = _value(path[0], text)
    return patch


def without_nulls(patch: Mapping[str, Any]) -> dict[str, Any]:
    """The document that a patch makes of nothing."""
    return {
        name: without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in patch.items()
        if value is not None
    }


def _path(name: str, text: str) -> list[str]:
    first, separator, rest = name.partition(".")
    if first != _BY_PATTERN or not separator:
        return name.split(".")
    if not text or text.lstrip().startswith("{"):
        return [first, rest]
    pattern, _, last = rest.rpartition(".")
    return [first, pattern, last]


def _value(field: str, text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return [word.strip() for word in text.split(",")] if field in _LISTS else text
