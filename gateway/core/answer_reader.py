"""Takes the text of one choice apart: first thought from answer, then tool calls from the answer's text."""

from __future__ import annotations

from collections.abc import Iterable

from .answer_events import Arguments, CallEnd, CallStart, Content, Event
from .reasoning import ThinkSplitter
from .tools.base import Parser


class AnswerReader:
    """`feed` pieces of text in order, then `finish`; how the text is cut makes no difference.

    With `most_calls` what a model calls beyond is left out, and counted in `calls_left_out`.
    """

    def __init__(
        self, splitter: ThinkSplitter | None = None, parser: Parser | None = None, *, most_calls: int | None = None
    ) -> None:
        self._splitter = splitter
        self._parser = parser
        self._most_calls = most_calls
        self.calls_left_out = 0

    def feed(self, text: str) -> list[Event]:
        return self._parsed(self._splitter.feed(text) if self._splitter is not None else [Content(text)])

    def finish(self) -> list[Event]:
        events = self._parsed(self._splitter.finish()) if self._splitter is not None else []
        return [*events, *self._allowed(self._parser.finish())] if self._parser is not None else events

    def _parsed(self, events: Iterable[Event]) -> list[Event]:
        parser = self._parser
        if parser is None:
            return list(events)
        parsed: list[Event] = []
        for event in events:
            parsed += self._allowed(parser.feed(event.text)) if isinstance(event, Content) else [event]
        return parsed

    def _allowed(self, events: list[Event]) -> list[Event]:
        most = self._most_calls
        if most is None:
            return events
        beyond = [
            event for event in events if isinstance(event, CallStart | Arguments | CallEnd) and event.index >= most
        ]
        self.calls_left_out += sum(isinstance(event, CallStart) for event in beyond)
        return [event for event in events if event not in beyond]
