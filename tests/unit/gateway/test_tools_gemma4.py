"""The format of Gemma 4: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Arguments
from gateway.core.tools.gemma4 import Gemma4
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    gathered,
    parse,
    parsed,
)

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
MARKS = [OPEN, CLOSE, QUOTE, "<|tool_response>", "<tool_response|>"]
TOOLS = {
    "get_weather": {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}},
    "create-pdf": {},
}


def make() -> Gemma4:
    return Gemma4(TOOLS)


def call(text: str) -> str:
    """@ stands for the mark around strings."""
    return f"{OPEN}call:{text.replace('@', QUOTE)}{CLOSE}"


PARIS = Call("get_weather", '{"city": "Paris"}')
TIME = Call("get_time", "{}")

TRANSCRIPTS = {
    "no call": ("It is sunny.", Parsed("It is sunny.", [])),
    "one call": (call("get_weather{city:@Paris@}"), Parsed("", [PARIS])),
    "prose before and behind": (
        f"Let me look.\n{call('get_weather{city:@Paris@}')}\nDone.",
        Parsed("Let me look.\n\nDone.", [PARIS]),
    ),
    "parallel calls": (call("get_weather{city:@Paris@}") + call("get_time{}"), Parsed("", [PARIS, TIME])),
    "no arguments": (call("get_time{}"), Parsed("", [TIME])),
    "neither arguments nor brackets": (call("get_time"), Parsed("", [TIME])),
    "all kinds of values": (
        call("f{s:@text@,n:-1.5e3,yes:true,no:false,none:null,list:[@a@,2,[]],obj:{k:{},l:[{m:@x@}]}}"),
        Parsed(
            "",
            [
                Call(
                    "f",
                    '{"s": "text", "n": -1.5e3, "yes": true, "no": false, "none": null, '
                    '"list": ["a", 2, []], "obj": {"k": {}, "l": [{"m": "x"}]}}',
                )
            ],
        ),
    ),
    "spaces and line breaks": (
        call(" f {\n  a : 1 ,\n  b : [ 1 , 2 ]\n}\n"),
        Parsed("", [Call("f", '{"a": 1, "b": [1, 2]}')]),
    ),
    "braces, quotes and marks in strings": (
        call(f"f{{a:@}} ] \" ' , b:{CLOSE} x {OPEN}call:g \\@,b:1}}"),
        Parsed("", [Call("f", f'{{"a": "}} ] \\" \' , b:{CLOSE} x {OPEN}call:g \\\\", "b": 1}}')]),
    ),
    "unicode and line breaks in strings": (
        call("f{größe:@Grüße 👩‍👩‍👧\n日本@}"),
        Parsed("", [Call("f", '{"größe": "Grüße 👩‍👩‍👧\\n日本"}')]),
    ),
    "an empty string": (call("get_weather{city:@@}"), Parsed("", [Call("get_weather", '{"city": ""}')])),
    "a string of digits": (call("f{a:@10@}"), Parsed("", [Call("f", '{"a": "10"}')])),
    "keys in marks and in quotes": (
        call('f{@a b@:1,"c":2}'),
        Parsed("", [Call("f", '{"a b": 1, "c": 2}')]),
    ),
    "a tool of a server": (
        call("google:mcp:create-pdf{}") + call("other:tool{}"),
        Parsed("", [Call("create-pdf", "{}"), Call("other:tool", "{}")]),
    ),
    "a beginning without call": (f"{OPEN}get_time{{}}{CLOSE}", Parsed("", [TIME])),
    "an end is forgotten": (
        f"{OPEN}call:get_time{{}}{OPEN}call:get_weather{{city:{QUOTE}Paris{QUOTE}}}",
        Parsed("", [TIME, PARIS]),
    ),
    "the result is announced": (
        call("get_time{}") + "<|tool_response>",
        Parsed("", [TIME], dropped="<|tool_response>"),
    ),
    "the mark before a string is forgotten": (call("get_weather{city:Paris@}"), Parsed("", [PARIS])),
    "the mark before a string with a comma is forgotten": (
        call("get_weather{city:Paris, France@,days:5}"),
        Parsed("", [Call("get_weather", '{"city": "Paris, France", "days": 5}')]),
    ),
    "both marks of a string are forgotten": (
        call("get_weather{city:New York, days:2, units:[C, F]}"),
        Parsed("", [Call("get_weather", '{"city": "New York", "days": 2, "units": ["C", "F"]}')]),
    ),
    "digits without marks where a string is asked for": (
        call("get_weather{city:10,days:10}"),
        Parsed("", [Call("get_weather", '{"city": "10", "days": 10}')]),
    ),
    "a comma is forgotten": (call("f{a:@look@b:90}"), Parsed("", [Call("f", '{"a": "look", "b": 90}')])),
    "a comma too many": (
        call("f{a:1,}") + call("g{b:[1,],}"),
        Parsed("", [Call("f", '{"a": 1}'), Call("g", '{"b": [1]}')]),
    ),
    "a number ends at a comma, whatever the next key is": (
        call("f{a:1, b c:2,d:true,e-é:null}"),
        Parsed("", [Call("f", '{"a": 1, "b c": 2, "d": true, "e-é": null}')]),
    ),
    "round brackets": (
        call("terminal(command:@ls -a (all)@)") + call("get_time()"),
        Parsed("", [Call("terminal", '{"command": "ls -a (all)"}'), TIME]),
    ),
    "written as Python": (
        call("f(a=1, b='it's, ok', c=[x, 'y'], d={e=2})"),
        Parsed("", [Call("f", '{"a": 1, "b": "it\'s, ok", "c": ["x", "y"], "d": {"e": 2}}')]),
    ),
    "common quotes": (
        call('f{a="x, \\"y\\" }",b:\'z\'}'),
        Parsed("", [Call("f", '{"a": "x, \\"y\\" }", "b": "z"}')]),
    ),
    "a tag that is none": ("a < b, <|tool_cal> <|", Parsed("a < b, <|tool_cal> <|", [])),
    "a bracket too many": (
        call("get_weather{city:[1,2]]}") + call("get_time{}"),
        Parsed("", [Call("get_weather", '{"city": [1, 2]', is_whole=False), TIME], dropped="]}"),
    ),
    "a bracket too many at the end": (
        call("f{a:1}}") + "ok",
        Parsed("ok", [Call("f", '{"a": 1}', is_whole=False)], dropped="}"),
    ),
    "a wrong bracket": (
        call("f{a:{b:1]}"),
        Parsed("", [Call("f", '{"a": {"b": 1', is_whole=False)], dropped="]}"),
    ),
    "a bracket without a key": (call("f{[1]}"), Parsed("", [Call("f", "{", is_whole=False)], dropped="[1]}")),
    "no value": (call("f{a:,b:1}"), Parsed("", [Call("f", '{"a": ', is_whole=False)], dropped=",b:1}")),
    "no key": (call("f{:1}"), Parsed("", [Call("f", "{", is_whole=False)], dropped="1}")),
    "a brace in a string without its first mark": (
        call("f{code:if (x) { y }@}") + "ok",
        Parsed("ok", [Call("f", '{"code": "if (x) { y "}', is_whole=False)], dropped='<|"|>}'),
    ),
    "the mark behind a string is forgotten": (
        call("f{a:@x}") + call("get_time{}"),
        Parsed("", [Call("f", '{"a": "x}', is_whole=False), TIME]),
    ),
    "the last bracket is forgotten": (
        call("f{a:[1,2") + call("get_time{}"),
        Parsed("", [Call("f", '{"a": [1, ', is_whole=False), TIME], dropped="2"),
    ),
    "a key in marks never ends": (
        call("f{@a") + "ok",
        Parsed("ok", [Call("f", "{", is_whole=False)], dropped="a"),
    ),
    "common quotes never end": (
        call('f{a:"x') + call("get_time{}"),
        Parsed("", [Call("f", '{"a": ', is_whole=False)]),
    ),
    "no call at all": (call("<b>") + "ok", Parsed("ok", [], dropped="<b>")),
    "no name": (call("{a:1}") + "ok", Parsed("ok", [], dropped="a:1}")),
    "marks outside of a call": (f"ok{QUOTE}{CLOSE}", Parsed("ok", [], dropped=QUOTE + CLOSE)),
    "cut in the name": (f"{OPEN}call:get_wea", Parsed("", [], dropped="get_wea")),
    "cut in a key": (f"{OPEN}call:f{{a:1,ci", Parsed("", [Call("f", '{"a": 1', is_whole=False)], dropped="ci")),
    "cut in a string": (
        f"{OPEN}call:get_weather{{city:{QUOTE}Bos",
        Parsed("", [Call("get_weather", '{"city": "Bos', is_whole=False)]),
    ),
    "cut in a number": (f"{OPEN}call:f{{a:12", Parsed("", [Call("f", '{"a": ', is_whole=False)], dropped="12")),
}
# Cut off behind a bracket that is text such a call would be whole; what follows shows that it is not.
UNSURE = {"a brace in a string without its first mark"}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right
    for written in right.calls:
        assert not written.is_whole or json.loads(written.arguments) is not None


@pytest.mark.parametrize("name", [name for name in TRANSCRIPTS if name not in UNSURE])
def test_truncation_at_every_position(name: str) -> None:
    assert_prefixes_are_parsed(make, TRANSCRIPTS[name][0], MARKS)


def test_strings_go_out_as_they_come() -> None:
    parser = make()
    parser.feed(f"{OPEN}call:f{{a:{QUOTE}")
    assert parser.feed('one "two" <') == [Arguments(0, 'one \\"two\\" ')]


def test_the_mark_of_a_call_ends_a_thought() -> None:
    assert (Gemma4.opening, Gemma4.ends_thought) == (OPEN, True)


def written(value: Any) -> str:
    """A value as the family writes it."""
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{written(member)}' for key, member in value.items())}}}"
    if isinstance(value, list):
        return f"[{','.join(map(written, value))}]"
    return f"{QUOTE}{value}{QUOTE}" if isinstance(value, str) else json.dumps(value)


KEYS = st.from_regex(r"[a-z][a-z_0-9]{0,5}", fullmatch=True)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_written_by_the_rules_is_read(value: dict[str, Any]) -> None:
    """Any arguments come back from the text that they are written as."""
    text = f"{OPEN}call:f{written(value)}{CLOSE}"
    (result,) = gathered(parse(make, [text])).calls
    assert gathered(parse(make, list(text))).calls == [result]
    assert (json.loads(result.arguments), result.is_whole) == (value, True)


BITS = [*MARKS, "<|tool_", "<", "<tool_call", "call:f{", "call:get_weather(", "a:", "b=", "city:", "text ", "\n"]
BITS += ["{", "}", "[", "]", "(", ")", ",", '"', "'", "\\", "12", "true", "None", "é"]


@given(st.lists(st.sampled_from(BITS), max_size=16).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, MARKS)


@pytest.mark.parametrize(
    "unit",
    [OPEN, f"{OPEN}call:f{{", f"{OPEN}call:f{{a:[", call("f{a:1}"), QUOTE, CLOSE, "<|tool_call", "<", "{", " "],
)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)


@pytest.mark.parametrize(
    ("beginning", "unit"),
    [
        ("a:[", "["),
        ("a:", "{a:"),
        ("", "a:1,"),
        ("", f"a:x{QUOTE},"),
        ("a:[", "x, "),
        ("a:", "x, "),
        ("a:", ","),
        ("a:", " "),
        ("a:", "<|"),
        (f"a:{QUOTE}", f"{CLOSE} "),
        (f"a:{QUOTE}", '"'),
        ("a:", "'"),
        ('a:"', "\\"),
    ],
)
def test_time_is_linear_in_the_arguments(beginning: str, unit: str) -> None:
    assert_linear(lambda: _within(beginning), unit)


def _within(beginning: str) -> Gemma4:
    parser = make()
    parser.feed(f"{OPEN}call:f{{{beginning}")
    return parser
