"""Which schemas the engine sglang refuses, because xgrammar would not enforce them; held to xgrammar where it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inferway.errors import ApiError, Reason
from worker.engine import Constraint
from worker.engines.sglang.schemas import check_schemas

from ..support.tool_forms import CALLS, document, samples

INTEGER = {"type": "integer"}
# By keyword: a schema, and a text that it forbids and xgrammar takes.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("not", {**INTEGER, "not": {"const": 3}}, "3"),
    ("if", {**INTEGER, "if": {"minimum": 3}, "then": {"maximum": 5}}, "9"),
    ("contains", {"type": "array", "items": INTEGER, "contains": {"const": 1}}, "[2]"),
    (
        "dependentRequired",
        {"type": "object", "properties": {"a": INTEGER}, "dependentRequired": {"a": ["b"]}},
        '{"a": 1}',
    ),
    (
        "dependentSchemas",
        {"type": "object", "properties": {"a": INTEGER}, "dependentSchemas": {"a": {"required": ["b"]}}},
        '{"a": 1}',
    ),
    ("uniqueItems", {"type": "array", "items": INTEGER, "uniqueItems": True}, "[1, 1]"),
    ("format", {"type": "string", "format": "regex"}, '"("'),
    ("multipleOf", {"type": "number", "multipleOf": 0.5}, "0.3"),
    ("$ref", {"$ref": "http://localhost/integer"}, '"x"'),
    ("$ref", {"$ref": "#/$defs/a", "maximum": 3, "$defs": {"a": INTEGER}}, "5"),
    ("allOf", {"allOf": [INTEGER, {"minimum": 3}]}, "1"),
    ("anyOf", {"anyOf": [INTEGER, {"type": "string"}], "maximum": 3}, "5"),
    ("pattern", {"type": "string", "pattern": "^a+$", "maxLength": 3}, '"aaaaa"'),
]
# Schemas that are taken, each with a text that it forbids and so does xgrammar.
TAKEN: list[tuple[dict[str, Any], str]] = [
    ({**INTEGER, "multipleOf": 3}, "4"),
    ({"type": "object", "propertyNames": {"pattern": "^a$"}, "additionalProperties": INTEGER}, '{"b": 1}'),
    ({"type": "object", "properties": {"not": INTEGER}, "additionalProperties": False}, '{"if": 1}'),
    ({"type": "string", "format": "date"}, '"x"'),
    ({"type": "string", "format": "email"}, '"x"'),
    ({"type": "string", "minLength": 3}, '"a"'),
    ({"$ref": "#/$defs/a", "title": "A", "$defs": {"a": INTEGER}}, '"x"'),
    ({"allOf": [INTEGER]}, '"x"'),
    ({"type": "object", "minProperties": 2, "additionalProperties": INTEGER}, '{"a": 1}'),
    ({"enum": ["uniqueItems", {"not": 1}]}, "1"),
]


@pytest.mark.parametrize(("keyword", "schema", "_"), REFUSED, ids=[str(one[:2])[:60] for one in REFUSED])
def test_refused(keyword: str, schema: dict[str, Any], _: str) -> None:
    """By keyword and place, wherever it stands."""
    for inner, pointer in ((schema, "#"), ({"properties": {"a/b": {"items": schema}}}, "#/properties/a~1b/items")):
        with pytest.raises(ApiError) as caught:
            check_schemas(Constraint("json_schema", json.dumps(inner)))
        assert (caught.value.reason, caught.value.param) == (Reason.SCHEMA_NOT_SUPPORTED, "constraint")
        assert f"'{keyword}' at '{pointer}'" in caught.value.message


@pytest.mark.parametrize("schema", [schema for schema, _ in TAKEN], ids=str)
def test_taken(schema: dict[str, Any]) -> None:
    for whole in (schema, {"properties": {"a": {"anyOf": [schema, {"type": "null"}]}}}):
        check_schemas(Constraint("json_schema", json.dumps(whole)))


@pytest.mark.parametrize("text", ["{", "[]", "true", "3", "[" * 100_000])
def test_what_is_no_schema_is_xgrammars(text: str) -> None:
    check_schemas(Constraint("json_schema", text))
    check_schemas(Constraint("structural_tag", text))


def test_schemas_in_structural_tags() -> None:
    """Places are those within the schema that has the keyword."""
    contents = [{"type": "json_schema", "json_schema": schema} for schema in (INTEGER, {"items": {"not": INTEGER}})]
    tags = [{"type": "tag", "begin": "<a>", "content": content, "end": "</a>"} for content in contents]
    document = {"type": "structural_tag", "format": {"type": "triggered_tags", "triggers": ["<a>"], "tags": tags}}
    with pytest.raises(ApiError, match="'not' at '#/items'"):
        check_schemas(Constraint("structural_tag", json.dumps(document)))


@pytest.fixture(scope="module")
def compiler() -> Any:
    xgrammar = pytest.importorskip("xgrammar", reason="the package xgrammar is not installed")
    vocabulary = [bytes([byte]) for byte in range(256)] + [b"</s>"]
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[256]))


def takes(grammar: Any, text: str) -> bool:
    import xgrammar

    matcher = xgrammar.GrammarMatcher(grammar)
    return bool(matcher.accept_string(text) and matcher.accept_token(256))


def test_the_list_is_that_of_xgrammar(compiler: Any) -> None:
    """What is refused would be let through, and what is taken is enforced."""

    def lets_through(schema: dict[str, Any], text: str) -> bool:
        return takes(compiler.compile_json_schema(json.dumps(schema)), text)

    assert [schema for _, schema, text in REFUSED if not lets_through(schema, text)] == []
    assert [schema for schema, text in TAKEN if lets_through(schema, text)] == []


@pytest.mark.parametrize("case", CALLS)
def test_strict_tools(compiler: Any, case: str) -> None:
    """What gateways ask for in each format, those with arguments in tags included."""
    grammar = compiler.compile_structural_tag(document(case))
    for text, is_allowed in samples(case):
        assert takes(grammar, text) is is_allowed, text
