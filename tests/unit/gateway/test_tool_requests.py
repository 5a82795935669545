"""What requests say of tools and formats, and what becomes of it: choices, constraints, refusals."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest

from gateway.core.chat_request import ChatRequest, parse_chat
from gateway.core.constraints import Constraint
from inferway.errors import ApiError, Reason

HI = [{"role": "user", "content": "hi"}]
CITY = {"type": "object", "properties": {"city": {"$ref": "#/$defs/city"}}, "$defs": {"city": {"type": "string"}}}


def tool(name: str, parameters: Any = None) -> dict[str, Any]:
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = [tool("weather", CITY), tool("time"), tool("place.find", {"properties": {"x": {"type": "integer"}}})]
NAMED = {"type": "function", "function": {"name": "weather"}}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"model": "m", "messages": HI, **fields}).encode())


def allowed(mode: str, *names: str) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [tool(name) for name in names]}}


@pytest.mark.parametrize(
    ("choice", "mode", "names", "named"),
    [
        (None, "auto", ["weather", "time", "place.find"], ""),
        ("auto", "auto", ["weather", "time", "place.find"], ""),
        ("none", "none", ["weather", "time", "place.find"], ""),
        ("required", "required", ["weather", "time", "place.find"], ""),
        (NAMED, "required", ["weather"], "weather"),
        (allowed("auto", "time"), "auto", ["time"], ""),
        (allowed("required", "time", "weather"), "required", ["weather", "time"], ""),
        ({"type": "allowed_tools", "mode": "auto", "tools": [tool("time")]}, "auto", ["time"], ""),
    ],
)
def test_choices(choice: Any, mode: str, names: list[str], named: str) -> None:
    use = parse(tools=TOOLS, tool_choice=choice).tool_use
    assert (use.choice, use.named, list(use.schemas)) == (mode, named, names)
    assert [one["function"]["name"] for one in use.tools] == names
    assert (use.constraint() is not None) == (mode == "required")


def test_functions_are_tools_of_one_call() -> None:
    functions = [{"name": "weather", "parameters": CITY}]
    use = parse(functions=functions).tool_use
    assert (use.choice, use.is_legacy, use.is_parallel) == ("auto", True, False)
    assert use.tools == [{"type": "function", "function": functions[0]}]
    assert parse(functions=functions, function_call={"name": "weather"}).tool_use.named == "weather"
    assert parse(functions=functions, function_call="none").tool_use.choice == "none"


def test_parallel_calls_are_the_default() -> None:
    assert parse(tools=TOOLS).tool_use.is_parallel
    assert not parse(tools=TOOLS, parallel_tool_calls=False).tool_use.is_parallel
    assert not parse(tools=TOOLS, tool_choice=NAMED).tool_use.is_parallel
    assert not parse().tool_use.tools


def schema_of(constraint: Constraint | None) -> jsonschema_rs.Validator:
    assert constraint is not None
    assert constraint.kind == "json_schema"
    return jsonschema_rs.validator_for(json.loads(constraint.text))


def test_required_calls_are_a_list_of_those_tools() -> None:
    """References lead to where the tool's own definitions are now; a tool without a schema takes nothing."""
    schema = schema_of(parse(tools=TOOLS, tool_choice="required").tool_use.constraint())
    paris = {"name": "weather", "parameters": {"city": "Paris"}}
    assert schema.is_valid([paris])
    assert schema.is_valid([paris, {"name": "time", "parameters": {}}, {"name": "place.find", "parameters": {"x": 1}}])
    assert not schema.is_valid([])
    assert not schema.is_valid([{"name": "weather", "parameters": {"city": 3}}])
    assert not schema.is_valid([{"name": "weather", "parameters": {"city": "Paris"}, "more": 1}])
    assert not schema.is_valid([{"name": "time", "parameters": {"x": 1}}])
    assert not schema.is_valid([{"name": "other", "parameters": {}}])
    assert not schema.is_valid([{"name": "place.find", "parameters": {"x": "1"}}])
    single = schema_of(parse(tools=TOOLS, tool_choice="required", parallel_tool_calls=False).tool_use.constraint())
    assert single.is_valid([paris])
    assert not single.is_valid([paris, paris])


def test_a_named_call_is_its_arguments() -> None:
    schema = schema_of(parse(tools=TOOLS, tool_choice=NAMED).tool_use.constraint())
    assert schema.is_valid({"city": "Paris"})
    assert not schema.is_valid({"city": 3})
    assert not schema.is_valid([])


SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("fields", "kind", "param"),
    [
        ({"response_format": {"type": "json_object"}}, "json_schema", "response_format"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            "json_schema",
            "response_format",
        ),
        ({"guided_json": SCHEMA}, "json_schema", "guided_json"),
        ({"guided_json": json.dumps(SCHEMA)}, "json_schema", "guided_json"),
        ({"guided_regex": "a+"}, "regex", "guided_regex"),
        ({"guided_grammar": 'start: "a"'}, "ebnf", "guided_grammar"),
        ({"guided_choice": ["yes", "no"]}, "regex", "guided_choice"),
    ],
)
def test_formats(fields: dict[str, Any], kind: str, param: str) -> None:
    constraint = parse(**fields).constraint
    assert constraint is not None
    assert (constraint.kind, constraint.param) == (kind, param)


def test_no_schema_is_any_object() -> None:
    """Not any value: a grammar of those has no end."""
    for format_ in (
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}},
    ):
        schema = schema_of(parse(response_format=format_).constraint)
        assert schema.is_valid({"a": [1]})
        assert not schema.is_valid(12)
    assert parse(response_format={"type": "text"}).constraint is None


def test_choices_of_text_are_meant_as_they_are() -> None:
    texts = ["yes", "a.b (c) [d] {e} f|g $h ^i \\j *k +l ?m", "two\nlines"]
    constraint = parse(guided_choice=texts).constraint
    assert constraint is not None
    assert all(re.fullmatch(constraint.text, text) for text in texts)
    assert not re.fullmatch(constraint.text, "aXb (c) [d] {e} f|g $h ^i \\j *k +l ?m")


MANY = [tool(f"f{number}") for number in range(129)]
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"tool_choice": "required"}, "tool_choice", "needs 'tools'"),
    ({"tools": TOOLS, "tool_choice": "sometimes"}, "tool_choice", "got 'sometimes'"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "tool_choice",
        "names 'nope'",
    ),
    ({"tools": TOOLS, "tool_choice": allowed("auto")}, "tool_choice", "needs 'mode'"),
    ({"tools": TOOLS, "tool_choice": allowed("maybe", "time")}, "tool_choice", "needs 'mode'"),
    ({"tools": MANY}, "tools", "128 items at most, got 129"),
    ({"tools": [tool("a b")]}, "tools[0].function.name", "got 'a b'"),
    ({"tools": [tool("x" * 65)]}, "tools[0].function.name", "1 to 64"),
    ({"tools": [tool("f"), tool("f")]}, "tools[1].function.name", "as another one is"),
    ({"tools": [tool("f", 3)]}, "tools[0].function.parameters", "got a number"),
    ({"functions": [{"name": "f"}], "tools": TOOLS}, "functions", "send one of them"),
    ({"functions": [{"name": "f"}], "function_call": {"name": "g"}}, "function_call", "names 'g'"),
    ({"function_call": "auto"}, "function_call", "needs 'functions'"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "got 'yaml'"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "got null"),
    ({"guided_json": 3}, "guided_json", "got 'int'"),
    ({"guided_json": "{"}, "guided_json", "not valid JSON"),
    ({"guided_choice": []}, "guided_choice", "1 to 1000"),
    ({"guided_regex": ""}, "guided_regex", "1 to 65536 characters, got 0"),
    ({"guided_regex": "a", "guided_json": {}}, "guided_regex", "exclude each other"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "exclude each other"),
    (
        {"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}},
        "response_format",
        "'tool_choice' forces",
    ),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED)
def test_refusals(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert words in caught.value.message


DEEP: dict[str, Any] = {}
for _ in range(70):
    DEEP = {"properties": {"a": DEEP}}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objec"}, "'type' at $.type"),
        ({"type": ["string", 5]}, "'type' at $.type"),
        ({"properties": {"a": {"type": "array", "items": [1]}}}, "'items' at $.properties.a.items"),
        ({"properties": {"a": {"minimum": "x"}}}, "'minimum' at $.properties.a.minimum"),
        ({"properties": {"a": {"pattern": "("}}}, "'pattern' at $.properties.a.pattern"),
        ({"$ref": "#/$defs/nope"}, "/$defs/nope"),
        ({"$ref": "http://example.com/x"}, "leads out of the schema"),
        ({"description": "x" * 70_000}, "65536 bytes at most, got 70"),
        (DEEP, "nested 64 levels deep at most, got 141"),
    ],
)
def test_schemas_that_are_none(schema: dict[str, Any], words: str) -> None:
    """Each place of a schema refuses alike, naming keyword and path; nothing is fetched."""
    for fields, param in (
        ({"tools": [tool("f", schema)]}, "tools[0].function.parameters"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
            "response_format.json_schema.schema",
        ),
        ({"guided_json": schema}, "guided_json"),
    ):
        with pytest.raises(ApiError) as caught:
            parse(**fields)
        assert (caught.value.reason, caught.value.param) == (Reason.INVALID_SCHEMA, param)
        assert words in caught.value.message
