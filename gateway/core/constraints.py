"""What an answer must match, in the worker contract's terms: a JSON schema, a regular expression or a grammar."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from .schemas import with_references_moved

Kind = Literal["json_schema", "regex", "ebnf"]

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Constraint:
    """`param` is the field that asked for it, for refusals."""

    kind: Kind
    text: str
    param: str


def json_schema(schema: Mapping[str, Any] | None, param: str) -> Constraint:
    """No schema, and one that allows everything, mean any JSON object: a grammar of any value has no end."""
    return Constraint("json_schema", _encoded(schema or _ANY_OBJECT), param)


def one_of(choices: Sequence[str], param: str) -> Constraint:
    """One of some texts, as they are."""
    return Constraint("regex", "|".join(f"({_literal(choice)})" for choice in choices), param)


def calls(tools: Mapping[str, Mapping[str, Any]], *, param: str, most: int | None) -> Constraint:
    """A list of calls of some tools, one at least, in the form that tools/forced.py reads."""
    items = []
    for place, (name, schema) in enumerate(tools.items()):
        # Where the tool's own root is within the whole.
        root = f"#/items/anyOf/{place}/properties/parameters"
        items.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, "parameters": with_references_moved(arguments(schema), root)},
                "required": ["name", "parameters"],
                "additionalProperties": False,
            }
        )
    whole: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
    if most is not None:
        whole["maxItems"] = most
    return Constraint("json_schema", _encoded(whole), param)


def call(schema: Mapping[str, Any], *, param: str) -> Constraint:
    """The arguments of one tool and nothing else."""
    return Constraint("json_schema", _encoded(arguments(schema)), param)


def arguments(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """A tool's schema as one of an object, which arguments always are; a tool without a schema takes none."""
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return schema if "type" in schema or "$ref" in schema or "anyOf" in schema else {"type": "object", **schema}


# What every dialect of regular expressions means by itself; re.escape adds some that not all of them know.
_SPECIAL = re.compile(r"[\\.^$|?*+(){}\[\]]")


def _literal(text: str) -> str:
    return _SPECIAL.sub(r"\\\g<0>", text).replace("\n", "\\n")


def _encoded(schema: Mapping[str, Any]) -> str:
    return msgspec.json.encode(schema).decode()
