"""Splits a model's text into thought and answer.

States: in the answer, or in a thought. A tag switches between them and is never shown; text before the first tag
is answer. Held back is only a suffix that can still become the tag that is looked for, so at most a tag's length
less one character. A thought that is still open at the end stays a thought.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

OPEN = "<think>"
CLOSE = "</think>"


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class Content:
    text: str


Event = Reasoning | Content


class ThinkSplitter:
    """For models that write <think>thought</think>answer; `opened` when the template has written the first tag."""

    def __init__(self, *, opened: bool = False) -> None:
        self._thinking = opened
        self._held = ""

    def feed(self, text: str) -> list[Event]:
        events: list[Event] = []
        text = self._held + text
        while True:
            tag = CLOSE if self._thinking else OPEN
            found = text.find(tag)
            if found < 0:
                break
            self._emit(events, text[:found])
            text = text[found + len(tag) :]
            self._thinking = not self._thinking
        keep = _length_of_partial_tag(text, tag)
        self._held = text[len(text) - keep :]
        self._emit(events, text[: len(text) - keep])
        return events

    def finish(self) -> list[Event]:
        events: list[Event] = []
        self._emit(events, self._held)
        self._held = ""
        return events

    def _emit(self, events: list[Event], text: str) -> None:
        if text:
            events.append(Reasoning(text) if self._thinking else Content(text))


def _length_of_partial_tag(text: str, tag: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `tag`."""
    start = text.rfind("<", max(0, len(text) - len(tag) + 1))
    if start >= 0 and tag.startswith(text[start:]):
        return len(text) - start
    return 0


SPLITTERS: dict[str, Callable[[bool], ThinkSplitter]] = {
    "think": lambda _enabled: ThinkSplitter(),
    "think_preopened": lambda enabled: ThinkSplitter(opened=enabled),
}


def make_splitter(name: str, *, enabled: bool) -> ThinkSplitter | None:
    """The splitter that a model names, or None. `enabled` is False when the request turned thinking off."""
    factory = SPLITTERS.get(name)
    return factory(enabled) if factory else None
