"""The format of Qwen3 Coder: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Arguments, CallStart, Content
from gateway.core.tools.qwen3_coder import Qwen3Coder
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    parse,
    parsed,
)

OPEN, CLOSE = "<tool_call>", "</tool_call>"
TAGS = ["<function=", "</function>", "<parameter=", "</parameter>"]
TEXT = {"type": "string"}
TOOLS = {
    "get_weather": {"properties": {"city": TEXT}},
    "write": {"properties": {"content": TEXT, "path": TEXT}},
    "set": {
        "properties": {"n": {"type": "integer"}, "on": {"type": "boolean"}, "of": {"type": "array"}, "text": TEXT},
    },
}


def make() -> Qwen3Coder:
    return Qwen3Coder(TOOLS)


def function(name: str, /, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<function={name}>\n{inner}</function>"


def call(name: str, /, **values: str) -> str:
    return f"{OPEN}\n{function(name, **values)}\n{CLOSE}"


PARIS = Call("get_weather", '{"city": "Paris"}')
TIME = Call("get_time", "{}")
NESTED = f"<function=demo>\n</function>\n{CLOSE}"

TRANSCRIPTS = {
    "no call": ("It is sunny.", Parsed("It is sunny.", [])),
    "one call": (call("get_weather", city="Paris"), Parsed("", [PARIS])),
    "prose before and behind": (
        f"Let me look.\n\n{call('get_weather', city='Paris')}\nDone.",
        Parsed("Let me look.\n\n\nDone.", [PARIS]),
    ),
    "parallel calls": (
        f"{call('get_weather', city='Paris')}\n{call('get_time')}\n",
        Parsed("", [PARIS, TIME]),
    ),
    "two functions in one pair of tags": (
        f"{OPEN}\n{function('get_weather', city='Paris')}\n{function('get_time')}\n{CLOSE}",
        Parsed("", [PARIS, TIME]),
    ),
    "no arguments": (call("get_time"), Parsed("", [TIME])),
    "all in one line": (
        f"{OPEN}<function=get_weather><parameter=city>Paris</parameter></function>{CLOSE}",
        Parsed("", [PARIS]),
    ),
    "types follow the schema": (
        call("set", n="3", on="True", of='["a", 1]', text="3"),
        Parsed("", [Call("set", '{"n": 3, "on": true, "of": ["a", 1], "text": "3"}')]),
    ),
    "nothing known of the tool": (
        call("other", a="3", b="x", c='{"d": [{}]}'),
        Parsed("", [Call("other", '{"a": 3, "b": "x", "c": {"d": [{}]}}')]),
    ),
    "unicode, quotes and braces": (
        call("write", content='Grüße 👩‍👩‍👧 \\n "} ] 日本'),
        Parsed("", [Call("write", '{"content": "Grüße 👩‍👩‍👧 \\\\n \\"} ] 日本"}')]),
    ),
    "line breaks and indentation are the value's own": (
        call("write", content="\n  def f():\n    pass\n"),
        Parsed("", [Call("write", '{"content": "\\n  def f():\\n    pass\\n"}')]),
    ),
    "an empty value": (call("write", content=""), Parsed("", [Call("write", '{"content": ""}')])),
    "a tag of a parameter as text": (
        call("write", content="<a></parameter></a>\nend", path="x.xml"),
        Parsed("", [Call("write", '{"content": "<a></parameter></a>\\nend", "path": "x.xml"}')]),
    ),
    "other tags as text": (
        call("write", content=f"{OPEN} and <b> and <paramete", path="x"),
        Parsed("", [Call("write", f'{{"content": "{OPEN} and <b> and <paramete", "path": "x"}}')]),
    ),
    "a closing tag of a parameter is forgotten": (
        f"{OPEN}\n<function=write>\n<parameter=content>\nLyon\n<parameter=path>\nARA\n</function>\n{CLOSE}",
        Parsed("", [Call("write", '{"content": "Lyon", "path": "ARA"}')]),
    ),
    "all other closing tags are forgotten": (
        f"{OPEN}\n<function=get_weather>\n<parameter=city>\nParis\n{CLOSE}\n{OPEN}\n<function=get_time>\n{CLOSE}",
        Parsed("", [PARIS, TIME]),
    ),
    "the next call begins before this one ends": (
        f"{OPEN}\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n{call('get_time')}",
        Parsed("", [PARIS, TIME]),
    ),
    "the next call begins within a value": (
        f"{OPEN}\n<function=get_weather>\n<parameter=city>\nParis\n{call('get_time')}",
        Parsed("", [PARIS, TIME]),
    ),
    "no tool_call around it": (
        f"I will look.\n\n{function('get_weather', city='Paris')}\n{CLOSE}\nDone.",
        Parsed("I will look.\n\n\nDone.", [PARIS]),
    ),
    "no tool_call at all": (f"{function('get_time')}\nDone.", Parsed("\nDone.", [TIME])),
    "the bracket behind the name is forgotten": (
        f"{OPEN}\n<function=get_weather\n<parameter=city>\nParis\n</parameter>\n</function>\n{CLOSE}",
        Parsed("", [PARIS]),
    ),
    "prose about the format": (
        "Write <function=name> and </function>, <parameter=x> too.",
        Parsed("Write <function=name> and </function>, <parameter=x> too.", []),
    ),
    "a tag that is none": ("a < b, <tool_cal> and <func", Parsed("a < b, <tool_cal> and <func", [])),
    "one bad parameter does not cost the others": (
        f"{OPEN}\n<function=set>\n<parameter=n>\n1\n</parameter>\n<parameter=on: true\n</parameter>\n"
        f"<parameter=text>\na\n</parameter>\n</function>\n{CLOSE}\n{call('get_time')}",
        Parsed(
            "",
            [Call("set", '{"n": 1, "text": "a"', is_whole=False), TIME],
            dropped="\n<parameter=on: true\n</parameter>",
        ),
    ),
    "a parameter without a name": (
        f"{OPEN}\n<function=set>\n<parameter=>\n1\n</parameter>\n</function>\n{CLOSE}",
        Parsed("", [Call("set", "", is_whole=False)], dropped="\n<parameter=>\n1\n</parameter>"),
    ),
    "a function without a name": (
        f"{OPEN}\n<function=>\n<parameter=n>\n1\n</parameter>\n</function>\n{CLOSE}ok",
        Parsed("ok", [], dropped="\n<function=><parameter=n>\n1\n</parameter>"),
    ),
    "no function": (f"{OPEN}\nget_weather(Paris)\n{CLOSE}ok", Parsed("ok", [], dropped="\nget_weather(Paris)")),
    "text between the parameters": (
        f"{OPEN}\n<function=get_weather>\nnow\n<parameter=city>\nParis\n</parameter>\n</function>\n{CLOSE}",
        Parsed("", [PARIS], dropped="\nnow"),
    ),
    "an end without a beginning": (f"ok{CLOSE}\n", Parsed("ok\n", [], dropped=CLOSE)),
    "cut in a key": (
        f"{call('get_time')}{OPEN}<function=get_weather><parameter=city",
        Parsed("", [TIME, Call("get_weather", "", is_whole=False)], dropped="\n<parameter=city"),
    ),
    "cut in the name": (f"{OPEN}\n<function=get_wea", Parsed("", [], dropped="\n<function=get_wea")),
    "cut in a string": (
        f"{OPEN}\n<function=get_weather>\n<parameter=city>\nBos",
        Parsed("", [Call("get_weather", '{"city": "Bos', is_whole=False)]),
    ),
    "cut in a number": (
        f"{OPEN}\n<function=set>\n<parameter=text>\na\n</parameter>\n<parameter=n>\n12",
        Parsed("", [Call("set", '{"text": "a"', is_whole=False)]),
    ),
    "cut behind a parameter": (
        f"{OPEN}\n<function=set>\n<parameter=text>\na\n</parameter>\n",
        Parsed("", [Call("set", '{"text": "a"', is_whole=False)]),
    ),
}
# Cut off behind its tags a value that holds all tags of a call's end is one that ends there.
ALL_ENDS = (
    call("write", content=NESTED, path="x"),
    Parsed("", [Call("write", '{"content": "<function=demo>\\n</function>\\n</tool_call>", "path": "x"}')]),
)


@pytest.mark.parametrize(
    ("text", "right"), [*TRANSCRIPTS.values(), ALL_ENDS], ids=[*TRANSCRIPTS, "all ends of a call as text"]
)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, [OPEN, CLOSE, "\n<parameter=", "\n</parameter>"])


def test_strings_go_out_as_they_come() -> None:
    """A long text need not be whole to be sent; a line break may be the last one, and waits."""
    parser = make()
    parser.feed(f"{OPEN}<function=write><parameter=content>\n")
    assert parser.feed("one\n") == [Arguments(0, "one")]
    assert parser.feed("two <") == [Arguments(0, "\\ntwo ")]


BITS = [
    OPEN,
    CLOSE,
    *TAGS,
    "<function=f>",
    "<parameter=a>",
    "<function=set",
    "<parameter=n>\n",
    "<tool_",
    "<",
    ">",
    "\n",
]
BITS += ["text ", "{", "}", '"', "\\", '{"a": 1}', "12", "True", "é", "=", " "]


@given(st.lists(st.sampled_from(BITS), max_size=16).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    """Any cutting gives the same, and behind the beginning of a call no tag is content."""
    assert_same_for_splits(make, text, cuts, [OPEN, CLOSE])
    behind = itertools.dropwhile(lambda event: not isinstance(event, CallStart), parse(make, [text]))
    content = [event.text for event in behind if isinstance(event, Content)]
    assert not [tag for tag in TAGS for text in content if tag in text]


@pytest.mark.parametrize(
    "unit",
    [
        OPEN,
        "<function=f>",
        "<function=",
        f"{OPEN}<function=f><parameter=a>",
        "<parameter=a>",
        f"{OPEN}<function=f><parameter=a></parameter> ",
        "</function></tool_call>",
        "<function",
        "<",
        "[",
        " ",
        "\n",
    ],
)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)


@pytest.mark.parametrize("key", ["text", "of"])
@pytest.mark.parametrize("unit", ["</parameter>", "</tool_call> ", "</parameter", "\n", "'", "[", '["'])
def test_time_is_linear_in_a_value(unit: str, key: str) -> None:
    assert_linear(lambda: _within(key), unit)


def _within(key: str) -> Qwen3Coder:
    parser = make()
    parser.feed(f"{OPEN}<function=set><parameter={key}>")
    return parser
