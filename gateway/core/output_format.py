"""Structured output: what `response_format`, and the guided_* fields of other servers, ask of the text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from inferway.errors import invalid

from .body import json_type
from .constraints import Constraint, json_schema, one_of
from .schemas import compiled

MAX_CHOICES_OF_TEXT = 1000
MAX_GRAMMAR_CHARACTERS = 65_536
_FORMATS = ("text", "json_object", "json_schema")


def read_format(response_format: Mapping[str, Any] | None, guided: Mapping[str, Any]) -> Constraint | None:
    """`guided` are the guided_* fields that were sent; at most one thing may be asked for. Raises ApiError (400)."""
    found = [constraint for constraint in (_response_format(response_format), *_guided(guided)) if constraint]
    if len(found) > 1:
        raise invalid(
            found[1].param, f"'{found[1].param}' and '{found[0].param}' exclude each other; send one of them."
        )
    return found[0] if found else None


def _response_format(given: Mapping[str, Any] | None) -> Constraint | None:
    if given is None:
        return None
    kind = given.get("type")
    if kind not in _FORMATS:
        shown = f"'{kind[:64]}'" if isinstance(kind, str) else json_type(kind)
        raise invalid(
            "response_format.type", f"'response_format.type' must be one of {', '.join(_FORMATS)}, got {shown}."
        )
    if kind == "text":
        return None
    if kind == "json_object":
        return json_schema(None, "response_format")
    inner = given.get("json_schema")
    if not isinstance(inner, Mapping):
        raise invalid(
            "response_format.json_schema",
            f"'response_format.json_schema' must be an object, got {json_type(inner)}.",
        )
    schema = inner.get("schema")
    if not isinstance(schema, dict | None):
        path = "response_format.json_schema.schema"
        raise invalid(path, f"'{path}' must be an object, got {json_type(schema)}.")
    return json_schema(compiled(schema or {}, "response_format.json_schema.schema").schema, "response_format")


def _guided(fields: Mapping[str, Any]) -> list[Constraint]:
    found = []
    for name, value in fields.items():
        if value is None:
            continue
        if name == "guided_json":
            found.append(json_schema(compiled(_schema(value, name), name).schema, name))
        elif name == "guided_choice":
            if not 1 <= len(value) <= MAX_CHOICES_OF_TEXT or not all(value):
                raise invalid(name, f"'{name}' must be a list of 1 to {MAX_CHOICES_OF_TEXT} texts that are not empty.")
            found.append(one_of(value, name))
        else:
            if not 1 <= len(value) <= MAX_GRAMMAR_CHARACTERS:
                raise invalid(name, f"'{name}' must have 1 to {MAX_GRAMMAR_CHARACTERS} characters, got {len(value)}.")
            found.append(Constraint("regex" if name == "guided_regex" else "ebnf", value, name))
    return found


def _schema(given: dict[str, Any] | str, name: str) -> dict[str, Any]:
    """Some clients write the object out."""
    if not isinstance(given, str):
        return given
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError):
        raise invalid(name, f"'{name}' is a text that is not valid JSON.") from None
    if not isinstance(value, dict):
        raise invalid(name, f"'{name}' must be an object, got {json_type(value)}.")
    return value
