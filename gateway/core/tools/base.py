"""What parsers of tool calls are made of: the events that they give, and a scanner that waits for text.

A parser is one generator, `run`, that reads as if all text were there. Whenever it needs more than there is, it
yields; `feed` resumes it. So where the text was cut can make no difference, and nothing of what came is looked at
twice: what a step of the scanner has seen it takes, and leaves no more than the beginning of a mark.

Until a mark is certain, text goes out as content. Behind it no markup does: what is neither a call nor text is
dropped, and told.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from ..answer_events import Arguments, CallEnd, CallStart, Content, Dropped, Event, Reasoning
from ..history import IdStyle
from .structural import CallForm

T = TypeVar("T")
# What waits for text and at last gives a T.
Waiting = Generator[None, None, T]
Sink = Callable[[str], None]


# Name of each tool that the request offers -> JSON schema of its arguments.
Tools = Mapping[str, Mapping[str, Any]]


class Parser(ABC):
    """`feed` pieces of one choice's text in order, then `finish`; the events of any cutting join to the same."""

    # Text with which calls begin. Where it is a special token of the family, it also ends a thought.
    opening: str = ""
    ends_thought = False
    # How ids of calls look: "mistral" is nine letters and digits, "kimi" functions.NAME:0, as their templates demand.
    call_id_style: IdStyle = "openai"
    # How calls are written, for grammars; none: no grammar can hold the family to a schema while the choice is free.
    forms: Sequence[CallForm] = ()

    def __init__(self, tools: Tools) -> None:
        self.tools = tools
        self._text = ""
        self._at = 0
        self._is_last = False
        self._events: list[Event] = []
        self._calls = 0
        self._is_open = False
        # Where no word has come since the beginning or the last call: the white space that has.
        self._space: list[str] | None = []
        # White space behind what was dropped last: told only if more is dropped.
        self._dropped_space: list[str] = []
        # What has been taken since `hold`.
        self._held: list[str] | None = None
        self._running: Waiting[None] | None = self._whole()

    @abstractmethod
    def run(self) -> Waiting[None]:
        """Read the whole text; what it leaves behind is dropped."""

    def feed(self, text: str) -> list[Event]:
        self._text = self._text[self._at :] + text
        self._at = 0
        return self._resume()

    def finish(self) -> list[Event]:
        self._is_last = True
        return self._resume()

    def _resume(self) -> list[Event]:
        if self._running is not None:
            try:
                next(self._running)
            except StopIteration:
                self._running = None
        events, self._events = self._events, []
        return events

    def _whole(self) -> Waiting[None]:
        yield from self.run()
        self.end_call(is_whole=False)
        if self._space and not self._calls:
            self._emit(Content("".join(self._space)))
        yield from self.rest(self.drop)

    # What happened.

    def content(self, text: str) -> None:
        """Text for the caller. Nothing but white space before, between and behind calls is none."""
        if self._space is not None:
            if not text or text.isspace():
                self._space.append(text)
                return
            text = "".join(self._space) + text
            self._space = None
        self._emit(Content(text))

    def reasoning(self, text: str) -> None:
        self._emit(Reasoning(text))

    def start_call(self, name: str, call_id: str = "") -> None:
        assert not self._is_open, "calls do not overlap"
        self._space = []
        self._is_open = True
        self._events.append(CallStart(self._calls, name, call_id))
        self._calls += 1

    def arguments(self, text: str) -> None:
        assert self._is_open, "arguments belong to a call"
        if text:
            self._events.append(Arguments(self._calls - 1, text))

    def end_call(self, *, is_whole: bool = True) -> None:
        """Of the open call, if there is one."""
        if self._is_open:
            self._is_open = False
            self._events.append(CallEnd(self._calls - 1, is_whole))

    def drop(self, text: str) -> None:
        """Markup; white space between marks is not worth telling."""
        told = text.rstrip()
        if told:
            self._emit(Dropped("".join(self._dropped_space) + told))
            self._dropped_space.clear()
        self._dropped_space.append(text[len(told) :])

    def _emit(self, event: Content | Reasoning | Dropped) -> None:
        if event.text:
            self._events.append(event)

    # Reading.

    @property
    def _rest(self) -> int:
        """Characters that have come and are not taken yet."""
        return len(self._text) - self._at

    def wait(self) -> Waiting[bool]:
        """For at least one character; False at the end of the text."""
        while self._at == len(self._text):
            if self._is_last:
                return False
            yield
        return True

    def take(self, length: int) -> str:
        taken = self._text[self._at : self._at + length]
        self._at += length
        if self._held is not None:
            self._held.append(taken)
        return taken

    def hold(self) -> None:
        """Keep a copy of what is taken from here on, until it is certain what it is."""
        assert self._held is None, "one thing is held at a time"
        self._held = []

    def release(self) -> str:
        """What has been taken since `hold`."""
        assert self._held is not None, "nothing is held"
        held, self._held = self._held, None
        return "".join(held)

    def could_be(self, *texts: str) -> bool:
        """The text has ended, and what is left of it could have become one of some texts."""
        return self._is_last and _may_become(self._text[self._at :], texts)

    def search(self, pattern: re.Pattern[str], sink: Sink) -> Waiting[bool]:
        """Give text to `sink` up to the first match of a pattern, which stays; False: the text has ended without one.

        The pattern has to match the beginning of what it looks for, too, where that is at the end of the text (`\\Z`).
        """
        while True:
            match = pattern.search(self._text, self._at)
            sink(self.take((match.start() if match is not None else len(self._text)) - self._at))
            if match is not None or self._is_last:
                return match is not None
            yield

    def until(self, marks: Sequence[str], sink: Sink) -> Waiting[str | None]:
        """Give text to `sink` up to the first of some marks, which is taken; None: the text has ended without one."""
        pattern, longest, firsts = _alternatives(tuple(marks))
        while True:
            match = pattern.search(self._text, self._at)
            if match is not None:
                sink(self.take(match.start() - self._at))
                return self.take(len(match.group()))
            if self._is_last:
                sink(self.take(self._rest))
                return None
            sink(self.take(self._rest - _beginning_of_a_mark(self._text, self._at, marks, longest, firsts)))
            yield

    def rest(self, sink: Sink) -> Waiting[None]:
        """Give all text to `sink`, to the end."""
        while (yield from self.wait()):
            sink(self.take(self._rest))

    def next_is(self, *texts: str) -> Waiting[str | None]:
        """The one of some texts that comes next, which is taken; None: none of them, and nothing is taken."""
        while True:
            if self._text.startswith(texts, self._at):
                return self.take(next(len(text) for text in texts if self._text.startswith(text, self._at)))
            longest = max(map(len, texts), default=0)
            if self._is_last or self._rest >= longest or not _may_become(self._text[self._at :], texts):
                return None
            yield

    def skip_space(self) -> Waiting[str]:
        """Take white space; returns what came."""
        return self.span(_SPACE)

    def span(self, pattern: re.Pattern[str]) -> Waiting[str]:
        """Take what a pattern of the form `[...]*` matches; returns what came."""
        pieces = []
        while True:
            match = pattern.match(self._text, self._at)
            assert match is not None
            pieces.append(self.take(match.end() - self._at))
            if self._at < len(self._text) or self._is_last:
                return "".join(pieces)
            yield

    def peek(self) -> Waiting[str]:
        """The next character, which stays; empty at the end of the text."""
        while self._at == len(self._text) and not self._is_last:
            yield
        return self._text[self._at : self._at + 1]

    def json_value(self, sink: Sink) -> Waiting[bool]:
        """Give one JSON value to `sink` as it stands, without judging what is between its brackets and quotes.

        False: the text ended in it, a bracket closes what is not open, or a mark begins outside of its strings; what is
        wrong stays. Cost is linear, whatever the text.
        """
        if (yield from self.peek()) not in ('"', "{", "["):
            scalar = yield from self.span(_SCALAR)
            sink(scalar)
            return bool(scalar)
        closing: list[str] = []
        in_string = False
        while (yield from self.wait()):
            for match in _STRUCTURE.finditer(self._text, self._at):
                character = match.group()
                if character == '"':
                    in_string = not in_string
                elif in_string or character[0] == "\\":
                    continue
                elif character in _CLOSING:
                    closing.append(_CLOSING[character])
                elif closing and character == closing[-1]:
                    closing.pop()
                else:
                    sink(self.take(match.start() - self._at))
                    return False
                if not closing and not in_string:
                    sink(self.take(match.end() - self._at))
                    return True
            # What a backslash escapes may be still to come.
            rest = self._text[self._at :]
            escapes = len(rest) - len(rest.rstrip("\\"))
            keep = escapes % 2 if not self._is_last else 0
            sink(self.take(self._rest - keep))
            if keep:
                yield
        return False


_CLOSING = {"{": "}", "[": "]"}
# Outside of strings JSON has no <: there a mark begins.
_STRUCTURE = re.compile(r'\\.|["{}\[\]<]', re.DOTALL)
_SPACE = re.compile(r"\s*")
_SCALAR = re.compile(r"[^\s,:{}\[\]\"<]*")


@lru_cache(maxsize=256)
def _alternatives(marks: tuple[str, ...]) -> tuple[re.Pattern[str], int, frozenset[str]]:
    """What finds any of them, the length of the longest, and the characters with which they begin."""
    for mark in marks:
        clash = [other for other in marks if other != mark and other.startswith(mark)]
        assert not clash, f"{mark} would be found in {clash} before that is whole"
    firsts = frozenset(mark[0] for mark in marks)
    return re.compile("|".join(map(re.escape, marks))), max(map(len, marks)), firsts


def _may_become(rest: str, texts: Sequence[str]) -> bool:
    return any(text.startswith(rest) for text in texts)


def _beginning_of_a_mark(text: str, start: int, marks: Sequence[str], longest: int, firsts: frozenset[str]) -> int:
    """Length of the longest suffix of text[start:] with which a mark may begin."""
    for length in range(min(longest - 1, len(text) - start), 0, -1):
        if text[-length] not in firsts:
            continue
        suffix = text[-length:]
        if any(len(mark) > length and mark.startswith(suffix) for mark in marks):
            return length
    return 0
