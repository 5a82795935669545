"""Qwen3 Coder, and Qwen 3.5 and later: tags for the function and each parameter, values as plain text between lines.

    <tool_call>
    <function=get_weather>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Models forget <tool_call> and closing tags, and values may hold tags as text. So a tag within a value ends it only where
what follows fits, and a function without <tool_call> is one only if a tag follows its name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .base import Parser, Sink, Waiting
from .structural import CallForm
from .typed_call import TypedCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_MARKS = (_OPEN, _CLOSE, _FUNCTION, _FUNCTION_END, _PARAMETER, _PARAMETER_END)
_IN_VALUE = (_OPEN, _CLOSE, _FUNCTION_END, _PARAMETER, _PARAMETER_END)
# What shows that a mark within a value is none of its text.
_FITTING = {_PARAMETER_END: (_PARAMETER, _FUNCTION_END, _CLOSE, _FUNCTION, _OPEN), _OPEN: (_FUNCTION,)}
_NAME = re.compile(r"[^\s<>]*")
_KEY = re.compile(r"[^\n<>]*")


class _Ahead(NamedTuple):
    """A mark that was read to see what came before it, if there is one, and the white space behind it."""

    mark: str | None = None
    space: str = ""


class Qwen3Coder(Parser):
    opening = _OPEN
    forms = (
        CallForm(
            trigger=_OPEN, begin=f"{_OPEN}\n{_FUNCTION}NAME>\n", end=f"\n{_FUNCTION_END}\n{_CLOSE}", style="qwen_xml"
        ),
    )
    _call: TypedCall | None = None
    # Where text between marks is none: in a call or in <tool_call>.
    _is_inside = False
    # Until a call has begun, the tags of its inner parts may be anybody's text.
    _marks: tuple[str, ...] = (_OPEN, _CLOSE, _FUNCTION)

    def run(self) -> Waiting[None]:
        ahead = _Ahead()
        while True:
            mark = ahead.mark or (yield from self.until(self._marks, self.drop if self._is_inside else self.content))
            if mark is None:
                return
            ahead = yield from self._read(mark, ahead.space)

    def _read(self, mark: str, space: str) -> Waiting[_Ahead]:
        if mark == _PARAMETER and self._call is not None:
            return (yield from self._parameter(self._call))
        if mark in (_PARAMETER, _PARAMETER_END):
            self.drop(mark)
            return _Ahead()
        if self._call is not None:
            self._call.end()
            self._call = None
        if mark == _FUNCTION:
            return (yield from self._function())
        if mark == _OPEN:
            self._begin()
        elif self._is_inside:
            self._is_inside = False
            if mark == _FUNCTION_END:
                space += yield from self.skip_space()
                if (yield from self.next_is(_CLOSE)):
                    return _Ahead()
            self.content(space)
        else:
            self.drop(mark)
        return _Ahead()

    def _begin(self) -> None:
        self._is_inside = True
        self._marks = _MARKS

    def _function(self) -> Waiting[_Ahead]:
        name = yield from self.span(_NAME)
        bracket = (yield from self.next_is(">")) or ""
        space = yield from self.skip_space()
        following = yield from self.next_is(_PARAMETER, _FUNCTION_END, _CLOSE)
        is_cut = not following and not (yield from self.peek())
        if name and ((not is_cut and self._is_inside) or (bracket and (following or is_cut))):
            self._begin()
            self._call = TypedCall(self, name)
        elif is_cut or self._marks == _MARKS:
            self.drop(f"{_FUNCTION}{name}{bracket}")
        else:
            self.content(f"{_FUNCTION}{name}{bracket}{space}")
        return _Ahead(following)

    def _parameter(self, call: TypedCall) -> Waiting[_Ahead]:
        """Read from behind `<parameter=`, to behind the tag that ends the value."""
        key = (yield from self.span(_KEY)).strip()
        if not key or not (yield from self.next_is(">")):
            self.drop(f"{_PARAMETER}{key}")
            call.spoil()
            return _Ahead()
        call.begin(key)
        yield from self.next_is("\n")
        text = _without_last_line_break(call.add)
        while (mark := (yield from self.until(_IN_VALUE, text))) is not None:
            ahead = yield from self._end_of_value(mark, text)
            if ahead is not None:
                call.close()
                return ahead
        return _Ahead()

    def _end_of_value(self, mark: str, sink: Sink) -> Waiting[_Ahead | None]:
        """What comes behind a value, where a mark ends it; else None, and what was read is given to `sink`."""
        if mark == _PARAMETER:
            return _Ahead(mark)
        text = [mark]
        space = yield from self.skip_space()
        # Tags of function and call may be text, if the parameter's own end comes behind them.
        while mark in (_FUNCTION_END, _CLOSE):
            following = yield from self.next_is(_PARAMETER_END, _CLOSE)
            if following is None:
                return _Ahead(mark, space)
            mark = following
            text += [space, mark]
            space = yield from self.skip_space()
        fitting = yield from self.next_is(*_FITTING[mark])
        if fitting or (mark == _PARAMETER_END and not (yield from self.peek())):
            sink("".join(text[:-1]))
            return _Ahead(fitting)
        sink("".join([*text, space]))
        return None


def _without_last_line_break(sink: Sink) -> Sink:
    held = ""

    def give(text: str) -> None:
        nonlocal held
        text = held + text
        held = "\n" if text.endswith("\n") else ""
        sink(text.removesuffix("\n"))

    return give
