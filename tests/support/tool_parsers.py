"""What tests of parsers of tool calls have in common: any cutting of a text must give the same events."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gateway.core.reasoning import ThinkSplitter
from gateway.core.tools.base import (
    Arguments,
    CallEnd,
    CallStart,
    Content,
    Dropped,
    Event,
    Parser,
    Reasoning,
)
from tests.support.cost import measured

Make = Callable[[], Parser]
MakeAny = Callable[[], Parser | ThinkSplitter]


class Call(NamedTuple):
    name: str
    arguments: str
    is_whole: bool = True


class Parsed(NamedTuple):
    """An answer as a client puts it together."""

    content: str
    calls: list[Call]
    reasoning: str = ""
    dropped: str = ""


def parse(make: Make, pieces: Sequence[str]) -> list[Event]:
    """All events, those of one kind in a row joined, for a text that comes in pieces."""
    parser = make()
    events: list[Event] = []
    for piece in pieces:
        events += parser.feed(piece)
    return _joined([*events, *parser.finish()])


def _joined(events: Sequence[Event]) -> list[Event]:
    joined: list[Event] = []
    for event in events:
        last = joined[-1] if joined else None
        match last, event:
            case Content(a), Content(b):
                joined[-1] = Content(a + b)
            case Reasoning(a), Reasoning(b):
                joined[-1] = Reasoning(a + b)
            case Dropped(a), Dropped(b):
                joined[-1] = Dropped(a + b)
            case Arguments(index, a), Arguments(_, b):
                joined[-1] = Arguments(index, a + b)
            case _:
                joined.append(event)
    return joined


def parsed(make: Make, text: str) -> Parsed:
    """What a whole text gives, after a look at that every cutting of it gives the same."""
    whole = parse(make, [text])
    for pieces in cuttings(text):
        assert parse(make, pieces) == whole, pieces
    return gathered(whole)


def gathered(events: Sequence[Event]) -> Parsed:
    """Checks on the way that events come in an order that a client understands."""
    content, reasoning, dropped = "", "", ""
    calls: list[Call] = []
    is_open = False
    for event in events:
        match event:
            case Content(text):
                content += text
            case Reasoning(text):
                reasoning += text
            case Dropped(text):
                dropped += text
            case CallStart(index, name):
                assert (index, is_open) == (len(calls), False)
                assert name
                calls.append(Call(name, "", False))
                is_open = True
            case Arguments(index, text):
                assert (index, is_open) == (len(calls) - 1, True)
                calls[-1] = calls[-1]._replace(arguments=calls[-1].arguments + text)
            case CallEnd(index, is_whole):
                assert (index, is_open) == (len(calls) - 1, True)
                calls[-1] = calls[-1]._replace(is_whole=is_whole)
                is_open = False
    assert not is_open
    return Parsed(content, calls, reasoning, dropped)


def cuttings(text: str) -> Iterator[list[str]]:
    """One character at a time, all ways to cut in two, and some random ways."""
    yield list(text)
    for at in range(1, len(text)):
        yield [text[:at], text[at:]]
    rng = random.Random(len(text))
    for _ in range(20):
        cuts = sorted(rng.sample(range(len(text) + 1), min(len(text), rng.randint(1, 8)))) if text else []
        yield [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def assert_prefixes_are_parsed(make: Make, text: str, markup: Sequence[str]) -> None:
    """Cut off anywhere a text gives the same in one piece and by characters, shows no markup, and ends.

    What a call has got so far is the beginning of what it gets in the end.
    """
    final = gathered(parse(make, [text])).calls
    for end in range(len(text)):
        whole = parse(make, [text[:end]])
        assert parse(make, list(text[:end])) == whole, text[:end]
        so_far = gathered(whole)
        assert not [mark for mark in markup if mark in so_far.content], so_far
        for early, late in zip(so_far.calls, final, strict=False):
            assert early.name == late.name, so_far
            assert late.arguments.startswith(early.arguments) or not early.is_whole, so_far


def assert_same_for_splits(make: Make, text: str, cuts: Sequence[int], markup: Sequence[str]) -> None:
    """One way to cut a text gives what the whole gives; no mark is content. `cuts` may lie anywhere."""
    at = sorted(cut % (len(text) + 1) for cut in cuts)
    whole = parse(make, [text])
    assert parse(make, [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]) == whole
    assert parse(make, list(text)) == whole
    assert not [mark for mark in markup if mark in gathered(whole).content]


def assert_linear(make: MakeAny, unit: str) -> None:
    """Twice as much of a text takes less than three times as long, in one piece and by characters.

    One try of some is enough: what is quadratic takes four times as long in each.
    """
    for length, step in ((50_000, 100_000), (5_000, 1)):
        short, long = _pieces(unit, length, step), _pieces(unit, 2 * length, step)
        assert any(_seconds(make, long) < 3 * _seconds(make, short) for _ in range(6)), (unit, step)


def _pieces(unit: str, size: int, step: int) -> list[str]:
    text = (unit * (size // len(unit) + 1))[:size]
    return [text[at : at + step] for at in range(0, size, step)]


def _seconds(make: MakeAny, pieces: Sequence[str]) -> float:
    parser = make()
    with measured() as cost:
        for piece in pieces:
            parser.feed(piece)
        parser.finish()
    return cost.seconds
