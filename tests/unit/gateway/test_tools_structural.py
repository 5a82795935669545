"""Strict tools under a free choice: what grammars allow is what the family's parser reads, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.core.chat_request import parse_chat
from gateway.core.constraints import Constraint
from gateway.core.tools import PARSERS
from gateway.core.tools.choice import strict_calls
from inferway.errors import ApiError

from ...support.tool_forms import ARGUMENTS, CALLS, CAPABILITIES, REQUEST, WEATHER, document, format_of
from ...support.tool_parsers import Call, parsed


def asked(format_name: str, capabilities: Sequence[str] = CAPABILITIES) -> Constraint | None:
    return strict_calls(format_name, parse_chat(json.dumps(REQUEST).encode()).tool_use, capabilities)


def constraint(format_name: str) -> Constraint:
    found = asked(format_name)
    assert found is not None
    return found


@pytest.mark.parametrize("case", CALLS)
def test_what_engines_are_asked_for(case: str) -> None:
    """tests/support/strict_tools.json holds it for the tests of engines, which know nothing of gateways."""
    assert json.loads(constraint(format_of(case)).text) == json.loads(document(case))


def test_which_formats_can_be_strict() -> None:
    """Every one with a form has a sample; engines say which styles beyond JSON they enforce."""
    with_forms = {name for name in PARSERS if asked(name)}
    assert with_forms == set(map(format_of, CALLS))
    assert {name for name in PARSERS if asked(name, CAPABILITIES[:1])} == with_forms - {"glm45", "qwen3_coder"}
    assert not any(asked(name, ["constraint.json_schema"]) for name in (*PARSERS, "", "unknown"))


@pytest.mark.parametrize("case", CALLS)
def test_a_form_is_what_its_parser_reads(case: str) -> None:
    """The grammar's own text around the arguments, read back."""
    tags = json.loads(document(case))["format"]["tags"]
    is_list = case.endswith("a list")
    tag = next(tag for tag in tags if (tag["content"].get("json_schema", {}).get("type") == "array") == is_list)
    sample = CALLS[case].replace("NAME", "weather").replace("DAYS", "3")
    begin, end = tag["begin"], tag["end"]
    assert begin in sample
    assert sample.partition(begin)[2].count(end) >= 1
    read = parsed(lambda: PARSERS[format_of(case)]({"weather": WEATHER}), sample)
    assert read.calls == [Call("weather", ARGUMENTS)]
    assert read.content == ""


def test_only_strict_tools_are_held_to_their_schemas() -> None:
    tags = json.loads(constraint("hermes").text)["format"]["tags"]
    assert [tag["content"]["json_schema"] for tag in tags] == [WEATHER, {"type": "object"}]
    assert constraint("hermes").param == "tools"


def test_one_trigger_for_each_beginning() -> None:
    assert json.loads(constraint("mistral").text)["format"]["triggers"] == ["[TOOL_CALLS]"]
    assert json.loads(constraint("llama3_json").text)["format"]["triggers"] == ['{"name": "weather"', '{"name": "any"']


@pytest.mark.parametrize("strict", ["yes", 1, []])
def test_strict_is_a_boolean(strict: Any) -> None:
    tool = {"type": "function", "function": {"name": "a", "strict": strict}}
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": [tool]}
    with pytest.raises(ApiError) as caught:
        parse_chat(json.dumps(body).encode())
    assert caught.value.param == "tools[0].function.strict"
