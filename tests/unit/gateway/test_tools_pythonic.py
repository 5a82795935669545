"""The pythonic format: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import ast
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Arguments, CallStart, Content
from gateway.core.tools.python_values import scalar
from gateway.core.tools.pythonic import Pythonic
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

TOOLS = {
    "find": {"type": "object", "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}}},
    "find_all": {"type": "object", "properties": {}},
    "get_time": {},
    "notes.add": {},
}
START, END = "<|python_start|>", "<|python_end|>"
MARKS = [START, END, "<|python_tag|>", "[find(", "[get_time("]


def make() -> Pythonic:
    return Pythonic(TOOLS)


def text_only(text: str) -> tuple[str, Parsed]:
    return text, Parsed(text, [])


A = Call("find", '{"text": "a"}')
TIME = Call("get_time", "{}")

TRANSCRIPTS = {
    "no call": text_only("It is sunny."),
    "lists": text_only("Take [1, 2], [x], [link](http://a.b) and a[0][find]."),
    "an unknown tool": text_only('[search(text="a"), find(text="b")]'),
    "a tool's name in prose": text_only('find(text="a") finds; [find] does not, nor [find ('),
    "one call": ('[find(text="a")]', Parsed("", [A])),
    "no arguments": ("[get_time()]", Parsed("", [TIME])),
    "the longer name": ("[find_all( )]", Parsed("", [Call("find_all", "{}")])),
    "a name with a dot": ("[notes.add(n=1)]", Parsed("", [Call("notes.add", '{"n": 1}')])),
    "prose around": ('I look.\n[find(text="a")]\nDone [1].', Parsed("I look.\n\nDone [1].", [A])),
    "parallel calls": (
        '[find(text="a"), get_time(), find(limit=-3)]',
        Parsed("", [A, TIME, Call("find", '{"limit": -3}')]),
    ),
    "two lists": ('[find(text="a")]\n[ get_time() ]', Parsed("", [A, TIME])),
    "between tags": (f'{START}[find(text="a")]{END}', Parsed("", [A])),
    "between tags without a list": (f'{START} find(text="a"), get_time(){END}ok', Parsed("ok", [A, TIME])),
    "brackets and quotes in strings": (
        '[find(text="list[0] a]b \\" q})] tail")]',
        Parsed("", [Call("find", '{"text": "list[0] a]b \\" q})] tail"}')]),
    ),
    "calls and tags in strings": (
        f"[find(text='), get_time()] {END} \"', limit=2)]",
        Parsed("", [Call("find", f'{{"text": "), get_time()] {END} \\"", "limit": 2}}')]),
    ),
    "escapes": (
        "[find(text='It\\'s\\n\\\\d \\x41\\u00e9\\101\\U0001F600 \\q \\/')]",
        Parsed("", [Call("find", '{"text": "It\'s\\n\\\\d AéA😀 \\\\q /"}')]),
    ),
    "pairs and half a pair": (
        '[find(text="\\ud83d\\ude00 \\ud83d")]',
        Parsed("", [Call("find", '{"text": "😀 \ufffd"}')]),
    ),
    "unicode and lines": (
        '[find(text="Grüße 👩‍👩‍👧\n日本")]',
        Parsed("", [Call("find", '{"text": "Grüße 👩‍👩‍👧\\n日本"}')]),
    ),
    "constants and numbers": (
        "[find(a=True, b=False, c=None, d=true, e=null, f=-1.5e3, g=.5, h=5., i=0x1F, j=1_000, k=+7, l=007)]",
        Parsed(
            "",
            [
                Call(
                    "find",
                    '{"a": true, "b": false, "c": null, "d": true, "e": null, "f": -1.5e3, "g": 0.5, "h": 5.0, '
                    '"i": 31, "j": 1000, "k": 7, "l": 7}',
                )
            ],
        ),
    ),
    "nested values": (
        "[find(a=[1, [], ('x', 2,), {}], b={'k': {'z': [None]}, 1: \"]\", True: ()}, )]",
        Parsed("", [Call("find", '{"a": [1, [], ["x", 2], {}], "b": {"k": {"z": [null]}, "1": "]", "true": []}}')]),
    ),
    "spaces": (
        "[find( text = 'a' ,\n limit\t=  [ 1 ,2 ] ) ]",
        Parsed("", [Call("find", '{"text": "a", "limit": [1, 2]}')]),
    ),
    "arguments in order": ("[find('a', 5)]", Parsed("", [Call("find", '{"text": "a", "limit": 5}')])),
    "the first in order": ("[find('a', limit=5)]", Parsed("", [Call("find", '{"text": "a", "limit": 5}')])),
    "more than the schema has": (
        "[find('a', 5, 6)] ok",
        Parsed(" ok", [Call("find", '{"text": "a", "limit": 5', is_whole=False)], dropped="6"),
    ),
    "cut in the name": ("So: [get_ti", Parsed("So: ", [], dropped="[get_ti")),
    "cut in the name behind a tag": (f"{START}get_ti", Parsed("", [], dropped="get_ti")),
    "cut in a string": ('[find(limit=1, text="lo', Parsed("", [Call("find", '{"limit": 1, "text": ', False)])),
    "cut in a list": ("[find(limit=[1, 2", Parsed("", [Call("find", '{"limit": [1, 2', False)])),
    "the bracket is forgotten": ('[find(text="a")', Parsed("", [A])),
    "the parenthesis is forgotten": ('[find(text="a"]', Parsed("", [Call("find", '{"text": "a"', False)], dropped="]")),
    "a broken call and a good one": (
        "[find(text=foo(bar)), get_time()] ok",
        Parsed(" ok", [Call("find", '{"text": ', False), TIME], dropped="foo(bar)"),
    ),
    "a quote mark too many": (
        '[find(text="he said "hi)", x")] ok',
        Parsed(" ok", [Call("find", '{"text": "he said "', False)], dropped='hi)", x"'),
    ),
    "a bracket too many": (
        f"[find(limit=[1]]){END}ok",
        Parsed("ok", [Call("find", '{"limit": [1]', False)], dropped="])"),
    ),
    "an expression": ("[find(limit=1+2)] ok", Parsed(" ok", [Call("find", '{"limit": ', False)], dropped="1+2")),
    "a set": ("[find(limit={1, 2})] ok", Parsed(" ok", [Call("find", '{"limit": {"1"', False)], dropped=", 2}")),
    "a comma is forgotten": ("[get_time()\nget_time()]", Parsed("", [TIME, TIME])),
    "a space before what is wrong": ("[find([ })] ok", Parsed(" ok", [Call("find", '{"text": [', False)], dropped="}")),
    "broken, and no comma": (
        "[find({)find('a')]",
        Parsed("", [Call("find", '{"text": {', False)], dropped=")find('a'"),
    ),
    "words behind the call": ("[get_time() now] ok", Parsed("", [TIME], dropped=" now] ok")),
    "a tag without a call": (f"{START}Hello.{END} Bye.", Parsed("Hello. Bye.", [], dropped=START)),
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, MARKS)


def test_without_tools_no_list_is_a_call() -> None:
    assert parsed(lambda: Pythonic({}), "[find(a=1)]") == Parsed("[find(a=1)]", [])


def test_text_is_held_no_longer_than_it_may_become_a_call() -> None:
    for text, refutes in {"[": "1", "[ \n": "]", "[f": "o", "[find": "]", "[find_al": "(", "<|pyt": "x"}.items():
        parser = make()
        assert parser.feed(f"Use {text}") == [Content("Use ")]
        assert "".join(event.text for event in parser.feed(refutes) if isinstance(event, Content)) == text + refutes


def test_values_go_out_as_they_come() -> None:
    parser = make()
    assert parser.feed("[find(")[0] == CallStart(0, "find")
    given = parser.feed("limit=[1, 'a', ") + parser.feed("'b")
    assert "".join(event.text for event in given if isinstance(event, Arguments)) == '"limit": [1, "a"'


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_what_python_writes_is_read(value: Any) -> None:
    text = f"[find(text={value!r}, limit=0)]"
    (call,) = gathered(parse(make, [text])).calls
    assert call.arguments == json.dumps({"text": value, "limit": 0}, ensure_ascii=False)
    assert ast.literal_eval(repr(value)) == value


@pytest.mark.parametrize(
    "word", ["", "x", "--1", "1__0", "1-2", "0xg", "nan", ".", "e5", "1e", "1" * 200 + "_0", "²", "٣"]
)
def test_words_that_are_no_value(word: str) -> None:
    assert scalar(word) is None


BITS = [
    "[", "]", "(", ")", "{", "}", ",", ":", "=", "'", '"', "\\", " ", "\n", "1", "x", "True", "text=", "[find(",
    "find(", "[get_time()", "),", "a='b'", START, END, "<|py", "[fi",
]  # fmt: skip


@given(st.lists(st.sampled_from(BITS), max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, MARKS)


UNITS = [
    "[",
    "[find",
    "[find(",
    "(",
    " ",
    "[find(text=[",
    ")",
    "),",
    "),x",
    "\\",
    "[ ",
    START,
    "<|",
    "1",
    "[find(text='",
]


@pytest.mark.parametrize("unit", UNITS)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)


@pytest.mark.parametrize("unit", ["[", "(", "{'a':", "[]", "'a',", "1, ", "\\", "\\n", " "])
def test_time_is_linear_in_a_call(unit: str) -> None:
    def within() -> Pythonic:
        parser = make()
        parser.feed('[find(text="' if "\\" in unit else "[find(text=[")
        return parser

    assert_linear(within, unit)
