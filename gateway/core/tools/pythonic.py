"""Pythonic: `[get_weather(city="Paris"), get_time(zone='CET', offset=-1)]`. Llama 3.2 and 4.

Llama 4 may write it between <|python_start|> and <|python_end|>, and there without the brackets. A list is one of
calls only where it begins with a call of one of the tools, `[name(`. Arguments without a name are those of the schema,
in its order. The JSON of the arguments is written value by value.

A call that makes no sense ends there; reading goes on with the next call in the list, or behind the list.
"""

from __future__ import annotations

import re

from .base import Tools, Waiting
from .python_values import WORD, PythonValues, scalar
from .typed import string

_START, _END = "<|python_start|>", "<|python_end|>"
_TAGS = (_START, _END, "<|python_tag|>")
_NAME = re.compile(r"[\w.-]*")
# Behind a call: the end of the list, or another call; or what may become that, where the text ends.
_BEHIND = re.compile(
    r"\)\s*(?:\]|[,;]\s*(?:\]|[\w.-]+\(|[\w.-]*\Z)|\Z)|<\|python_end\|>|<(?:\|[a-z_]*\|?)?\Z",
)


class Pythonic(PythonValues):
    opening = _START
    ends_thought = True

    def __init__(self, tools: Tools) -> None:
        self._called = tuple(f"{name}(" for name in tools)
        calls = "|".join(map(re.escape, self._called)) or "(?!)"
        # A tag, or a list that begins with a call; or what may become that, where the text ends.
        self._begins = re.compile(
            r"<\|python_(?:tag|start|end)\|>|<(?:\|[a-z_]*\|?)?\Z" rf"|\[\s*(?:{calls}|[^\s()\[\]<]*\Z)"
        )
        super().__init__(tools)

    def run(self) -> Waiting[None]:
        while (yield from self.search(self._begins, self.content)):
            tag = yield from self.next_is(*_TAGS)
            if tag:
                self.content((yield from self.skip_space()))
            self.hold()
            may_be_call = (yield from self.next_is("[")) or tag not in (None, _END)
            yield from self.skip_space()
            called = (yield from self.next_is(*self._called)) if may_be_call else None
            held = self.release()
            if called:
                yield from self._read_list(called[:-1])
            elif may_be_call and self._rest and self.could_be(*self._called):
                self.drop(held)
                yield from self.rest(self.drop)
            else:
                self.drop(tag if tag and tag != _END else "")
                self.content(held or ("" if tag else self.take(1)))

    def _read_list(self, name: str) -> Waiting[None]:
        """Read calls from behind the parenthesis of the first one to the end of their list."""
        while name:
            self.start_call(name)
            is_whole = yield from self._arguments(name)
            self.end_call(is_whole=is_whole)
            name = yield from self._next_call(is_closed=is_whole)

    def _next_call(self, *, is_closed: bool) -> Waiting[str]:
        """Its name, behind its parenthesis; empty: the list is over. `is_closed` False: a broken call is not."""
        while is_closed or (yield from self.search(_BEHIND, self.drop)):
            if (yield from self.next_is(_END)):
                return ""
            self.hold()
            if not (is_closed or (yield from self.next_is(")"))):
                self.take(1)
            yield from self.skip_space()
            comma = yield from self.next_is(",", ";")
            yield from self.skip_space()
            is_over = yield from self.next_is("]")
            name = "" if is_over else (yield from self.span(_NAME))
            # A comma may be forgotten where that cannot mislead.
            may_begin = comma or (is_closed and f"{name}(" in self._called)
            begins = name and may_begin and (yield from self.next_is("("))
            held = self.release()
            is_closed = False
            if is_over or begins:
                return name if begins else ""
            self.drop(held)
        return ""

    def _arguments(self, name: str) -> Waiting[bool]:
        in_order = list(self.tools.get(name, {}).get("properties") or ())
        self.arguments("{")
        count = 0
        while True:
            yield from self.skip_space()
            comma = count > 0 and (yield from self.next_is(","))
            yield from self.skip_space()
            if (yield from self.next_is(")")):
                self.arguments("}")
                return True
            word = yield from self.span(WORD)
            yield from self.skip_space()
            is_named = word and (yield from self.next_is("="))
            key = word if is_named else in_order[count] if count < len(in_order) else None
            literal = None if is_named else scalar(word)
            if key is None or (count and not comma) or (word and not is_named and literal is None):
                self.drop(word)
                return False
            self.arguments(f"{', ' if count else ''}{string(key)}: {literal or ''}")
            if literal is None and not (yield from self.python_value(self.arguments)):
                return False
            count += 1
