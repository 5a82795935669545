"""The parts of a JSON schema, each with its place, and the schemas in structural tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# Members of a schema that hold schemas by name, and those that hold no schema.
_NAMED = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_VALUES = frozenset({"enum", "const", "default", "examples", "example", "required"})


def subschemas(schema: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The schema and all schemas in it, each with its JSON pointer, in the order in which they are written."""
    pending: list[tuple[str, Mapping[str, Any]]] = [("#", schema)]
    while pending:
        pointer, part = pending.pop()
        yield pointer, part
        inner = [found for key, value in part.items() for found in _inner(f"{pointer}/{_escaped(key)}", key, value)]
        pending += reversed(inner)


def schemas_of_tags(document: Any) -> list[Any]:
    """The JSON schemas in a document of structural tags, in order; they may be none."""
    if isinstance(document, list):
        return [schema for item in document for schema in schemas_of_tags(item)]
    if not isinstance(document, Mapping):
        return []
    if document.get("type") == "json_schema":
        return [document.get("json_schema")]
    return [schema for value in document.values() for schema in schemas_of_tags(value)]


def _inner(pointer: str, key: str, value: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if key in _VALUES:
        return
    if isinstance(value, Mapping):
        if key not in _NAMED:
            yield pointer, value
            return
        for name, one in value.items():
            if isinstance(one, Mapping):
                yield f"{pointer}/{_escaped(name)}", one
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for place, one in enumerate(value):
            if isinstance(one, Mapping):
                yield f"{pointer}/{place}", one


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")
