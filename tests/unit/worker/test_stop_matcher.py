"""Stop strings in a stream: earliest end wins, nothing of a match is shown, nothing is held too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.cost import measured
from worker.core.stop import StopMatcher, StopStrings

STOPS = st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4)


def run(stops: list[str], chunks: list[str]) -> tuple[str, bool]:
    machine = StopMatcher(StopStrings(stops))
    shown = "".join(machine.feed(chunk) for chunk in chunks)
    return shown + machine.finish(), machine.matched


def by_brute_force(stops: list[str], text: str) -> tuple[str, bool]:
    """Try every end from the left, and at an end the earliest start."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return text[:start], True
    return text, False


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["END"], "a END more", ("a ", True)),
        (["ver lin"], "a silver lining now", ("a sil", True)),
        (["ab", "abc"], "xxabc", ("xx", True)),
        (["bc", "abc"], "xxabc", ("xx", True)),
        (["abcd", "c"], "xabcd", ("xab", True)),
        (["THREE\nBBBB"], "ONE TWO THREE", ("ONE TWO THREE", False)),
        (["aab"], "aaaab", ("aa", True)),
        (["👋x"], "hi 👋👋x", ("hi 👋", True)),
        (["x"], "", ("", False)),
        (["]", "^"], "a^]", ("a", True)),
    ],
)
def test_the_match_that_ends_first_wins_in_every_split(stops: list[str], text: str, expected: tuple[str, bool]) -> None:
    """Whole, by characters and cut in two anywhere: the same text and the same verdict."""
    for chunks in [[text], list(text), *([text[:cut], text[cut:]] for cut in range(1, len(text)))]:
        assert run(stops, chunks) == expected, chunks


@given(STOPS, st.lists(st.text("abc", max_size=6), max_size=6))
def test_any_stream_gives_what_a_search_of_the_whole_gives(stops: list[str], chunks: list[str]) -> None:
    """Equal to brute force over all substrings, for any stops and any split."""
    assert run(stops, chunks) == by_brute_force(stops, "".join(chunks))


@given(STOPS, st.text("abc", max_size=20))
def test_exactly_the_longest_suffix_that_may_become_a_stop_is_held(stops: list[str], text: str) -> None:
    """Not a character more or less than the longest proper beginning of a stop that the text ends with."""
    machine = StopMatcher(StopStrings(stops))
    shown = ""
    for position, character in enumerate(text):
        shown += machine.feed(character)
        if machine.matched:
            return
        seen = text[: position + 1]
        beginnings = [seen[-size:] for size in range(1, len(seen) + 1)]
        held = max((len(end) for end in beginnings if any(stop.startswith(end) for stop in stops)), default=0)
        assert shown == seen[: len(seen) - held]
        assert held <= max(map(len, stops)) - 1


def test_after_a_match_nothing_is_shown() -> None:
    """Text behind a stop is dropped, also at the end."""
    machine = StopMatcher(StopStrings(["X"]))
    assert machine.feed("aXb") == "a"
    assert machine.feed("c") + machine.finish() == ""


def test_time_is_linear_where_stops_nearly_match() -> None:
    """Text made to fail at the last character costs no more per character when there is more of it."""
    automaton = StopStrings(["a" * 63 + "b", "a" * 62 + "c"])

    def seconds(length: int) -> float:
        machine, best = StopMatcher(automaton), float("inf")
        for _ in range(3):
            with measured() as cost:
                machine.feed("a" * length)
            best = min(best, cost.seconds)
        return best

    assert seconds(200_000) < 40 * seconds(20_000)
