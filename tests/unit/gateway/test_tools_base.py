"""What parsers of tool calls share: the scanner and the order of events, for every way in which the text can be cut."""

from __future__ import annotations

import re

import pytest

from gateway.core.tools.base import Content, Dropped, Parser, Waiting
from tests.support.cost import measured
from tests.support.tool_parsers import Call, Parsed, parse, parsed


class Dropper(Parser):
    """Drops what is between < and >."""

    def run(self) -> Waiting[None]:
        while (yield from self.until(["<"], self.content)):
            yield from self.until([">"], self.drop)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("<a b>", Parsed("", [], dropped="a b")),
        ("< a\n b >", Parsed("", [], dropped=" a\n b")),
        ("< >x< >", Parsed("x", [])),
        ("<a ><b>", Parsed("", [], dropped="a b")),
        ("", Parsed("", [])),
        (" \n", Parsed(" \n", [])),
        (" \n<a> x ", Parsed(" \n x ", [], dropped="a")),
    ],
)
def test_white_space_is_told_wherever_the_text_is_cut(text: str, right: Parsed) -> None:
    assert parsed(lambda: Dropper({}), text) == right


class Holder(Parser):
    """Drops (ab) and (ac), and holds what may become that."""

    def run(self) -> Waiting[None]:
        while (yield from self.search(re.compile(r"\(a[bc]\)|\((?:a[bc]?)?\Z"), self.content)):
            self.hold()
            yield from self.next_is("(")
            word = yield from self.next_is("ab", "ac")
            closes = word is not None and (yield from self.next_is(")"))
            could_be = self.could_be(")" if word else "ab")
            held = self.release()
            if closes:
                self.drop(held)
            else:
                self.content(f"{held}!" if could_be else held)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("x(ab)y", Parsed("xy", [], dropped="(ab)")),
        ("(a)(ad)((ac)", Parsed("(a)(ad)(", [], dropped="(ac)")),
        ("(ab", Parsed("(ab!", [])),
        ("(a", Parsed("(!a", [])),
        ("(ad", Parsed("(ad", [])),
    ],
)
def test_what_is_held_and_given_back(text: str, right: Parsed) -> None:
    assert parsed(lambda: Holder({}), text) == right


def test_none_of_no_texts_comes_next() -> None:
    class Asker(Parser):
        def run(self) -> Waiting[None]:
            self.content(f"{yield from self.next_is()}")
            yield from self.rest(self.content)

    assert parse(lambda: Asker({}), ["x", "y"]) == [Content("Nonexy")]


@pytest.mark.parametrize("text", [" ", "< ", "<a "])
def test_white_space_costs_the_same_a_character(text: str) -> None:
    """One try of some is enough: what is quadratic takes four times as long in each."""

    def cost(length: int) -> float:
        with measured() as taken:
            parse(lambda: Dropper({}), list(text + " " * length))
        return taken.seconds

    assert parse(lambda: Dropper({}), list("<a  ")) == [Dropped("a")]
    assert any(cost(100_000) < 3 * cost(50_000) for _ in range(6))


class Valuer(Parser):
    """Reads one JSON value as arguments; what stays is dropped."""

    def run(self) -> Waiting[None]:
        self.start_call("f")
        self.end_call(is_whole=(yield from self.json_value(self.arguments)))


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('{"a": ["<x>", "\\"<"]}<end>', Parsed("", [Call("f", '{"a": ["<x>", "\\"<"]}')], dropped="<end>")),
        ('{"a": 1<end>', Parsed("", [Call("f", '{"a": 1', is_whole=False)], dropped="<end>")),
        ("[[<", Parsed("", [Call("f", "[[", is_whole=False)], dropped="<")),
    ],
)
def test_a_mark_outside_of_strings_ends_a_json_value(text: str, right: Parsed) -> None:
    assert parsed(lambda: Valuer({}), text) == right
