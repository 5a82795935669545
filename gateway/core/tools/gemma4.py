"""Gemma 4: a name and arguments that look like JSON with bare keys and with strings between marks of their own.

    <|tool_call>call:get_weather{city:<|"|>Paris<|"|>,days:2,units:[<|"|>C<|"|>]}<tool_call|>

Calls follow each other with nothing between. Their marks are special tokens, and end a thought. Models forget the mark
in front of a string, use common quotes, or write `name(key=value)`: all of this is understood. A bracket that fits none
makes the call a partial one.
"""

from __future__ import annotations

import re

from .base import Parser, Waiting
from .gemma_values import CLOSE, OPEN, QUOTE, GemmaArguments

_MARKS = (OPEN, CLOSE, QUOTE, "<|tool_response>", "<tool_response|>")
_NAME = re.compile(r"[^\s{(<]*")


class Gemma4(Parser):
    opening = OPEN
    ends_thought = True

    def run(self) -> Waiting[None]:
        while mark := (yield from self.until(_MARKS, self.content)):
            if mark != OPEN:
                self.drop(mark)
            while mark == OPEN:
                mark = yield from self._read()

    def _read(self) -> Waiting[str | None]:
        """Read a call; the mark that ends it, None for the end of the text."""
        yield from self.skip_space()
        if (yield from self.next_is("call:")):
            yield from self.skip_space()
        name = yield from self.span(_NAME)
        yield from self.skip_space()
        bracket = yield from self.next_is("{", "(", CLOSE)
        if not name or not bracket:
            self.drop(name)
            return bracket if bracket == CLOSE else (yield from self.until([CLOSE, OPEN], self.drop))
        name = self._known(name)
        self.start_call(name)
        if bracket == CLOSE:
            self.arguments("{}")
            self.end_call()
            return bracket
        arguments = GemmaArguments(self, self.tools.get(name, {}))
        is_whole = yield from arguments.read(bracket)
        mark = arguments.mark or (yield from self.next_is(CLOSE, OPEN))
        self.end_call(is_whole=is_whole and bool(mark or not (yield from self.peek())))
        return mark or (yield from self.until([CLOSE, OPEN], self.drop))

    def _known(self, name: str) -> str:
        """Models put the names of servers in front of those of tools."""
        last = re.split("[:.]", name)[-1]
        return last if name not in self.tools and last in self.tools else name
