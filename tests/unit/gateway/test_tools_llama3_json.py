"""Llama's JSON format: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Arguments, CallStart, Content
from gateway.core.tools.llama3_json import Llama3Json
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    parsed,
)

TOOLS = {"get_weather": {"type": "object", "properties": {"city": {"type": "string"}}}, "get_time": {}, "write": {}}
TAG = "<|python_tag|>"
MARKS = [TAG, "<|python_start|>", "<|python_end|>", '{"name": "get_weather", "parameters": {']


def make() -> Llama3Json:
    return Llama3Json(TOOLS)


PARIS = Call("get_weather", '{"city": "Paris"}')
CALL = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
TIME = Call("get_time", "{}")


def text_only(text: str) -> tuple[str, Parsed]:
    return text, Parsed(text, [])


TRANSCRIPTS = {
    "no call": text_only("It is sunny."),
    "prose with braces": text_only('Use {x} as a placeholder and {"a": 1} is JSON.'),
    "a JSON answer": text_only('{"name": "Alice", "age": 3, "tags": ["{", "}"]}'),
    "an unknown tool": text_only('{"name": "get_weathers", "parameters": {"city": "Paris"}} '),
    "a tool is described": text_only('{"name": "get_weather", "description": "Tells it", "parameters": {}}'),
    "arguments that are none": text_only('{"name": "get_weather", "parameters": 5}'),
    "a schema": text_only('{"type": "object", "properties": {"name": {"type": "string"}}}'),
    "lists": text_only('[1, [{"a": "[{"}, []], [ {}, {'),
    "the name comes too late": text_only('{"parameters": {"a": "} {"}, "name": "nobody"}'),
    "one call": (CALL, Parsed("", [PARIS])),
    "prose before": (f"Let me look. {CALL}", Parsed("Let me look. ", [PARIS])),
    "prose behind": (f"{CALL}\nDone, {{x}}.", Parsed("\nDone, {x}.", [PARIS])),
    "a comma behind": (f"{CALL}, and so on", Parsed(", and so on", [PARIS])),
    "behind the tag": (f"{TAG}{CALL}", Parsed("", [PARIS])),
    "between tags": (f"<|python_start|>{CALL}<|python_end|>", Parsed("", [PARIS])),
    "parallel calls": (f'{CALL}; {{"name": "get_time", "parameters": {{}}}}', Parsed("", [PARIS, TIME])),
    "parallel calls in lines": (f'{CALL}\n{{"name": "get_time", "parameters": {{}}}}\n', Parsed("", [PARIS, TIME])),
    "each with a tag": (f"{TAG}{CALL};{TAG} {CALL}", Parsed("", [PARIS, PARIS])),
    "a list": (f'[{CALL}, {{"name": "get_time"}}]', Parsed("", [PARIS, TIME])),
    "with a type": ('{"type": "function", "name": "get_time", "parameters": {}}', Parsed("", [TIME])),
    "name under function": (
        '{"type":"function","function":"get_time","parameters":{ }}',
        Parsed("", [Call("get_time", "{ }")]),
    ),
    "an object under function": (
        '{"id": "c1", "function": {"name": "get_weather", "arguments": {"city": "Paris"}}, "x": [1]} ok',
        Parsed(" ok", [PARIS]),
    ),
    "arguments before the name": ('{"parameters": {"city": "Paris"}, "name": "get_weather"}', Parsed("", [PARIS])),
    "no arguments": ('{ "name" : "get_time" }', Parsed("", [TIME])),
    "arguments are null": ('{"name": "get_time", "parameters": null}', Parsed("", [TIME])),
    "arguments as text": (
        '{"name": "get_weather", "parameters": "{\\"city\\": \\"Paris\\"}"}',
        Parsed("", [PARIS]),
    ),
    "braces, quotes and calls in strings": (
        '{"name": "write", "parameters": {"t": "} \\" ] {\\"name\\": \\"get_time\\"} \\\\"}} {x}',
        Parsed(" {x}", [Call("write", '{"t": "} \\" ] {\\"name\\": \\"get_time\\"} \\\\"}')]),
    ),
    "unicode and nested": (
        '{"name": "write", "parameters": {"t": ["Grüße 👩‍👩‍👧", {"日本": [null, -1.5e3]}]}}',
        Parsed("", [Call("write", '{"t": ["Grüße 👩‍👩‍👧", {"日本": [null, -1.5e3]}]}')]),
    ),
    "in a block of code": (f"```json\n{CALL}\n```", Parsed("```json\n\n```", [PARIS])),
    "cut in the name": ('Hm. {"name": "get_wea', Parsed("Hm. ", [], dropped='{"name": "get_wea')),
    "cut before the arguments": ('{"name": "get_time", "para', Parsed("", [], dropped='{"name": "get_time", "para')),
    "cut before it is one": text_only('Hm. {"na'),
    "cut in the arguments": (
        '{"name": "get_weather", "parameters": {"city": "Bos',
        Parsed("", [Call("get_weather", '{"city": "Bos', is_whole=False)]),
    ),
    "the last brace is forgotten": (CALL[:-1], Parsed("", [PARIS])),
    "a brace too many": (f"{CALL}}} ok", Parsed(" ok", [PARIS], dropped="}")),
    "a bracket too many": (
        '{"name": "write", "parameters": {"a": [1]]}} ok',
        Parsed(" ok", [Call("write", '{"a": [1]', is_whole=False)], dropped="}}"),
    ),
    "single quotes": text_only("{'name': 'get_time', 'parameters': {}}"),
    "a tag in a string of text": ('{"id": "<|python_tag|>"}', Parsed('{"id": ""}', [], dropped=TAG)),
    "code behind the tag": (f"a < b {TAG}print({{1}})", Parsed("a < b print({1})", [], dropped=TAG)),
    "a comma too many": text_only('{, "parameters": {}, "name": "get_time"} {"function":{,"name":"get_time"}}'),
    "a tag that is none": text_only("<|python_ta> <|python"),
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, MARKS)


def test_without_tools_no_object_is_a_call() -> None:
    assert parsed(lambda: Llama3Json({}), f"{CALL} {TAG}{CALL}") == Parsed(f"{CALL} {CALL}", [])


def test_text_is_held_no_longer_than_it_may_become_a_call() -> None:
    held = {
        "{": "x",
        "[ {": "}",
        '{"na': "d",
        '{"name"': ",",
        '{"name": "get_': "l",
        '{"name": "get_time"': "]",
        '{"name": "get_time", "': "d",
        '{"type": "function"': "}",
        '{"parameters": {"a": ': "]",
    }
    for text, refutes in held.items():
        parser = make()
        assert parser.feed(f"Use {text}") == [Content("Use ")]
        assert "".join(event.text for event in parser.feed(refutes) if isinstance(event, Content)) == text + refutes


def test_a_call_begins_with_its_arguments_and_they_go_out_as_they_come() -> None:
    parser = make()
    assert parser.feed('ok {"name": "get_time", ') == [Content("ok ")]
    assert parser.feed('"parameters": {"a"') == [CallStart(0, "get_time"), Arguments(0, '{"a"')]
    assert parser.feed(': "b') == [Arguments(0, ': "b')]


BITS = [
    "{", "}", "[", "]", '"', ":", ",", ";", "\\", " ", "\n", "x", TAG, "<|python_", '"name"', '"function"', '"type"',
    '"id"', '"parameters"', "get_weather", '"get_time"', '{"name": "get_weather"', ', "parameters": {', CALL, "null",
    "1",
]  # fmt: skip


@given(st.lists(st.sampled_from(BITS), max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, MARKS[:3])


UNITS = [
    "{",
    "[",
    "[{",
    " ",
    '{"name":',
    '{"id":"',
    '{"name": "get_time"',
    '{"parameters": {',
    CALL,
    TAG,
    "<|",
    "\\",
    "[ ",
]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)
