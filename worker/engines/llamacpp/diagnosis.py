"""Why a constraint does not compile, in the terms of who wrote it. Pure.

Two kinds: what is wrong is INVALID_SCHEMA; what is right and cannot be enforced is SCHEMA_NOT_SUPPORTED and names the
keyword and, where it can be found, its place. llguidance says which of them in free text; what is not recognised here
is taken to be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from inferway.errors import ApiError, Reason

from ...core.schemas import subschemas

# The field of the request on the wire.
PARAM = "constraint"

_MAX_REASON_CHARACTERS = 200
_NAMES = {
    "json_schema": "schema",
    "regex": "regular expression",
    "ebnf": "grammar",
    "structural_tag": "structural tag",
}

_KEYWORDS = re.compile(r"Unimplemented keys: \[(.*?)\]")
_FORMAT = re.compile(r"Unknown format: (.*)")
_REMOTE = re.compile(r"Resource '(.*?)' is not present")
_COMPLEX = re.compile(
    r"too (?:big|large|many|deeply|complex)|exhausted|limit|Unable to determine|Failed to generate regex|has too many"
)
_NOT_SUPPORTED = re.compile(r"not (?:yet )?supported")
_WRONG = re.compile(r"^error: (.*)$", re.MULTILINE)


def refusal(kind: str, said: str, schema: Mapping[str, Any] | None) -> ApiError:
    """The error for what llguidance `said` of a constraint; `schema` is that of a JSON schema."""
    if (found := _KEYWORDS.search(said)) is not None:
        keywords = [word.strip(' "') for word in found[1].split(",")]
        return cannot_enforce("', '".join(keywords), _find(schema, lambda part: all(word in part for word in keywords)))
    if (found := _FORMAT.search(said)) is not None:
        name = found[1].strip()
        return cannot_enforce(
            "format", _find(schema, lambda part: part.get("format") == name), f"with the value '{name}'"
        )
    if (found := _REMOTE.search(said)) is not None:
        return cannot_enforce("$ref", _find(schema, lambda part: part.get("$ref") == found[1]), "to another document")
    if "oneOf constraints are not supported" in said:
        return cannot_enforce("oneOf", _find(schema, lambda part: "oneOf" in part), "with alternatives that overlap")
    if "circular references with sibling keys" in said:
        return cannot_enforce("$ref", None, "to itself beside other keywords")
    wrong = _WRONG.findall(said)
    reason = wrong[-1] if wrong else said.strip().partition("\n")[0]
    if _COMPLEX.search(said):
        return too_complex()
    if _NOT_SUPPORTED.search(reason):
        return ApiError(
            Reason.SCHEMA_NOT_SUPPORTED,
            f"The {_NAMES[kind]} has what this model's engine cannot enforce: {_short(reason)}.",
            PARAM,
        )
    return not_valid(kind, reason)


def cannot_enforce(keyword: str, pointer: str | None, detail: str = "") -> ApiError:
    place = f" at '{_short(pointer)}'" if pointer is not None else ""
    detail = f" {detail}" if detail else ""
    return ApiError(
        Reason.SCHEMA_NOT_SUPPORTED,
        f"The schema uses '{_short(keyword)}'{place}{_short(detail)}, which this model's engine cannot enforce.",
        PARAM,
    )


def cannot_enforce_format(what: str) -> ApiError:
    """`what` stands in a structural tag."""
    return ApiError(
        Reason.SCHEMA_NOT_SUPPORTED,
        f"The structural tag has {_short(what)}, which this model's engine cannot enforce.",
        PARAM,
    )


def not_valid(kind: str, reason: str) -> ApiError:
    return ApiError(Reason.INVALID_SCHEMA, f"The {_NAMES[kind]} is not valid: {_short(reason)}.", PARAM)


def too_complex() -> ApiError:
    return ApiError(
        Reason.SCHEMA_NOT_SUPPORTED, "What the answer must match is too complex for this model's engine.", PARAM
    )


def _find(schema: Mapping[str, Any] | None, has: Callable[[Mapping[str, Any]], bool]) -> str | None:
    return next((pointer for pointer, part in subschemas(schema or {}) if has(part)), None)


def _short(text: str) -> str:
    text = " ".join(text.split()) if not text.startswith(" ") else " " + " ".join(text.split())
    text = text.rstrip(".")
    return text if len(text) <= _MAX_REASON_CHARACTERS else text[:_MAX_REASON_CHARACTERS] + "..."
