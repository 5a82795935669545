"""What xgrammar 0.2.7 reads in a JSON schema and does not enforce. Pure.

It would compile such a schema and let through what the schema forbids, without a word. tests/sglang/test_schemas.py
holds this list to xgrammar itself. Two things are let pass: `oneOf` is taken as `anyOf`, which is the same where the
alternatives do not overlap; and what stands beside `enum` and `const`, which leave nothing to be added.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inferway.errors import ApiError, Reason

from ...core.schemas import schemas_of_tags, subschemas
from ...engine import Constraint

_KEYWORDS = ("not", "if", "contains", "dependentRequired", "dependentSchemas")
# Of the others it takes any string.
_FORMATS = frozenset(
    {
        "date",
        "time",
        "date-time",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uri",
        "uri-reference",
        "uri-template",
        "uuid",
        "json-pointer",
        "relative-json-pointer",
    }
)
# Beside these, it reads nothing else.
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
_SAYS_NOTHING = frozenset(
    {
        "type",
        "title",
        "description",
        "default",
        "examples",
        "example",
        "deprecated",
        "readOnly",
        "writeOnly",
        "discriminator",
        "$schema",
        "$id",
        "$anchor",
        "$comment",
        "$defs",
        "definitions",
    }
)


def check_schemas(constraint: Constraint) -> None:
    """Raises ApiError (SCHEMA_NOT_SUPPORTED) naming the first keyword that would not be enforced, and its place.

    A text that is no schema, or no document, is xgrammar's to refuse.
    """
    if constraint.kind not in ("json_schema", "structural_tag"):
        return
    try:
        document = json.loads(constraint.text)
        schemas = [document] if constraint.kind == "json_schema" else schemas_of_tags(document)
    except (ValueError, RecursionError):
        return
    for schema in schemas:
        if isinstance(schema, dict):
            _check(schema)


def _check(schema: Mapping[str, Any]) -> None:
    for pointer, part in subschemas(schema):
        keyword = _not_enforced(part)
        if keyword is not None:
            raise ApiError(
                Reason.SCHEMA_NOT_SUPPORTED,
                f"The schema uses '{keyword}' at '{pointer[:200]}' in a way that this model's engine cannot enforce.",
                "constraint",
            )


def _not_enforced(part: Mapping[str, Any]) -> str | None:
    for keyword in _KEYWORDS:
        if keyword in part:
            return keyword
    if part.get("uniqueItems") is True:
        return "uniqueItems"
    if isinstance(name := part.get("format"), str) and name not in _FORMATS:
        return "format"
    if "multipleOf" in part and part.get("type") != "integer":
        return "multipleOf"
    if isinstance(place := part.get("$ref"), str) and not place.startswith("#"):
        return "$ref"
    if isinstance(parts := part.get("allOf"), list) and len(parts) > 1:
        return "allOf"
    if "pattern" in part and ("minLength" in part or "maxLength" in part):
        return "pattern"
    for keyword in _ALONE:
        if keyword in part and any(other != keyword and other not in _SAYS_NOTHING for other in part):
            return keyword
    return None
