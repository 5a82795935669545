"""The format of GLM 4.5 and later: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Arguments, CallStart
from gateway.core.tools.glm45 import Glm45
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    parsed,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
KEY, KEY_END, VALUE, VALUE_END = "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
MARKS = [OPEN, CLOSE, KEY, KEY_END, VALUE, VALUE_END]
TEXT = {"type": "string"}
TOOLS = {
    "get_weather": {"properties": {"city": TEXT}},
    "get": {},
    "find": {
        "properties": {
            "name": {"anyOf": [TEXT, {"type": "null"}]},
            "orgs": {"type": "array", "items": TEXT},
        }
    },
    "Lookup": {"properties": {"query": TEXT, "max_results": {"type": "number"}, "safe": {"type": "boolean"}}},
}


def make() -> Glm45:
    return Glm45(TOOLS)


def pair(key: str, value: str) -> str:
    return f"{KEY}{key}{KEY_END}{VALUE}{value}{VALUE_END}"


def call(name: str, /, **values: str) -> str:
    """As GLM 4.7 writes it."""
    return f"{OPEN}{name}{''.join(pair(key, value) for key, value in values.items())}{CLOSE}"


def lines(name: str, /, **values: str) -> str:
    """As GLM 4.5 writes it."""
    pairs = "".join(f"{KEY}{key}{KEY_END}\n{VALUE}{value}{VALUE_END}\n" for key, value in values.items())
    return f"{OPEN}{name}\n{pairs}{CLOSE}"


PARIS = Call("get_weather", '{"city": "Paris"}')
TIME = Call("get_time", "{}")

TRANSCRIPTS = {
    "no call": ("It is sunny.", Parsed("It is sunny.", [])),
    "one call in lines": (lines("get_weather", city="Paris"), Parsed("", [PARIS])),
    "one call in a line": (call("get_weather", city="Paris"), Parsed("", [PARIS])),
    "prose before and behind": (
        f"Let me look.\n{lines('get_weather', city='Paris')}\nDone.",
        Parsed("Let me look.\n\nDone.", [PARIS]),
    ),
    "parallel calls": (
        f"\n{lines('get_weather', city='Paris')}\n{lines('get_time')}\n",
        Parsed("", [PARIS, TIME]),
    ),
    "parallel calls in a line": (call("get_weather", city="Paris") + call("get_time"), Parsed("", [PARIS, TIME])),
    "no arguments": (call("get_time"), Parsed("", [TIME])),
    "a line break before the name": (f"{OPEN}\nget_time\n{CLOSE}", Parsed("", [TIME])),
    "types follow the schema": (
        call("Lookup", query="10", max_results="10", safe="true"),
        Parsed("", [Call("Lookup", '{"query": "10", "max_results": 10, "safe": true}')]),
    ),
    "a string or null, and a list": (
        call("find", name="Jones", orgs='["Red","Blue"]'),
        Parsed("", [Call("find", '{"name": "Jones", "orgs": ["Red","Blue"]}')]),
    ),
    "null": (call("find", name="null"), Parsed("", [Call("find", '{"name": null}')])),
    "nothing known of the tool": (
        call("other", a="3", b="x", c='{"d": [{}]}'),
        Parsed("", [Call("other", '{"a": 3, "b": "x", "c": {"d": [{}]}}')]),
    ),
    "an empty value": (call("get_weather", city=""), Parsed("", [Call("get_weather", '{"city": ""}')])),
    "unicode, quotes, braces and line breaks": (
        call("get_weather", city='\nGrüße 👩‍👩‍👧 "} ] \\ 日本\n'),
        Parsed("", [Call("get_weather", '{"city": "\\nGrüße 👩‍👩‍👧 \\"} ] \\\\ 日本\\n"}')]),
    ),
    "tags as text": (
        call("get_weather", city=f"a {VALUE_END} b {CLOSE} c {OPEN} d {KEY_END} <b> <arg_val"),
        Parsed("", [Call("get_weather", f'{{"city": "a {VALUE_END} b {CLOSE} c {OPEN} d {KEY_END} <b> <arg_val"}}')]),
    ),
    "a tag that is none": ("a < b, <tool_cal> and <tool", Parsed("a < b, <tool_cal> and <tool", [])),
    "the opening tag of a value is forgotten": (
        f"{OPEN}get_weather{KEY}city{KEY_END}Paris in May{VALUE_END}{CLOSE}",
        Parsed("", [Call("get_weather", '{"city": "Paris in May"}')]),
    ),
    "the opening tag of a key is forgotten": (
        f"{OPEN}get_weathercity{KEY_END}{VALUE}Paris{VALUE_END}{CLOSE}",
        Parsed("", [PARIS]),
    ),
    "the opening tag of a key is a space": (
        f"{OPEN}get_weather city{KEY_END}{VALUE}Paris{VALUE_END}{CLOSE}",
        Parsed("", [PARIS]),
    ),
    "no tool begins so": (
        f"{OPEN}unknowncity{KEY_END}{VALUE}Paris{VALUE_END}{CLOSE}ok",
        Parsed("ok", [], dropped=f"unknowncity{VALUE}Paris{VALUE_END}"),
    ),
    "tags of a key are written twice": (
        f"{OPEN}f{KEY}{KEY}a{KEY_END}{VALUE}1{VALUE_END}{KEY}b{KEY_END}{KEY_END}\n{VALUE}2{VALUE_END}{CLOSE}",
        Parsed("", [Call("f", '{"a": 1, "b": 2}')]),
    ),
    "the closing tag of a key is forgotten": (
        f"{OPEN}get_weather{KEY}city{VALUE}Paris{VALUE_END}{CLOSE}",
        Parsed("", [PARIS]),
    ),
    "closing tags of values are forgotten": (
        f"{OPEN}f{KEY}a{KEY_END}{VALUE}Lyon{KEY}b{KEY_END}{VALUE}ARA{CLOSE}\n{call('get_time')}",
        Parsed("", [Call("f", '{"a": "Lyon", "b": "ARA"}'), TIME]),
    ),
    "an end is forgotten": (
        f"{OPEN}get_weather{pair('city', 'Paris')}\n{OPEN}get_time{CLOSE}",
        Parsed("", [PARIS, TIME]),
    ),
    "the arguments are JSON": (
        f'{OPEN}get_weather\n{{"city": "Paris {CLOSE}"}}\n{CLOSE}',
        Parsed("", [Call("get_weather", f'{{"city": "Paris {CLOSE}"}}')]),
    ),
    "the call is JSON": (
        f'{OPEN}{{"name": "get_weather", "arguments": {{"city": "Paris"}}}}{CLOSE}',
        Parsed("", [PARIS]),
    ),
    "the JSON is cut": (
        f'{OPEN}get_weather\n{{"city": "Par',
        Parsed("", [Call("get_weather", '{"city": "Par', is_whole=False)]),
    ),
    "a key without a value": (
        f"{OPEN}f{pair('a', '1')}{KEY}b{KEY_END}{CLOSE}ok",
        Parsed("ok", [Call("f", '{"a": 1', is_whole=False)], dropped="b"),
    ),
    "a value without a key": (
        f"{OPEN}f{VALUE}1{VALUE_END}{pair('a', '1')}{CLOSE}{call('get_time')}",
        Parsed("", [Call("f", '{"a": 1', is_whole=False), TIME], dropped=f"{VALUE}1"),
    ),
    "an empty key": (
        f"{OPEN}f{pair('', '1')}{CLOSE}",
        Parsed("", [Call("f", "", is_whole=False)], dropped=f"{VALUE}1"),
    ),
    "a key that never ends": (
        f"{OPEN}f{KEY}a{CLOSE}ok",
        Parsed("ok", [Call("f", "", is_whole=False)], dropped="a"),
    ),
    "no name": (f"{OPEN}{pair('a', '1')}{CLOSE}ok", Parsed("ok", [], dropped=f"a{KEY_END}{VALUE}1{VALUE_END}")),
    "tags outside of a call": (f"ok{VALUE_END}{CLOSE}", Parsed("ok", [], dropped=f"{VALUE_END}{CLOSE}")),
    "cut in the name": (f"{OPEN}get_wea", Parsed("", [], dropped="get_wea")),
    "cut in a key": (f"{OPEN}f{KEY}ci", Parsed("", [Call("f", "", is_whole=False)], dropped="ci")),
    "cut in a string": (
        f"{OPEN}get_weather{KEY}city{KEY_END}{VALUE}Bos",
        Parsed("", [Call("get_weather", '{"city": "Bos', is_whole=False)]),
    ),
    "cut in a number": (
        f"{OPEN}Lookup{pair('query', 'a')}{KEY}max_results{KEY_END}{VALUE}12",
        Parsed("", [Call("Lookup", '{"query": "a"', is_whole=False)]),
    ),
    "cut behind a pair": (
        f"{OPEN}get_weather{pair('city', 'Paris')}",
        Parsed("", [Call("get_weather", '{"city": "Paris"', is_whole=False)]),
    ),
}
# A call's closing tag at the very end of a text is one; as text of a value it needs something behind it.
TAGS_AS_TEXT = "tags as text"


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name != TAGS_AS_TEXT])
def test_truncation_at_every_position(name: str) -> None:
    assert_prefixes_are_parsed(make, TRANSCRIPTS[name][0], MARKS)


def test_the_name_is_sent_once_and_whole() -> None:
    """What may still be a part of the name is not sent; then it goes out before any argument."""
    parser = make()
    assert parser.feed(f"{OPEN}get_") == []
    assert parser.feed("weather") == []
    assert parser.feed(f"{KEY}city{KEY_END}{VALUE}Pa") == [
        CallStart(0, "get_weather"),
        Arguments(0, '{"city": "'),
        Arguments(0, "Pa"),
    ]


def test_the_mark_of_a_call_ends_a_thought() -> None:
    assert (Glm45.opening, Glm45.ends_thought) == (OPEN, True)


BITS = [*MARKS, "<tool_", "<", "</arg_", "get", "get_weather", "city", "text ", " ", "\n", "{", "}", "[", '"', "\\"]
BITS += ['{"a": 1}', '{"name": "f"', "12", "é"]


@given(st.lists(st.sampled_from(BITS), max_size=16).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, MARKS)


@pytest.mark.parametrize(
    "unit",
    [
        OPEN,
        f"{OPEN}f",
        f"{OPEN}f{KEY}a{KEY_END}",
        f"{OPEN}f{KEY}",
        f"{OPEN}f{KEY_END}",
        f"{OPEN}f{{",
        pair("a", "1"),
        VALUE_END,
        "<tool_call",
        "<",
        "[",
        " ",
    ],
)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)


@pytest.mark.parametrize("key", ["city", "other"])
@pytest.mark.parametrize("unit", [VALUE_END, f"{CLOSE} ", "</arg_value", KEY_END, pair("a", "1"), "'", "["])
def test_time_is_linear_in_a_value(unit: str, key: str) -> None:
    assert_linear(lambda: _within(key), unit)


def _within(key: str) -> Glm45:
    parser = make()
    parser.feed(f"{OPEN}get_weather{KEY}{key}{KEY_END}{VALUE}")
    return parser
