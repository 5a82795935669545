"""Harmony: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Content, Reasoning
from gateway.core.tools.harmony import Harmony
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    parsed,
)

MARKS = ["<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>", "<|return|>"]
ASSISTANT = "<|start|>assistant"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
COMMENTARY = "<|channel|>commentary"
JSON = " <|constrain|>json<|message|>"
THOUGHT = f"{ANALYSIS}need tool<|end|>{ASSISTANT}"


def make() -> Harmony:
    return Harmony({"get_weather": {}, "get_time": {}})


def made_without_tools() -> Harmony:
    return Harmony({})


PARIS = Call("get_weather", '{"city":"Paris"}')
TIME = Call("get_time", "{}")

TRANSCRIPTS = {
    "no call": (
        f"{ANALYSIS}3+3 is six<|end|>{ASSISTANT}{FINAL}six<|return|>",
        Parsed("six", [], "3+3 is six"),
    ),
    "no thought": (f"{FINAL}six<|return|>", Parsed("six", [])),
    "nothing but thought": (f"{ANALYSIS}hm", Parsed("", [], "hm")),
    "no end": (f"{ANALYSIS}why<|end|>{ASSISTANT}{FINAL}six", Parsed("six", [], "why")),
    "no channel": ("It is sunny.", Parsed("It is sunny.", [])),
    "no channel and an end": ("It is sunny.<|return|>", Parsed("It is sunny.", [])),
    "no text": ("", Parsed("", [])),
    "one call": (
        f'{THOUGHT}{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS], "need tool"),
    ),
    "a call without its end, which an engine takes as a stop token": (
        f'{THOUGHT}{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Paris"}}',
        Parsed("", [PARIS], "need tool"),
    ),
    "parallel calls": (
        f'{THOUGHT}{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Paris"}}<|call|>'
        f"{ASSISTANT}{COMMENTARY} to=functions.get_time{JSON}{{}}<|call|>",
        Parsed("", [PARIS, TIME], "need tool"),
    ),
    "a preamble": (
        f"{THOUGHT}{COMMENTARY}<|message|>I will look.<|end|>"
        f'{ASSISTANT}{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Paris"}}<|call|>',
        Parsed("I will look.", [PARIS], "need tool"),
    ),
    "the recipient before the channel": (
        f'{ANALYSIS}need tool<|end|>{ASSISTANT} to=functions.get_weather{COMMENTARY}{JSON}{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS], "need tool"),
    ),
    "the recipient first of all": (
        f' to=functions.get_weather{COMMENTARY} json<|message|>{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS]),
    ),
    "the role first of all": (
        f"{ASSISTANT.removeprefix('<|start|>')}{ANALYSIS}why<|end|>{ASSISTANT}{FINAL}six<|return|>",
        Parsed("six", [], "why"),
    ),
    "the beginning written twice": (
        f"{ASSISTANT}{ANALYSIS}why<|end|>{ASSISTANT}{FINAL}six<|return|>",
        Parsed("six", [], "why"),
    ),
    "no space before the constraint": (
        f'{COMMENTARY} to=functions.get_weather<|constrain|>json<|message|>{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS]),
    ),
    "the constraint without its mark": (
        f'{COMMENTARY} to=functions.get_weather json<|message|>{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS]),
    ),
    "no constraint": (
        f'{COMMENTARY} to=functions.get_weather<|message|>{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS]),
    ),
    "a recipient without its namespace": (
        f'{COMMENTARY} to=get_weather{JSON}{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS]),
    ),
    "a tool that is not on offer": (
        f'{COMMENTARY} to=browser.search{JSON}{{"query":"x"}}<|call|>',
        Parsed("", [Call("browser.search", '{"query":"x"}')]),
    ),
    "a call among the thoughts": (
        f'{THOUGHT}<|channel|>analysis to=functions.get_weather code<|message|>\n{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS], "need tool"),
    ),
    "a thought that has a recipient": (
        f"{THOUGHT}<|channel|>analysis to=functions.get_weather<|message|> So, {{x}}<|end|>",
        Parsed("", [], "need tool So, {x}"),
    ),
    "code for a tool that nobody offers": (
        f"{THOUGHT}<|channel|>analysis to=python code<|message|>print(1)<|call|>",
        Parsed("", [], "need toolprint(1)"),
    ),
    "an answer that has a recipient": (
        f"<|channel|>final to=user<|message|>six<|end|>{ASSISTANT} to=all{COMMENTARY}<|message|> seven<|end|>",
        Parsed("six seven", []),
    ),
    "no arguments": (f"{COMMENTARY} to=functions.get_time{JSON}<|call|>", Parsed("", [TIME])),
    "nested values": (
        f'{COMMENTARY} to=functions.f{JSON}{{"a": [1, {{"b": [[], {{}}, null]}}], "c": -1.5e3}}<|call|>',
        Parsed("", [Call("f", '{"a": [1, {"b": [[], {}, null]}], "c": -1.5e3}')]),
    ),
    "marks, quotes and brackets in strings": (
        f'{COMMENTARY} to=functions.f{JSON}{{"t": "}} \\" ] <|call|> {FINAL} \\\\"}}<|call|>',
        Parsed("", [Call("f", f'{{"t": "}} \\" ] <|call|> {FINAL} \\\\"}}')]),
    ),
    "unicode": (
        f'{COMMENTARY} to=functions.say{JSON}{{"t": "Grüße 👩‍👩‍👧 \\u00e9 日本"}}<|call|>'
        f"{ASSISTANT}{FINAL}日本<|return|>",
        Parsed("日本", [Call("say", '{"t": "Grüße 👩‍👩‍👧 \\u00e9 日本"}')]),
    ),
    "arguments as text": (
        f'{COMMENTARY} to=functions.get_weather{JSON}"{{\\"city\\":\\"Paris\\"}}"<|call|>',
        Parsed("", [PARIS]),
    ),
    "words of the header in the answer": (
        f"{FINAL}The commentary to=functions.f is final, assistant.<|return|>",
        Parsed("The commentary to=functions.f is final, assistant.", []),
    ),
    "a channel's name in the recipient": (
        f"{COMMENTARY} to=functions.final_analysis{JSON}{{}}<|call|>",
        Parsed("", [Call("final_analysis", "{}")]),
    ),
    "white space is the model's own": (
        f"{ANALYSIS} a\n<|end|>{ASSISTANT}{FINAL}\n\nsix \n<|return|>",
        Parsed("\n\nsix \n", [], " a\n"),
    ),
    "an end is forgotten": (
        f"{ANALYSIS}why{ASSISTANT}{FINAL}six<|return|>",
        Parsed("six", [], "why"),
    ),
    "an end and a start are forgotten": (f"{ANALYSIS}why{FINAL}six<|return|>", Parsed("six", [], "why")),
    "a start is forgotten": (
        f'{ANALYSIS}why<|end|>assistant{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS], "why"),
    ),
    "a start and a channel's mark are forgotten": (
        f'{ANALYSIS}why<|end|>commentary to=functions.get_weather{JSON}{{"city":"Paris"}}<|call|>',
        Parsed("", [PARIS], "why"),
    ),
    "a channel's mark is forgotten": (
        f"{ANALYSIS}why<|end|><|start|>assistantfinal<|message|>six<|return|>",
        Parsed("six", [], "why"),
    ),
    "a role alone": (f"{ANALYSIS}why<|end|>{ASSISTANT}<|message|>six<|return|>", Parsed("six", [], "why")),
    "the message's mark twice": (f"{FINAL}six<|message|>ty<|return|>", Parsed("sixty", [])),
    "the call's end in the middle of the arguments": (
        f'{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Paris"<|call|>{ASSISTANT}{FINAL}ok<|return|>',
        Parsed("ok", [Call("get_weather", '{"city":"Paris"', is_whole=False)]),
    ),
    "a bracket too many": (
        f'{COMMENTARY} to=functions.f{JSON}{{"a": [1]]}}<|call|>{ASSISTANT}{FINAL}ok<|return|>',
        Parsed("ok", [Call("f", '{"a": [1]', is_whole=False)], dropped="]}"),
    ),
    "text behind the arguments": (
        f'{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Paris"}} and so on<|call|>',
        Parsed("", [PARIS], dropped=" and so on"),
    ),
    "not JSON": (
        f"{COMMENTARY} to=functions.get_weather{JSON}city=Paris<|call|>",
        Parsed("", [Call("get_weather", "", is_whole=False)], dropped="city=Paris"),
    ),
    "a recipient without a name": (
        f'{COMMENTARY} to=functions.{JSON}{{"city":"Paris"}}<|call|>',
        Parsed("", [], dropped='{"city":"Paris"}'),
    ),
    "a channel that is none": (
        f"<|channel|>––commentary?<|message|>I will look.<|end|>{ASSISTANT}<|channel|>answer<|message|> So.",
        Parsed("I will look. So.", []),
    ),
    "a header without a message": (
        f"<|channel|>commentary 2?<|end|>{ASSISTANT}{ANALYSIS}why<|end|>{ASSISTANT}{FINAL}six",
        Parsed("six", [], "why", dropped="commentary 2?"),
    ),
    "two headers": (
        f"<|channel|>commentary to=assistant{COMMENTARY}?<|message|>ok<|end|>",
        Parsed("ok", []),
    ),
    "others speak": (
        f"{COMMENTARY} to=functions.get_time{JSON}{{}}<|call|><|start|>functions.get_time to=assistant"
        f"{COMMENTARY}<|message|>12:00<|end|><|start|>user<|message|>And now?<|end|>{ASSISTANT}{FINAL}ok<|return|>",
        Parsed("ok", [TIME], dropped="12:00And now?"),
    ),
    "text behind the end": (f"{FINAL}six<|return|> and more", Parsed("six", [], dropped=" and more")),
    "what looks like a recipient": ("to=5 is a route", Parsed("to=5 is a route", [])),
    "what looks like a recipient, and an end": (" to=5 is a route<|return|>", Parsed(" to=5 is a route", [])),
    "a mark that is none": ("a <|chan and <|", Parsed("a <|chan and <|", [])),
    "cut in the first mark": ("<|chann", Parsed("<|chann", [])),
    "cut in the header": (
        f"{ANALYSIS}why<|end|>{ASSISTANT}{COMMENTARY} to=functions.get_wea",
        Parsed("", [], "why", dropped="assistant commentary to=functions.get_wea"),
    ),
    "cut behind the header": (
        f"{COMMENTARY} to=functions.get_weather{JSON}",
        Parsed("", [Call("get_weather", "", is_whole=False)]),
    ),
    "cut in the arguments": (
        f'{COMMENTARY} to=functions.get_weather{JSON}{{"city":"Bos',
        Parsed("", [Call("get_weather", '{"city":"Bos', is_whole=False)]),
    ),
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, MARKS)


@pytest.mark.parametrize(
    "name",
    ["no call", "no channel", "one call", "a preamble", "a call among the thoughts", "a tool that is not on offer"],
)
def test_a_request_without_tools_gives_the_same(name: str) -> None:
    text, right = TRANSCRIPTS[name]
    assert parsed(made_without_tools, text) == right


def test_thought_and_answer_go_out_as_they_come() -> None:
    parser = make()
    assert parser.feed("<|channel|>analysis<|message|>I ") == [Reasoning("I ")]
    assert parser.feed("see<|en") == [Reasoning("see")]
    assert parser.feed("d|><|start|>assistant<|channel|>final<|message|>o") == [Content("o")]
    assert parser.feed("k <") == [Content("k ")]


def test_text_without_channels_goes_out_as_it_comes() -> None:
    parser = made_without_tools()
    assert parser.feed("t") == []
    assert parser.feed("ea") == [Content("tea")]
    assert parser.feed(" for two") == [Content(" for two")]


BITS = [*MARKS, "<|ch", "<", "assistant", "analysis", "commentary", "final", " to=functions.get_time", " to=x", "user"]
BITS += ["{", "}", "[", "]", '"', "\\", '{"a": 1}', ",", "é", " "]


@given(st.lists(st.sampled_from(BITS), max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, MARKS)
    assert_same_for_splits(made_without_tools, text, cuts, MARKS)


@pytest.mark.parametrize(
    "unit",
    [
        " ",
        " to=",
        "<",
        "<|start|",
        "<|start|>",
        "<|channel|>",
        FINAL,
        f"{ANALYSIS}x<|end|>",
        f"{COMMENTARY} to=functions.f<|message|>",
        f'{COMMENTARY} to=functions.f<|message|>{{"',
        f"{COMMENTARY} to=functions.f<|message|>{{[",
    ],
)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)
