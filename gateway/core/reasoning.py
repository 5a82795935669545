"""Splits a model's text into thought and answer.

States: in the answer, or in a thought. A tag switches between them and is never shown; text before the first tag
is answer. Held back is only a suffix that can still become the tag that is looked for, so at most a tag's length
less one character. A thought that is still open at the end stays a thought.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .answer_events import Content, Reasoning, Text

OPEN = "<think>"
CLOSE = "</think>"
_BEGINS = re.compile(OPEN)


class ThinkSplitter:
    """For models that write <think>thought</think>answer; `opened` when the template has written the first tag.

    `call_mark` is one with which a tool call begins and a thought ends, though the thought's own tag is forgotten.
    """

    def __init__(self, *, opened: bool = False, call_mark: str = "") -> None:
        self._thinking = opened
        self._held = ""
        self._call_mark = call_mark
        self._ends = re.compile("|".join(re.escape(mark) for mark in (CLOSE, call_mark) if mark))

    def feed(self, text: str) -> list[Text]:
        events: list[Text] = []
        text = self._held + text
        at = 0
        while found := (self._ends if self._thinking else _BEGINS).search(text, at):
            self._emit(events, text[at : found.start()])
            # A call's mark is the answer's.
            at = found.start() if found.group() == self._call_mark else found.end()
            self._thinking = not self._thinking
        text = text[at:]
        tags = (CLOSE, self._call_mark) if self._thinking else (OPEN,)
        keep = max(_length_of_partial_tag(text, tag) for tag in tags)
        self._held = text[len(text) - keep :]
        self._emit(events, text[: len(text) - keep])
        return events

    def finish(self) -> list[Text]:
        events: list[Text] = []
        self._emit(events, self._held)
        self._held = ""
        return events

    def _emit(self, events: list[Text], text: str) -> None:
        if text:
            events.append(Reasoning(text) if self._thinking else Content(text))


def _length_of_partial_tag(text: str, tag: str) -> int:
    """Length of the longest suffix of `text` that is a proper prefix of `tag`."""
    start = text.rfind(tag[0], max(0, len(text) - len(tag) + 1)) if tag else -1
    if start >= 0 and tag.startswith(text[start:]):
        return len(text) - start
    return 0


SPLITTERS: dict[str, Callable[[bool, str], ThinkSplitter]] = {
    "think": lambda _enabled, call_mark: ThinkSplitter(call_mark=call_mark),
    "think_preopened": lambda enabled, call_mark: ThinkSplitter(opened=enabled, call_mark=call_mark),
}


def make_splitter(name: str, *, enabled: bool, call_mark: str = "") -> ThinkSplitter | None:
    """The splitter that a model names, or None. `enabled` is False when the request turned thinking off."""
    factory = SPLITTERS.get(name)
    return factory(enabled, call_mark) if factory else None
