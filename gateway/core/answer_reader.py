"""Takes the text of one choice apart: first thought from answer, then tool calls from the answer's text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from .answer_events import Arguments, CallEnd, CallStart, Content, Dropped, Event, Reasoning
from .reasoning import ThinkSplitter
from .schemas import Schema
from .sse import FinishReason, ToldReason, ToolCall
from .tools.base import Parser

# What becomes of a call, and of markup that is none.
Outcome = Literal["valid", "invalid", "cut_off", "left_out", "dropped"]


class AnswerReader:
    """`feed` pieces of text in order, then `finish`; how the text is cut makes no difference.

    `calls` holds the calls so far, of which the events tell, and their arguments once they have ended. `new_id` gives a
    call its id, from the model's own or "". With `most_calls` what the model calls beyond is left out.
    """

    def __init__(
        self,
        splitter: ThinkSplitter | None = None,
        parser: Parser | None = None,
        *,
        schemas: Mapping[str, Schema] | None = None,
        new_id: Callable[[str], str] = lambda own: own,
        most_calls: int | None = None,
        called: ToldReason = "tool_calls",
    ) -> None:
        self._splitter = splitter
        self._parser = parser
        self._schemas = schemas or {}
        self._new_id = new_id
        self._most_calls = most_calls
        self._called = called
        self._in_thought = False
        self.calls: list[ToolCall] = []
        # Of the last call, as they came.
        self._arguments: list[str] = []
        self.outcomes: Counter[Outcome] = Counter()
        # Tokens whose text was thought; those of a piece that is both count by its characters.
        self.reasoning_tokens = 0

    def feed(self, text: str, tokens: int = 0) -> list[Event]:
        """`tokens` is how many the text was made of."""
        return self._counted(self._read(text), tokens)

    def finish(self, tokens: int = 0) -> list[Event]:
        events = self._parsed(self._splitter.finish()) if self._splitter is not None else []
        if self._parser is not None:
            events += self._taken(self._parser.finish())
        return self._counted(events, tokens)

    def told(self, reason: FinishReason) -> ToldReason:
        """What callers hear of how the choice ended: a call is one only if there was a call, and none was cut off."""
        return self._called if reason == "stop" and self.calls else reason

    def _read(self, text: str) -> list[Event]:
        return self._parsed(self._splitter.feed(text) if self._splitter is not None else [Content(text)])

    def _parsed(self, events: Iterable[Event]) -> list[Event]:
        parser = self._parser
        if parser is None:
            return list(events)
        parsed: list[Event] = []
        for event in events:
            parsed += self._taken(parser.feed(event.text)) if isinstance(event, Content) else [event]
        return parsed

    def _taken(self, events: list[Event]) -> list[Event]:
        """Those that callers are to see, after a note of what they say of calls."""
        return [event for event in events if self._note(event)]

    def _note(self, event: Event) -> bool:
        if isinstance(event, Dropped):
            self.outcomes["dropped"] += 1
            return False
        if not isinstance(event, CallStart | Arguments | CallEnd):
            return True
        if self._most_calls is not None and event.index >= self._most_calls:
            self.outcomes["left_out"] += isinstance(event, CallStart)
            return False
        if isinstance(event, CallStart):
            self.calls.append(ToolCall(self._new_id(event.call_id), event.name))
            self._arguments = []
        elif isinstance(event, Arguments):
            self._arguments.append(event.text)
        else:
            self.calls[event.index].arguments = "".join(self._arguments)
            self._judge(self.calls[event.index], is_whole=event.is_whole)
        return True

    def _judge(self, call: ToolCall, *, is_whole: bool) -> None:
        schema = self._schemas.get(call.name)
        if not is_whole:
            call.mistake = "The call was cut off."
        elif schema is None:
            call.mistake = "There is no tool of this name."
        else:
            call.mistake = schema.mistake(call.arguments)
        self.outcomes["cut_off" if not is_whole else "invalid" if call.mistake else "valid"] += 1

    def _counted(self, events: list[Event], tokens: int) -> list[Event]:
        thought = said = 0
        for event in events:
            if isinstance(event, Reasoning):
                thought += len(event.text)
            elif isinstance(event, Content | Arguments):
                said += len(event.text)
        if thought or said:
            self.reasoning_tokens += round(tokens * thought / (thought + said))
            self._in_thought = not said
        elif self._in_thought:
            self.reasoning_tokens += tokens
        return events
