"""The two forms of DeepSeek: right values written out, for every way in which the text can be cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.tools.base import Content
from gateway.core.tools.deepseek import DeepSeek
from tests.support.tool_parsers import (
    Call,
    Parsed,
    assert_linear,
    assert_prefixes_are_parsed,
    assert_same_for_splits,
    parsed,
)

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
MARKS = [CALLS, CALLS_END, CALL, SEP, END]


def make() -> DeepSeek:
    return DeepSeek({"get_weather": {}, "get_time": {}})


PARIS = Call("get_weather", '{"city": "Paris"}')
TIME = Call("get_time", "{}")

NEW_FORM = {
    "no call": ("It is sunny.", Parsed("It is sunny.", [])),
    "one call": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}}{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "parallel calls": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}}{END}{CALL}get_time{SEP}{{}}{END}{CALLS_END}',
        Parsed("", [PARIS, TIME]),
    ),
    "lines between": (
        f'\n\n{CALLS}\n{CALL}get_weather{SEP}\n{{"city": "Paris"}}\n{END}\n'
        f"{CALL}\nget_time\n{SEP}{{}}{END}\n{CALLS_END}\n",
        Parsed("", [PARIS, TIME]),
    ),
    "prose before": (
        f'Let me look.\n\n{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}}{END}{CALLS_END}',
        Parsed("Let me look.\n\n", [PARIS]),
    ),
    "prose behind": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}}{END}{CALLS_END}\nDone.',
        Parsed("\nDone.", [PARIS]),
    ),
    "a section for each call": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}}{END}{CALLS_END}\n'
        f"{CALLS}{CALL}get_time{SEP}{{}}{END}{CALLS_END}",
        Parsed("", [PARIS, TIME]),
    ),
    "no arguments": (f"{CALLS}{CALL}get_time{SEP}{END}{CALLS_END}", Parsed("", [TIME])),
    "no arguments and no separator": (f"{CALLS}{CALL}get_time{END}{CALLS_END}", Parsed("", [TIME])),
    "nested values": (
        f'{CALLS}{CALL}f{SEP}{{"a": [1, {{"b": [[], {{}}, null]}}], "c": -1.5e3, "d": true}}{END}{CALLS_END}',
        Parsed("", [Call("f", '{"a": [1, {"b": [[], {}, null]}], "c": -1.5e3, "d": true}')]),
    ),
    "marks, quotes, brackets and fences in strings": (
        f'{CALLS}{CALL}write{SEP}{{"t": "}} \\" ] ```json {END}{CALLS_END} {CALL}x{SEP} \\\\"}}{END}{CALLS_END}',
        Parsed("", [Call("write", f'{{"t": "}} \\" ] ```json {END}{CALLS_END} {CALL}x{SEP} \\\\"}}')]),
    ),
    "unicode": (
        f'{CALLS}{CALL}say{SEP}{{"t": "Grüße 👩‍👩‍👧 \\u00e9 日本 ｜▁"}}{END}{CALLS_END}',
        Parsed("", [Call("say", '{"t": "Grüße 👩‍👩‍👧 \\u00e9 日本 ｜▁"}')]),
    ),
    "arguments as text": (
        f'{CALLS}{CALL}get_weather{SEP}"{{\\"city\\": \\"Paris\\"}}"{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "a tool by the name function": (
        f'{CALLS}{CALL}function{SEP}{{"x": 1}}{END}{CALLS_END}',
        Parsed("", [Call("function", '{"x": 1}')]),
    ),
    "no section": (
        f'Look: {CALL}get_weather{SEP}{{"city": "Paris"}}{END} so.',
        Parsed("Look:  so.", [PARIS]),
    ),
    "the section's end is forgotten": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}}{END}',
        Parsed("", [PARIS]),
    ),
    "the call's end is forgotten": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}}{CALL}get_time{SEP}{{}}{CALLS_END}ok',
        Parsed("ok", [PARIS, TIME]),
    ),
    "the call's beginning is forgotten": (
        f'{CALLS}get_weather{SEP}{{"city": "Paris"}}{END}{CALLS_END}ok',
        Parsed("ok", [PARIS]),
    ),
    "cut in the name": (f"{CALLS}{CALL}get_wea", Parsed("", [], dropped="get_wea")),
    "cut behind the name": (f"{CALLS}{CALL}get_weather{SEP}", Parsed("", [], dropped="get_weather")),
    "cut in the arguments": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Bos',
        Parsed("", [Call("get_weather", '{"city": "Bos', is_whole=False)]),
    ),
    "brackets are not closed": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"{END}{CALL}get_time{SEP}{{}}{END}{CALLS_END}ok',
        Parsed("ok", [Call("get_weather", '{"city": "Paris"', is_whole=False), TIME]),
    ),
    "a bracket too many": (
        f'{CALLS}{CALL}f{SEP}{{"a": [1]]}}{END}{CALLS_END}ok',
        Parsed("ok", [Call("f", '{"a": [1]', is_whole=False)], dropped="]}"),
    ),
    "text behind the arguments": (
        f'{CALLS}{CALL}get_weather{SEP}{{"city": "Paris"}} and so on{END}{CALLS_END}',
        Parsed("", [PARIS], dropped="and so on"),
    ),
    "not JSON": (
        f"{CALLS}{CALL}get_weather{SEP}city=Paris{END}{CALLS_END}ok",
        Parsed("ok", [Call("get_weather", "", is_whole=False)], dropped="city=Paris"),
    ),
    "no call in the section": (f"{CALLS}I will not.{CALLS_END}ok", Parsed("ok", [], dropped="I will not.")),
    "nothing but beginnings": (CALLS * 3 + CALL * 3, Parsed("", [])),
    "stray marks": (f"a{END}b{CALLS_END}c{SEP}d", Parsed("abcd", [])),
    "a mark that is none": ("a <｜tool▁cal and <｜User", Parsed("a <｜tool▁cal and <｜User", [])),
}

OLD_FORM = {
    "one call": (
        f'{CALLS}{CALL}function{SEP}get_weather\n```json\n{{"city": "Paris"}}\n```{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "parallel calls": (
        f'Both:\n{CALLS}{CALL}function{SEP}get_weather\n```json\n{{"city": "Paris"}}\n```{END}\n'
        f"{CALL}function{SEP}get_time\n```json\n{{}}\n```{END}{CALLS_END}",
        Parsed("Both:\n", [PARIS, TIME]),
    ),
    "no arguments": (f"{CALLS}{CALL}function{SEP}get_time{END}{CALLS_END}", Parsed("", [TIME])),
    "no language at the fence": (
        f'{CALLS}{CALL}function{SEP}get_weather\n```\n{{"city": "Paris"}}\n```\n{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "no fence": (
        f'{CALLS}{CALL}function{SEP}get_weather\n{{"city": "Paris"}}{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "no type": (
        f'{CALLS}{CALL}get_weather\n```json\n{{"city": "Paris"}}\n```{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "a fence in the newer form": (
        f'{CALLS}{CALL}get_weather{SEP}```json\n{{"city": "Paris"}}\n```{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "no line behind the fence": (
        f'{CALLS}{CALL}function{SEP}get_weather```json{{"city": "Paris"}}```{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "marks spelled out": (
        '<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜>get_weather\n```json\n{"city": "Paris"}\n'
        "```<｜tool_call_end｜>"
        "<｜tool call begin｜>function<｜tool sep｜>get_time<｜tool call end｜><｜tool\\_calls\\_end｜>ok",
        Parsed("ok", [PARIS, TIME]),
    ),
    "fences in strings": (
        f'{CALLS}{CALL}function{SEP}write\n```json\n{{"t": "```json\\n{{}}\\n```{END}"}}\n```{END}{CALLS_END}',
        Parsed("", [Call("write", f'{{"t": "```json\\n{{}}\\n```{END}"}}')]),
    ),
    "cut in the name": (f"{CALLS}{CALL}function{SEP}get_wea", Parsed("", [], dropped="get_wea")),
    "cut in the arguments": (
        f'{CALLS}{CALL}function{SEP}get_weather\n```json\n{{"city": "Bos',
        Parsed("", [Call("get_weather", '{"city": "Bos', is_whole=False)]),
    ),
    "the fence is not closed": (
        f'{CALLS}{CALL}function{SEP}get_weather\n```json\n{{"city": "Paris"}}{END}{CALLS_END}',
        Parsed("", [PARIS]),
    ),
    "the first call has no arguments": (
        f"{CALLS}{CALL}function{SEP}bad"
        f'{CALL}function{SEP}get_weather\n```json\n{{"city": "Paris"}}\n```{END}{CALLS_END}',
        Parsed("", [Call("bad", "{}"), PARIS]),
    ),
    "a fence around no JSON": (
        f"{CALLS}{CALL}function{SEP}get_weather\n```json\nParis\n```{END}{CALLS_END}ok",
        Parsed("ok", [Call("get_weather", "", is_whole=False)], dropped="Paris\n```"),
    ),
}

TRANSCRIPTS = {
    **{f"newer form, {name}": case for name, case in NEW_FORM.items()},
    **{f"older form, {name}": case for name, case in OLD_FORM.items()},
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_transcripts(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right


@pytest.mark.parametrize("text", [text for text, _ in TRANSCRIPTS.values()], ids=TRANSCRIPTS)
def test_truncation_at_every_position(text: str) -> None:
    assert_prefixes_are_parsed(make, text, [*MARKS, "```json"])


def test_text_is_held_back_only_where_a_mark_may_begin() -> None:
    parser = make()
    assert parser.feed("a <｜tool") == [Content("a ")]
    assert parser.feed(" b") == [Content("<｜tool b")]


BITS = [*MARKS, "<｜tool_call_begin｜>", "<｜tool▁c", "<", "function", "get_weather", "\n```json\n", "```", "text "]
BITS += ["{", "}", "[", "]", '"', "\\", '{"a": 1}', ",", "é"]


@given(st.lists(st.sampled_from(BITS), max_size=14).map("".join), st.lists(st.integers(0, 200), max_size=4))
def test_any_text_in_any_cutting(text: str, cuts: list[int]) -> None:
    assert_same_for_splits(make, text, cuts, MARKS)


@pytest.mark.parametrize(
    "unit",
    [
        " ",
        CALLS,
        CALL + "f",
        f"{CALL}f{SEP}{{",
        "<｜tool▁call▁begin｜",
        "<",
        "{",
        f'{CALL}f{SEP}{{"',
        f"{CALL}`",
        "```json",
    ],
)
def test_time_is_linear(unit: str) -> None:
    assert_linear(make, unit)
