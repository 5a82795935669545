"""JSON text of arguments that a model writes as plain text: their types are those that the tool's schema asks for.

Text is a string wherever the schema says so, whatever it looks like. Where other types are allowed it is JSON of such
a type if it can be read so, and Python's way to write it is understood unless it could be a string as well. What fits
no type stays what it is: to judge it is the validation's task.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn
from urllib.parse import unquote

ANY = frozenset({"string", "number", "integer", "boolean", "null", "array", "object"})
STRING = frozenset({"string"})

# Deeper than schemas that people or tools write.
_MOST_LEVELS = 64
_BY_FIRST_CHARACTER = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_FIRST_CHARACTERS = frozenset([*_BY_FIRST_CHARACTER, *"-0123456789"])
_INTEGER = re.compile(r"-?[0-9]+")
# Strings in either quotes, words, and commas that JSON does not allow. A string without an end goes to the end of the
# text, so that nothing is looked at twice.
_PYTHON = re.compile(
    r""""(?P<double>[^"\\]*+(?:\\.[^"\\]*+)*+)"?|'(?P<single>[^'\\]*+(?:\\.[^'\\]*+)*+)'?"""
    r"""|\b(?P<word>true|false|none|null)\b|,(?=\s*[\]}])""",
    re.DOTALL | re.IGNORECASE,
)
# json.dumps would make one for every text.
_ENCODER = json.JSONEncoder(ensure_ascii=False)
_IN_STRING = re.compile(r'\\.|["\x00-\x1f]', re.DOTALL)


def typed(text: str, types: frozenset[str] = ANY) -> str:
    """The JSON text of a value that a model wrote as `text`, where JSON `types` are allowed. Cost is linear."""
    if types == STRING:
        return string(text)
    literal = text.strip()
    found = _json_type(literal)
    if found is None and "string" not in types:
        literal = _from_python(literal)
        found = _json_type(literal)
    if found is None or ("string" in types and (found == "string" or found not in types)):
        return string(text)
    return literal


def string(text: str) -> str:
    return _ENCODER.encode(text)


class Parameters:
    """The types that a tool's schema allows for each argument. References are followed within the schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._root = schema
        self._known: dict[str, frozenset[str]] = {}

    def types(self, key: str) -> frozenset[str]:
        """Of one argument; all, where the schema does not tell. The first question costs the size of the schema."""
        if key not in self._known:
            found = [self._types(schema, {}, 0) for schema in self._schemas(key)]
            self._known[key] = frozenset().union(*found) or ANY
        return self._known[key]

    def _schemas(self, key: str) -> Iterator[Any]:
        """Those of an argument: what stands under properties, or else the one of additional properties."""
        others = []
        seen = set()
        left: list[Any] = [self._root]
        has_own = False
        while left:
            schema = left.pop()
            if not isinstance(schema, Mapping) or id(schema) in seen:
                continue
            seen.add(id(schema))
            properties = schema.get("properties")
            if isinstance(properties, Mapping) and key in properties:
                has_own = True
                yield properties[key]
            others.append(schema.get("additionalProperties"))
            left += [self._referred(schema), *_members(schema, "allOf", "anyOf", "oneOf")]
        if not has_own:
            yield from others

    def _types(self, schema: Any, memo: dict[int, frozenset[str]], level: int) -> frozenset[str]:
        """`memo` holds what is known of schemas; of one that refers to itself nothing, until it is."""
        if not isinstance(schema, Mapping) or level > _MOST_LEVELS:
            return ANY
        if id(schema) in memo:
            return memo[id(schema)]
        memo[id(schema)] = frozenset()
        found = _said(schema)
        for each in (self._referred(schema), *_members(schema, "allOf")):
            found &= self._types(each, memo, level + 1)
        for word in ("anyOf", "oneOf"):
            if members := _members(schema, word):
                found &= frozenset().union(*(self._types(member, memo, level + 1) for member in members))
        if schema.get("nullable") is True:
            found |= {"null"}
        memo[id(schema)] = found
        return found

    def _referred(self, schema: Mapping[str, Any]) -> Any:
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        found: Any = self._root
        for step in unquote(reference[1:]).split("/")[1:]:
            found = found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
        return found


def _members(schema: Mapping[str, Any], *words: str) -> list[Any]:
    return [member for word in words if isinstance(schema.get(word), list) for member in schema[word]]


def _said(schema: Mapping[str, Any]) -> frozenset[str]:
    """What a schema says itself by type, enum and const."""
    said = schema.get("type")
    types = ANY & set(filter(_is_text, said if isinstance(said, list) else [said])) or ANY
    if "number" in types:
        types |= {"integer"}
    values: Sequence[Any] = [schema["const"]] if "const" in schema else schema.get("enum") or []
    if isinstance(values, list) and values:
        types &= {_type_of(value) for value in values}
    return types


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _type_of(value: Any) -> str:
    return _json_type(json.dumps(value)) or "string"


def _json_type(text: str) -> str | None:
    """The type of a JSON text; None for what is none."""
    # Most of what is none shows it at once, and to be told so by the decoder is slow.
    if text[:1] not in _FIRST_CHARACTERS:
        return None
    try:
        _DECODER.decode(text)
    except (ValueError, RecursionError):
        return None
    return _BY_FIRST_CHARACTER.get(text[0]) or ("integer" if _INTEGER.fullmatch(text) else "number")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


# Only tells whether a text is JSON, so numbers need not be made of digits, however many.
_DECODER = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)


def _from_python(text: str) -> str:
    """Python's literals written as JSON's; text that is neither stays neither."""
    return _PYTHON.sub(_literal, text)


def _literal(match: re.Match[str]) -> str:
    kind = match.lastgroup
    if kind is None:
        return ""
    if kind == "word":
        word = match.group().lower()
        return "null" if word == "none" else word
    return f'"{_IN_STRING.sub(_escaped, match[kind])}"'


def _escaped(match: re.Match[str]) -> str:
    found = match.group()
    if found == "\\'":
        return "'"
    return found if found[0] == "\\" else string(found)[1:-1]
