"""Arguments that a model writes as text: the JSON that a tool's schema makes of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.typed import ANY, Parameters, typed

ADDRESS = {"$defs": {"Text": {"type": "string"}, "Count": {"type": ["integer", "null"]}}}
LOOP = {
    "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/B"}, {"type": "integer"}]}, "B": {"oneOf": [{"$ref": "#/$defs/A"}]}}
}

# What is asked for, what the model wrote, what it means.
VALUES: dict[str, tuple[dict[str, Any], str, str]] = {
    "a string that looks like a number": ({"type": "string"}, "10", '"10"'),
    "a string that looks like a word of JSON": ({"type": "string"}, "true", '"true"'),
    "a string that looks like an object": ({"type": "string"}, '{"a": 1}', '"{\\"a\\": 1}"'),
    "a string in quotes keeps them": ({"type": "string"}, '"a"', '"\\"a\\""'),
    "white space of a string is its own": ({"type": "string"}, " a\n", '" a\\n"'),
    "any script in a string": ({"type": "string"}, "Grüße 日本 👩‍👧", '"Grüße 日本 👩‍👧"'),
    "an integer": ({"type": "integer"}, "10", "10"),
    "space around a number": ({"type": "number"}, "\n 10 \n", "10"),
    "a number stays as it is written": ({"type": "number"}, "-1.50e3", "-1.50e3"),
    "more digits than Python makes an integer of": ({"type": "integer"}, "9" * 5000, "9" * 5000),
    "an integer as a number": ({"type": "number"}, "3", "3"),
    "a number without a fraction for an integer": ({"type": "integer"}, "3.0", "3.0"),
    "no JSON number": ({"type": "number"}, "NaN", '"NaN"'),
    "nothing like a number": ({"type": "integer"}, "ten", '"ten"'),
    "nothing at all": ({"type": "integer"}, "", '""'),
    "a boolean": ({"type": "boolean"}, "false", "false"),
    "Python's boolean": ({"type": "boolean"}, "True", "true"),
    "Python's None": ({"type": ["integer", "null"]}, "None", "null"),
    "a list": ({"type": "array"}, '["Red","Blue"]', '["Red","Blue"]'),
    "Python's list": ({"type": "array"}, "['it\\'s', \"a 'b'\", True, None,]", '["it\'s", "a \'b\'", true, null]'),
    "Python's dict": ({"type": "object"}, "{'a': {'b': \"c\"}}", '{"a": {"b": "c"}}'),
    "line breaks in strings of a list": ({"type": "array"}, '["a\nb"]', '["a\\nb"]'),
    "a list that is not whole": ({"type": "array"}, '["a", ', '"[\\"a\\", "'),
    "brackets without end": ({"type": "array"}, "[" * 100_000, f'"{"[" * 100_000}"'),
    "a string or null: a string": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "Jones", '"Jones"'),
    "a string or null: a number is a string": ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "10", '"10"'),
    "a string or null: null": ({"oneOf": [{"type": "string"}, {"type": "null"}]}, "null", "null"),
    "a string or null: None is a word": ({"type": ["string", "null"]}, "None", '"None"'),
    "nullable": ({"type": "string", "nullable": True}, "null", "null"),
    "a string or an integer": ({"type": ["string", "integer"]}, "10", "10"),
    "a string or a list": ({"type": ["string", "array"]}, '["a"]', '["a"]'),
    "a string or a list of Python": ({"type": ["string", "array"]}, "['a']", "\"['a']\""),
    "a list of strings in an enum": ({"enum": ["1", "2"]}, "1", '"1"'),
    "numbers and strings in an enum": ({"enum": [1, "auto"]}, "1", "1"),
    "the string of a mixed enum": ({"enum": [1, "auto"]}, "auto", '"auto"'),
    "a type and an enum": ({"type": "string", "enum": ["1"]}, "1", '"1"'),
    "a constant": ({"const": "5"}, "5", '"5"'),
    "all of": ({"allOf": [{"type": ["string", "integer"]}, {"type": ["string", "null"]}]}, "10", '"10"'),
    "a reference": ({"$ref": "#/$defs/Text"}, "10", '"10"'),
    "a reference to a list of types": ({"$ref": "#/$defs/Count"}, "None", "null"),
    "a reference to nothing": ({"$ref": "#/$defs/None"}, "10", "10"),
    "a reference elsewhere": ({"$ref": "https://example.com/a.json"}, "10", "10"),
    "an unknown type": ({"type": "float"}, "1.5", "1.5"),
    "types that exclude each other": ({"type": "string", "enum": [1]}, "1", "1"),
    "no schema: JSON": ({}, '{"a": [1, null]}', '{"a": [1, null]}'),
    "no schema: text": ({}, "Paris", '"Paris"'),
    "no schema: a JSON string is text": ({}, '"Paris"', '"\\"Paris\\""'),
    "no schema: Python is text": ({}, "True", '"True"'),
}


@pytest.mark.parametrize(("schema", "text", "right"), VALUES.values(), ids=VALUES)
def test_values(schema: dict[str, Any], text: str, right: str) -> None:
    """A value has the type that its schema asks for, if the text can be read so."""
    parameters = Parameters({"properties": {"a": schema}, **ADDRESS})
    assert typed(text, parameters.types("a")) == right
    json.loads(right, parse_int=str)


SCHEMAS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "no schema": ({}, set(ANY)),
    "an argument that is not described": ({"properties": {"b": {"type": "string"}}}, set(ANY)),
    "additional ones are described": ({"additionalProperties": {"type": "string"}}, {"string"}),
    "additional ones do not change others": (
        {"properties": {"a": {"type": "null"}}, "additionalProperties": {"type": "string"}},
        {"null"},
    ),
    "the schema of all is a reference": (
        {"$ref": "#/$defs/All", "$defs": {"All": {"properties": {"a": {"type": "null"}}}}},
        {"null"},
    ),
    "the schema of all has alternatives": (
        {"anyOf": [{"properties": {"a": {"type": "null"}}}, {"properties": {"a": {"type": "string"}}}]},
        {"null", "string"},
    ),
    "a reference with escapes": (
        {"properties": {"a": {"$ref": "#/$defs/x~1y%20z"}}, "$defs": {"x/y z": {"type": "null"}}},
        {"null"},
    ),
    "references in a circle": ({"properties": {"a": {"$ref": "#/$defs/A"}}, **LOOP}, {"integer"}),
    "nothing but itself": ({"properties": {"a": {"$ref": "#/properties/a"}}}, set(ANY)),
    "what is no schema": ({"properties": {"a": True}}, set(ANY)),
}


@pytest.mark.parametrize(("schema", "right"), SCHEMAS.values(), ids=SCHEMAS)
def test_types_of_an_argument(schema: dict[str, Any], right: set[str]) -> None:
    """Types are found where a schema hides them, and all are allowed where it says nothing."""
    assert Parameters(schema).types("a") == right


def test_schemas_without_end_are_left() -> None:
    """A schema deeper than any stack says nothing, and one that doubles at every step is walked once."""
    deep: dict[str, Any] = {"type": "null"}
    for _ in range(100_000):
        deep = {"allOf": [deep]}
    assert Parameters({"properties": {"a": deep}}).types("a") == ANY
    wide: dict[str, Any] = {f"L{n}": {"anyOf": [{"$ref": f"#/$defs/L{n + 1}"}] * 2} for n in range(25)}
    wide["L25"] = {"type": "null"}
    assert Parameters({"properties": {"a": {"$ref": "#/$defs/L0"}}, "$defs": wide}).types("a") == {"null"}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_what_is_written_as_json_or_python_is_read(value: Any) -> None:
    """Any value comes back from JSON; what holds no backslash comes back from Python's way to write it, too."""
    types = frozenset({"array", "object", "null", "boolean", "integer"})
    if not isinstance(value, str):
        assert json.loads(typed(json.dumps(value), types)) == value
        if "\\" not in repr(value):
            assert json.loads(typed(repr(value), types)) == value
    assert json.loads(typed(json.dumps(value), frozenset({"string"}))) == json.dumps(value)


@given(st.text(alphabet="'\"\\[]{},: \nTrue1.-eNaN"), st.sets(st.sampled_from(sorted(ANY)), min_size=1))
def test_any_text_becomes_json(text: str, types: set[str]) -> None:
    """Whatever was written, JSON comes out."""
    json.loads(typed(text, frozenset(types)), parse_constant=pytest.fail)


@pytest.mark.parametrize("unit", ["'", '"', "\\'", '\\"', ",", ", ", "'\\", "True ", "[", "{'a':", "-"])
def test_long_texts_are_read(unit: str) -> None:
    """Text that is nearly a list becomes JSON, and nothing in it is tried again from every place."""
    text = "[" + unit * 100_000
    assert json.loads(typed(text, frozenset({"array"}))) == text
