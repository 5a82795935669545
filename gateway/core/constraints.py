"""What an answer must match, in the worker contract's terms: a schema, a regular expression, a grammar, or tags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from .schemas import with_references_moved

Kind = Literal["json_schema", "regex", "ebnf", "structural_tag"]

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Constraint:
    """`param` is the field that asked for it, for refusals."""

    kind: Kind
    text: str
    param: str

    @property
    def leaves_text_free(self) -> bool:
        """Whether there may be text and thoughts beside what is constrained."""
        return self.kind == "structural_tag"


def json_schema(schema: Mapping[str, Any] | None, param: str) -> Constraint:
    """No schema, and one that allows everything, mean any JSON object: a grammar of any value has no end."""
    return Constraint("json_schema", _encoded(schema or _ANY_OBJECT), param)


def one_of(choices: Sequence[str], param: str) -> Constraint:
    """One of some texts, as they are."""
    return Constraint("regex", "|".join(f"({_literal(choice)})" for choice in choices), param)


def calls(tools: Mapping[str, Mapping[str, Any]], *, param: str, most: int | None) -> Constraint:
    """A list of calls of some tools, one at least, in the form that tools/forced.py reads."""
    schemas = {name: arguments(schema) for name, schema in tools.items()}
    return Constraint("json_schema", _encoded(list_of_calls(schemas, arguments_key="parameters", most=most)), param)


def list_of_calls(
    schemas: Mapping[str, Mapping[str, Any]], *, arguments_key: str, most: int | None
) -> Mapping[str, Any]:
    """The schema of a list of objects with a tool's name and, under `arguments_key`, what its schema allows."""
    items = []
    for place, (name, schema) in enumerate(schemas.items()):
        # Where the tool's own root is within the whole.
        root = f"#/items/anyOf/{place}/properties/{arguments_key}"
        items.append(
            {
                "type": "object",
                "properties": {"name": {"const": name}, arguments_key: with_references_moved(schema, root)},
                "required": ["name", arguments_key],
                "additionalProperties": False,
            }
        )
    whole: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": items}}
    if most is not None:
        whole["maxItems"] = most
    return whole


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
