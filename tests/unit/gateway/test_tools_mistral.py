"""The Mistral formats: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Arguments, CallStart
from gateway.core.tools.mistral import Mistral
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    parse,
    parsed,
)

CALLS, ARGS, ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"


def make() -> Mistral:
    return Mistral({})


PARIS = Call("get_weather", '{"city": "Paris"}')
TIME = Call("get_time", "{}")
OBJECT = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
TIME_OBJECT = '{"name": "get_time", "arguments": {}}'

TRANSCRIPTS = {
    "no call": ("It is [sunny].", Parsed("It is [sunny].", [])),
    "a usage line": ("Run f [OPTIONS] [ARGS] [CALL_ID]", Parsed("Run f [OPTIONS] [ARGS] [CALL_ID]", [])),
    "one call": (f"{CALLS}[{OBJECT}]", Parsed("", [PARIS])),
    "with spaces": (f"{CALLS} [ {OBJECT} ]\n", Parsed("", [PARIS])),
    "prose around": (f"I look.\n{CALLS}[{OBJECT}] Done [1].", Parsed("I look.\n Done [1].", [PARIS])),
    "several calls": (
        f'{CALLS}[{{"name": "get_weather", "arguments": {{"city": "a]b"}}}}, {TIME_OBJECT}]',
        Parsed("", [Call("get_weather", '{"city": "a]b"}'), TIME]),
    ),
    "several lists": (f"{CALLS}[{OBJECT}]{CALLS}[{TIME_OBJECT}]", Parsed("", [PARIS, TIME])),
    "without the list": (f"{CALLS}{OBJECT}\n{CALLS} {TIME_OBJECT}ok", Parsed("ok", [PARIS, TIME])),
    "an id behind": (
        f'{CALLS}[{{"name": "get_time", "arguments": {{}}, "id": "VvvODy9mT"}}]',
        Parsed("", [TIME]),
    ),
    "arguments before the name": (
        f'{CALLS}[{{"arguments": {{"city": "Paris"}}, "name": "get_weather"}}]',
        Parsed("", [PARIS]),
    ),
    "no arguments": (f'{CALLS}[{{"name": "get_time"}}]', Parsed("", [TIME])),
    "an empty list": (f"{CALLS}[]ok", Parsed("ok", [])),
    "brackets, quotes and marks in strings": (
        f'{CALLS}[{{"name": "f", "arguments": {{"t": "}}] \\" {CALLS} {{"}}}}]',
        Parsed("", [Call("f", f'{{"t": "}}] \\" {CALLS} {{"}}')]),
    ),
    "by name": (f'{CALLS}get_weather[ARGS]{{"city": "Paris"}}', Parsed("", [PARIS])),
    "several by name": (
        f'Both.{CALLS}get_weather{ARGS}{{"city": "Paris"}}{CALLS}get_time{ARGS}{{}}',
        Parsed("Both.", [PARIS, TIME]),
    ),
    "by name with ids": (
        f'{CALLS}get_weather{ID}aB3xY9kLm{ARGS}{{"city": "Paris"}}{CALLS}get_time{ID}000000001{ARGS}{{}}',
        Parsed("", [PARIS, TIME]),
    ),
    "by name without the mark": (
        f'{CALLS}get_weather{{"city": "Paris"}}{CALLS}get_time\n{{}}',
        Parsed("", [PARIS, TIME]),
    ),
    "by name with spaces": (f'{CALLS} get_weather {ARGS} {{"city": "Paris"}} ok', Parsed(" ok", [PARIS])),
    "by name, arguments as text": (f'{CALLS}get_weather{ARGS}"{{\\"city\\": \\"Paris\\"}}"', Parsed("", [PARIS])),
    "unicode and nested": (
        f'{CALLS}notes.add{ARGS}{{"t": ["Grüße 👩‍👩‍👧", {{"日本": [null, {{}}]}}]}}',
        Parsed("", [Call("notes.add", '{"t": ["Grüße 👩‍👩‍👧", {"日本": [null, {}]}]}')]),
    ),
    "both formats": (f"{CALLS}get_time{ARGS}{{}}{CALLS}[{OBJECT}]", Parsed("", [TIME, PARIS])),
    "cut in the mark": ("ok[TOOL_CA", Parsed("ok[TOOL_CA", [])),
    "cut in the name": (f'{CALLS}[{{"name": "get_wea', Parsed("", [], dropped="{")),
    "cut in the name before the mark": (f"{CALLS}get_wea", Parsed("", [], dropped="get_wea")),
    "cut in the id": (f"{CALLS}get_time{ID}aB3x", Parsed("", [], dropped="get_time")),
    "cut behind the mark": (f"{CALLS}get_time{ARGS}", Parsed("", [Call("get_time", "", is_whole=False)])),
    "cut in the arguments": (
        f'{CALLS}get_weather{ARGS}{{"city": "Bos',
        Parsed("", [Call("get_weather", '{"city": "Bos', is_whole=False)]),
    ),
    "the list is not closed": (f"{CALLS}[{OBJECT}, {TIME_OBJECT}", Parsed("", [PARIS, TIME])),
    "a bracket too many": (
        f'{CALLS}[{{"name": "f", "arguments": {{"a": [1]]}}}}] x{CALLS}get_time{{}}ok',
        Parsed("ok", [Call("f", '{"a": [1]', is_whole=False), TIME], dropped="]}}] x"),
    ),
    "a bracket too many, by name": (
        f'{CALLS}f{ARGS}{{"a": [1]]}} x',
        Parsed("", [Call("f", '{"a": [1]', is_whole=False)], dropped="]} x"),
    ),
    "single quotes": (f"{CALLS}[{{'name': 'f'}}] x", Parsed("", [], dropped="{'name': 'f'}] x")),
    "arguments that are none": (
        f"{CALLS}f{ARGS}[1] x{CALLS}get_time{ARGS}{{}}",
        Parsed("", [Call("f", "", is_whole=False), TIME], dropped="[1] x"),
    ),
    "code": (f"{CALLS}get_time() ok", Parsed("", [], dropped="get_time() ok")),
    "half a pair in the name": (f'{CALLS}[{{"name": "f\\ud800"}}]', Parsed("", [Call("f?", "{}")])),
    "marks too many": (f"{CALLS}{CALLS}get_time{ARGS}{{}}{ARGS} ok", Parsed(" ok", [TIME], dropped=ARGS)),
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, [CALLS, '"arguments"'])


@pytest.mark.parametrize(
    ("written", "call_id"),
    [("aB3xY9kLm", "aB3xY9kLm"), ("call_1234", ""), ("short", ""), ("toolong123", ""), ("", ""), ("äB3xY9kLm", "")],
)
def test_ids_of_another_form_are_not_kept(written: str, call_id: str) -> None:
    assert parse(make, [f"{CALLS}f{ID}{written}{ARGS}{{}}"])[0] == CallStart(0, "f", call_id)


def test_arguments_go_out_as_they_come() -> None:
    parser = make()
    assert parser.feed(f"{CALLS}get_we") == []
    assert parser.feed(f"ather{ARGS}") == []
    assert parser.feed('{"a"') == [CallStart(0, "get_weather"), Arguments(0, '{"a"')]
    assert parser.feed(': "b') == [Arguments(0, ': "b')]


def test_ids_are_in_the_style_of_the_family() -> None:
    assert make().call_id_style == "mistral"


BITS = [
    CALLS, ARGS, ID, "[TOOL_", "[", "]", "{", "}", '"', ",", ":", "\\", " ", "\n", "x", "f", "aB3xY9kLm", OBJECT,
    '{"a": 1}', '{"name": ', '"f"', '"arguments": {',
]  # fmt: skip


@given(st.lists(st.sampled_from(BITS), max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, [CALLS])
    assert_same_for_splits(make, f"{CALLS}[{OBJECT}]{text}", cuts, [CALLS, ARGS, ID])


UNITS = ["[", " ", CALLS, f"{CALLS}[", f"{CALLS}f", f"{CALLS}f{ARGS}", f"{CALLS}[{{", "[TOOL_", f"{CALLS}f{{}}", ARGS]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)


@pytest.mark.parametrize("unit", ["[", "{", '"', "\\", "[]", " ", "f"])
def test_time_is_linear_in_a_call(unit: str) -> None:
    def within() -> Mistral:
        parser = make()
        parser.feed(f'{CALLS}f{ARGS}{{"a": ')
        return parser

    assert_linear(within, unit)
