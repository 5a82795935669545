"""GLM 4.5 and later: the name, then tagged pairs of key and value, values as plain text.

    <tool_call>get_weather
    <arg_key>city</arg_key>
    <arg_value>Paris</arg_value>
    </tool_call>

From GLM 4.7 on all of it stands in one line. <tool_call> is a special token, which ends a thought. Values may hold tags
as text: they end only where what follows fits. Models forget tags around keys, or write the arguments as JSON.
"""

from __future__ import annotations

import re

from .base import Parser, Waiting
from .json_call import json_call
from .structural import CallForm
from .typed_call import TypedCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_MARKS = (_OPEN, _CLOSE, _KEY, _KEY_END, _VALUE, _VALUE_END)
_IN_VALUE = (_KEY, _VALUE_END, _CLOSE)
# What shows that a mark within a value is none of its text; so does the text's end.
_FITTING = {_VALUE_END: (_KEY, _CLOSE, _OPEN), _CLOSE: (_OPEN,)}
_NAME = re.compile(r"[^\s<{]*")


class Glm45(Parser):
    opening = _OPEN
    forms = (CallForm(trigger=_OPEN, begin=f"{_OPEN}NAME", end=_CLOSE, style="glm_xml"),)
    ends_thought = True

    def run(self) -> Waiting[None]:
        while mark := (yield from self.until(_MARKS, self.content)):
            if mark != _OPEN:
                self.drop(mark)
            while mark == _OPEN:
                mark = yield from self._read()

    def _read(self) -> Waiting[str | None]:
        """Read a call; the mark that ends it, None for the end of the text."""
        yield from self.skip_space()
        name = yield from self.span(_NAME)
        yield from self.skip_space()
        if (yield from self.peek()) == "{":
            if name:
                self.start_call(name)
                self.end_call(is_whole=(yield from self.json_value(self.arguments)))
            else:
                yield from json_call(self)
            return (yield from self.until([_CLOSE, _OPEN], self.drop))
        rest: list[str] = []
        mark = yield from self.until(_MARKS, rest.append)
        key = "".join(rest).strip()
        if mark == _KEY_END and not key:
            name, key = self._split(name)
        if mark is None or not name:
            self.drop(name + key)
            return mark if mark in (None, _OPEN, _CLOSE) else (yield from self.until([_CLOSE, _OPEN], self.drop))
        call = TypedCall(self, name)
        if mark == _KEY_END:
            mark = yield from self._value(call, key, mark)
        else:
            self.drop(key)
        return (yield from self._pairs(call, mark))

    def _split(self, text: str) -> tuple[str, str]:
        """The name of a tool and the key that stands right behind it; no name, where that is no tool's."""
        name = max((tool for tool in self.tools if text.startswith(tool) and text != tool), key=len, default="")
        return name, text[len(name) :]

    def _pairs(self, call: TypedCall, mark: str | None) -> Waiting[str | None]:
        while mark not in (None, _CLOSE, _OPEN):
            if mark == _KEY:
                mark = yield from self._key(call)
                continue
            if mark != _VALUE_END:
                self.drop(str(mark))
                call.spoil()
            mark = yield from self.until(_MARKS, self.drop)
        call.end(is_whole=mark is not None)
        return mark

    def _key(self, call: TypedCall) -> Waiting[str | None]:
        """Read from behind <arg_key> to the mark behind the pair, or to </arg_value> if another one is to be found."""
        pieces: list[str] = []
        mark = yield from self.until(_MARKS, pieces.append)
        key = "".join(pieces).strip()
        if mark in (_KEY_END, _VALUE):
            return (yield from self._value(call, key, mark))
        if key or mark != _KEY:
            self.drop(key)
            call.spoil()
        return mark

    def _value(self, call: TypedCall, key: str, mark: str) -> Waiting[str | None]:
        while mark == _KEY_END:
            yield from self.skip_space()
            mark = (yield from self.next_is(_KEY_END, _VALUE, _KEY, _CLOSE, _OPEN)) or ""
        if mark in (_KEY, _CLOSE, _OPEN) or not key:
            self.drop(key)
            call.spoil()
            return mark or _VALUE_END
        call.begin(key)
        while end := (yield from self.until(_IN_VALUE, call.add)):
            space = "" if end == _KEY else (yield from self.skip_space())
            following = end if end == _KEY else (yield from self.next_is(*_FITTING[end]))
            if following or not (yield from self.peek()):
                call.close()
                return following or end
            call.add(end + space)
        return None
