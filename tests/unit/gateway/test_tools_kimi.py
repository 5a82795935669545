"""The format of Kimi K2: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import CallStart
from gateway.core.tools.kimi import KimiK2
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    parse,
    parsed,
)

CALLS, CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
CALL, ARGUMENTS, END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
ONE, ONE_END = "<|tool_call_section_begin|>", "<|tool_call_section_end|>"
MARKS = [CALLS, CALLS_END, CALL, ARGUMENTS, END, ONE, ONE_END]


def make() -> KimiK2:
    return KimiK2({"get_weather": {}, "get_time": {}, "get": {}, "get_2": {}, "Read": {}})


def call(call_id: str, arguments: str = '{"city":"Paris"}') -> str:
    return f"{CALL}{call_id}{ARGUMENTS}{arguments}{END}"


def section(*calls: str) -> str:
    return "".join([CALLS, *calls, CALLS_END])


PARIS = Call("get_weather", '{"city":"Paris"}')
TIME = Call("get_time", "{}")

TRANSCRIPTS = {
    "no call": ("It is sunny.", Parsed("It is sunny.", [])),
    "one call": (section(call("functions.get_weather:0")), Parsed("", [PARIS])),
    "parallel calls": (
        section(call("functions.get_weather:0"), call("functions.get_time:1", "{}")),
        Parsed("", [PARIS, TIME]),
    ),
    "lines between": (
        f'\n{CALLS}\n{CALL} functions.get_weather:0 \n{ARGUMENTS}\n{{"city":"Paris"}}\n{END}\n{CALLS_END}\n',
        Parsed("", [PARIS]),
    ),
    "prose before and behind": (
        f"Let me look.{CALLS}{call('functions.get_weather:0')}{CALLS_END}Done.",
        Parsed("Let me look.Done.", [PARIS]),
    ),
    "singular section marks": (f"{ONE}{call('functions.get_weather:0')}{ONE_END}ok", Parsed("ok", [PARIS])),
    "section marks of both kinds": (f"{ONE}{call('functions.get_weather:0')}{CALLS_END}ok", Parsed("ok", [PARIS])),
    "no arguments": (section(call("functions.get_time:0", "")), Parsed("", [TIME])),
    "no arguments and no mark for them": (f"{CALLS}{CALL}functions.get_time:0{END}{CALLS_END}", Parsed("", [TIME])),
    "no mark for the arguments": (
        f'{CALLS}{CALL}functions.get_weather:0{{"city":"Paris"}}{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "nested values": (
        section(call("functions.f:0", '{"a": [1, {"b": [[], {}, null]}], "c": -1.5e3}')),
        Parsed("", [Call("f", '{"a": [1, {"b": [[], {}, null]}], "c": -1.5e3}')]),
    ),
    "marks, quotes and brackets in strings": (
        f'{CALLS}{CALL}functions.Read:0{ARGUMENTS}{{"t": "}} \\" ] {END}{CALLS_END} {CALL}x \\\\"}}{END}{CALLS_END}',
        Parsed("", [Call("Read", f'{{"t": "}} \\" ] {END}{CALLS_END} {CALL}x \\\\"}}')]),
    ),
    "unicode": (
        section(call("functions.Read:0", '{"t": "Grüße 👩‍👩‍👧 \\u00e9 日本"}')),
        Parsed("", [Call("Read", '{"t": "Grüße 👩‍👩‍👧 \\u00e9 日本"}')]),
    ),
    "arguments as text": (
        section(call("functions.get_weather:0", '"{\\"city\\":\\"Paris\\"}"')),
        Parsed("", [PARIS]),
    ),
    "a name among the arguments": (
        section(call("call_a1b2c3", '{"name": "get_weather", "city": "Paris"}')),
        Parsed("", [Call("get_weather", '{"city": "Paris"}')]),
    ),
    "a name beside the arguments": (
        section(call("call_a1b2c3", '{"name": "get_weather", "arguments": {"city": "Köln"}}')),
        Parsed("", [Call("get_weather", '{"city": "Köln"}')]),
    ),
    "no name to be found": (
        section(call("call_a1b2c3")) + "ok",
        Parsed("ok", [], dropped='call_a1b2c3 {"city":"Paris"}'),
    ),
    "no section": (f"Look: {call('functions.get_weather:0')} so.", Parsed("Look:  so.", [PARIS])),
    "the section's end is forgotten": (f"{CALLS}{call('functions.get_weather:0')}", Parsed("", [PARIS])),
    "the call's end is forgotten": (
        section(call("functions.get_weather:0").removesuffix(END), call("functions.get_time:1", "{}")),
        Parsed("", [PARIS, TIME]),
    ),
    "the call's beginning is forgotten": (
        f'{CALLS}functions.get_weather:0{ARGUMENTS}{{"city":"Paris"}}{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "cut in the id": (f"{CALLS}{CALL}functions.get_wea", Parsed("", [], dropped="functions.get_wea")),
    "cut in the index": (f"{CALLS}{CALL}functions.get_weather:1", Parsed("", [], dropped="functions.get_weather:1")),
    "cut in the arguments": (
        f'{CALLS}{CALL}functions.get_weather:0{ARGUMENTS}{{"city":"Bos',
        Parsed("", [Call("get_weather", '{"city":"Bos', is_whole=False)]),
    ),
    "brackets are not closed": (
        section(call("functions.get_weather:0", '{"city":"Paris"'), call("functions.get_time:1", "{}")) + "ok",
        Parsed("ok", [Call("get_weather", '{"city":"Paris"', is_whole=False), TIME]),
    ),
    "a bracket too many": (
        section(call("functions.get_weather:0", '{"a": [1]]}')) + "ok",
        Parsed("ok", [Call("get_weather", '{"a": [1]', is_whole=False)], dropped="]}"),
    ),
    "not JSON": (
        section(call("functions.get_weather:0", "city=Paris")) + "ok",
        Parsed("ok", [Call("get_weather", "", is_whole=False)], dropped="city=Paris"),
    ),
    "no id": (section(call("")) + "ok", Parsed("ok", [], dropped='{"city":"Paris"}')),
    "prose in the section": (
        f"{CALLS}I will look.{call('functions.get_weather:0')}{CALLS_END}ok",
        Parsed("ok", [PARIS], dropped="I will look."),
    ),
    "stray marks": (f"a{END}b{CALLS_END}c{ARGUMENTS}d{ONE_END}e", Parsed("abcde", [])),
    "a mark that is none": ("a <|tool_cal and <|im", Parsed("a <|tool_cal and <|im", [])),
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, MARKS)


IDS = {
    "functions.get_weather:0": "get_weather",
    "functions.get_weather:12": "get_weather",
    "functions_get_weather_1": "get_weather",
    "functionsget_weather1": "get_weather",
    "functions.get_weather1": "get_weather",
    "functions.get_weather_1": "get_weather",
    "functions:get_weather:1": "get_weather",
    "functions.get_weather": "get_weather",
    "get_weather:3": "get_weather",
    "get_weather": "get_weather",
    "functionsRead5": "Read",
    # An index, or a tool whose name has a number: the longer name is right.
    "functions_get_2": "get_2",
    "functions_get_3": "get",
    "functions_get_2_1": "get_2",
    "functions.get:2": "get",
    # No tool on offer, but an id of a shape that leaves no doubt.
    "functions.browser.open:0": "browser.open",
    "open_page:4": "open_page",
}


@pytest.mark.parametrize(("call_id", "name"), IDS.items(), ids=IDS)
def test_an_id_tells_the_name(call_id: str, name: str) -> None:
    assert parsed(make, f"{CALLS}{call(call_id)}{CALLS_END}") == Parsed("", [Call(name, '{"city":"Paris"}')])


def test_a_sole_tool_is_meant_by_any_id() -> None:
    text = section(call("call_a1b2"))
    assert parsed(lambda: KimiK2({"get_weather": {}}), text) == Parsed("", [PARIS])


@pytest.mark.parametrize("call_id", [call_id for call_id in IDS if call_id.startswith("functions") and ":" in call_id])
def test_ids_of_regular_shape_are_kept(call_id: str) -> None:
    starts = [event for event in parse(make, [call(call_id)]) if isinstance(event, CallStart)]
    assert [start.call_id for start in starts] == [call_id if call_id.startswith("functions.") else ""]


@pytest.mark.parametrize("call_id", [call_id for call_id in IDS if ":" not in call_id or "functions" not in call_id])
def test_other_ids_are_not_kept(call_id: str) -> None:
    starts = [event for event in parse(make, [call(call_id)]) if isinstance(event, CallStart)]
    assert [start.call_id for start in starts] == [""]


def test_an_id_is_given_to_one_call_only() -> None:
    text = section(call("functions.get:0"), call("functions.get:0"), call("functions.get:1"))
    starts = [event for event in parse(make, [text]) if isinstance(event, CallStart)]
    assert [start.call_id for start in starts] == ["functions.get:0", "", "functions.get:1"]


BITS = [*MARKS, "<|tool_c", "<", "functions.get:0", "functions_get_1", "call_1", "name", "text ", " "]
BITS += ["{", "}", "[", "]", '"', "\\", '{"a": 1}', '{"name": "get"}', ",", "é"]


@given(st.lists(st.sampled_from(BITS), max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, MARKS)


@pytest.mark.parametrize(
    "unit",
    [
        " ",
        CALLS,
        f"{CALL}functions.get:0",
        f"{CALL}x1{ARGUMENTS}{{",
        "<|tool_call_begin|",
        "<",
        "{",
        f'{CALL}get:1{ARGUMENTS}{{"',
    ],
)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)


def test_time_is_linear_in_an_id() -> None:
    assert_linear(lambda: _within_an_id("functions"), "9")


def _within_an_id(beginning: str) -> KimiK2:
    parser = make()
    parser.feed(f"{CALL}{beginning}")
    return parser
