"""The hermes format: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import pytest

from gateway.core.tools.hermes import Hermes
from tests.support.tool_parsers import Call, Parsed, assert_prefixes_are_parsed, parsed


def make() -> Hermes:
    return Hermes({})


PARIS = Call("get_weather", '{"city": "Paris"}')

TRANSCRIPTS = {
    "no call": ("It is sunny.", Parsed("It is sunny.", [])),
    "one call": (
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        Parsed("", [PARIS]),
    ),
    "prose before": (
        'Let me look.\n<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>',
        Parsed("Let me look.\n", [PARIS]),
    ),
    "prose behind": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>\nDone.',
        Parsed("\nDone.", [PARIS]),
    ),
    "parallel calls": (
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>\n'
        '<tool_call>{"name": "get_time", "arguments": {}}</tool_call>\n',
        Parsed("", [PARIS, Call("get_time", "{}")]),
    ),
    "arguments before the name": (
        '<tool_call>{"arguments": {"city": "Paris"}, "name": "get_weather"}</tool_call>',
        Parsed("", [PARIS]),
    ),
    "no arguments": ('<tool_call>{"name": "get_time"}</tool_call>', Parsed("", [Call("get_time", "{}")])),
    "arguments as text": (
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        Parsed("", [Call("f", '{"x": 1}')]),
    ),
    "braces, quotes and tags in strings": (
        '<tool_call>{"name": "write", "arguments": {"t": "} \\" ] </tool_call> <tool_call> \\\\"}}</tool_call>',
        Parsed("", [Call("write", '{"t": "} \\" ] </tool_call> <tool_call> \\\\"}')]),
    ),
    "unicode": (
        '<tool_call>{"name": "say", "arguments": {"t": "Grüße 👩‍👩‍👧 \\u00e9 日本"}}</tool_call>',
        Parsed("", [Call("say", '{"t": "Grüße 👩‍👩‍👧 \\u00e9 日本"}')]),
    ),
    "spaces are the model's own": (
        '<tool_call> { "name" : "f" ,\n "arguments" : { "a" :  [ 1 , {} ] } } </tool_call>',
        Parsed("", [Call("f", '{ "a" :  [ 1 , {} ] }')]),
    ),
    "an end is forgotten": (
        '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "g", "arguments": {}}',
        Parsed("", [Call("f", "{}"), Call("g", "{}")]),
    ),
    "a tag that is none": ("a < b, <tool_cal> and <tool", Parsed("a < b, <tool_cal> and <tool", [])),
    "cut in the arguments": (
        '<tool_call>{"name": "f", "arguments": {"city": "Bos',
        Parsed("", [Call("f", '{"city": "Bos', is_whole=False)]),
    ),
    "cut in the name": ('<tool_call>{"name": "get_wea', Parsed("", [], dropped="{")),
    "not JSON": ("<tool_call>get_weather(Paris)</tool_call>ok", Parsed("ok", [], dropped="get_weather(Paris)")),
    "a bracket too many": (
        '<tool_call>{"name": "f", "arguments": {"a": [1]]}}</tool_call>ok',
        Parsed("ok", [Call("f", '{"a": [1]', is_whole=False)], dropped="]}}"),
    ),
    "no name": ('<tool_call>{"arguments": {"a": 1}}</tool_call>', Parsed("", [], dropped='{{"a": 1}')),
    "null for arguments": (
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        Parsed("", [Call("f", "{}")]),
    ),
    "null for a name": ('<tool_call>{"name": null, "arguments": {}}</tool_call>', Parsed("", [], dropped="{{}")),
    "arguments twice": (
        '<tool_call>{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}}</tool_call>',
        Parsed("", [Call("f", '{"a": 1}')]),
    ),
    "other members": (
        '<tool_call>{"type": "function", "id": 7, "name": "f", "extra": [1, "}"], "arguments": {}}</tool_call>',
        Parsed("", [Call("f", "{}")]),
    ),
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, ["<tool_call>", "</tool_call>", '"arguments"'])
