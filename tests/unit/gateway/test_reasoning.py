"""gateway/core/reasoning.py"""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.answer_events import Content, Event, Reasoning
from gateway.core.reasoning import ThinkSplitter, make_splitter


def merge(events: list[Event]) -> list[Event]:
    merged: list[Event] = []
    for kind, group in itertools.groupby(events, type):
        merged.append(kind("".join(event.text for event in group)))
    return merged


def run(chunks: list[str], *, opened: bool = False) -> list[Event]:
    splitter = ThinkSplitter(opened=opened)
    return merge([event for chunk in chunks for event in splitter.feed(chunk)] + splitter.finish())


CASES = [
    ("no thought at all", "plain text", False, [Content("plain text")]),
    ("thought, then answer", "<think>plan</think>answer", False, [Reasoning("plan"), Content("answer")]),
    (
        "text before the thought is answer",
        "Sure.<think>why</think>Yes",
        False,
        [Content("Sure."), Reasoning("why"), Content("Yes")],
    ),
    ("the template has opened the thought", "plan</think>answer", True, [Reasoning("plan"), Content("answer")]),
    ("a thought that never closes stays one", "<think>long</th", False, [Reasoning("long</th")]),
    ("a tag that breaks off is text", "a<thin", False, [Content("a<thin")]),
    ("an empty thought leaves nothing", "<think></think>x", False, [Content("x")]),
    ("brackets that are no tag", "a < b <thing> c", False, [Content("a < b <thing> c")]),
]


@pytest.mark.parametrize(("case", "text", "opened", "expected"), CASES, ids=[case[0] for case in CASES])
def test_same_for_every_split(case: str, text: str, opened: bool, expected: list[Event]) -> None:
    """Whole, one character at a time and every split in two give the same events."""
    cuts = [[text], list(text), *([text[:i], text[i:]] for i in range(1, len(text)))]
    for chunks in cuts:
        assert run(chunks, opened=opened) == expected, (case, chunks)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<th", "ink>", "</", "a", "<", "é"]), max_size=12), st.data())
def test_any_split_gives_the_same_events(parts: list[str], data: st.DataObject) -> None:
    """Random texts in random pieces equal the text in one piece."""
    text = "".join(parts)
    points = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    chunks = [text[a:b] for a, b in zip([0, *points], [*points, len(text)], strict=True)]
    assert run(chunks) == run([text])


def test_what_cannot_be_a_tag_is_not_held() -> None:
    """At most a tag's length less one is held back, and nothing once it cannot become a tag."""
    splitter = ThinkSplitter()
    assert splitter.feed("<Plain") == [Content("<Plain")]
    assert splitter.feed("<thin") == []
    assert splitter.feed("g") == [Content("<thing")]


def test_splitters_by_name() -> None:
    """A model names its splitter; one whose thought is pre-opened starts inside unless thinking is off."""
    preopened, switched_off = (
        make_splitter("think_preopened", enabled=True),
        make_splitter("think_preopened", enabled=False),
    )
    assert preopened is not None
    assert switched_off is not None
    assert preopened.feed("a") == [Reasoning("a")]
    assert switched_off.feed("a") == [Content("a")]
    assert make_splitter("", enabled=True) is None
