"""Mistral: [TOOL_CALLS] before a list of calls, or, from version 11 of its tokenizer on, before every call.

`[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}}, ...]`, also one object without the list, and
`[TOOL_CALLS]get_weather[ARGS]{"city": "Paris"}[TOOL_CALLS]...`, also with [CALL_ID]aB3xY9kLm before [ARGS], or without
[ARGS]. Ids are nine letters and digits.

Before the first call [ARGS] and [CALL_ID] are text: how to use a program is written like that.
"""

from __future__ import annotations

import re

from .base import Parser, Waiting
from .json_call import NO_ARGUMENTS, json_call, json_string
from .structural import CallForm

_CALLS, _ARGUMENTS, _ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_NAME = re.compile(r"""[^\s\[\]{}()"',;]*""")
_WORD = re.compile(r"\w*")
_IS_ID = re.compile(r"[A-Za-z0-9]{9}")


class Mistral(Parser):
    opening = _CALLS
    ends_thought = True
    call_id_style = "mistral"
    forms = (
        CallForm(trigger=_CALLS, begin=f"{_CALLS}NAME{_ARGUMENTS}"),
        CallForm(trigger=_CALLS, begin=_CALLS, is_list=True),
    )

    def run(self) -> Waiting[None]:
        marks, sink = [_CALLS], self.content
        while mark := (yield from self.until(marks, sink)):
            if mark == _CALLS:
                yield from self.skip_space()
                while (yield from self.next_is(_CALLS)):
                    yield from self.skip_space()
                reads = self._objects if (yield from self.peek()) in ("[", "{") else self._named_call
                sink = self.content if (yield from reads()) else self.drop
                marks = [_CALLS, _ARGUMENTS, _ID]
            else:
                self.drop(mark)

    def _objects(self) -> Waiting[bool]:
        """A list of calls, or one. False, here and below: what follows is the rest of something malformed."""
        is_list = yield from self.next_is("[")
        while True:
            yield from self.skip_space()
            if (yield from self.peek()) == "{" and not (yield from json_call(self)):
                return False
            if not is_list:
                return True
            yield from self.skip_space()
            if not (yield from self.next_is(",")):
                return (yield from self.next_is("]")) is not None

    def _named_call(self) -> Waiting[bool]:
        name = yield from self.span(_NAME)
        yield from self.skip_space()
        call_id = ""
        if (yield from self.next_is(_ID)):
            call_id = yield from self.span(_WORD)
            yield from self.skip_space()
        is_marked = yield from self.next_is(_ARGUMENTS)
        yield from self.skip_space()
        first = yield from self.peek()
        if not name or not (is_marked or first == "{"):
            self.drop(name)
            return False
        self.start_call(name, call_id if _IS_ID.fullmatch(call_id) else "")
        is_whole = False
        if first == "{":
            is_whole = yield from self.json_value(self.arguments)
        elif first == '"' and (text := (yield from json_string(self))) is not None:
            self.arguments(text or NO_ARGUMENTS)
            is_whole = True
        self.end_call(is_whole=is_whole)
        return is_whole
