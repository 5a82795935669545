"""Hermes: <tool_call>{"name": ..., "arguments": {...}}</tool_call> for each call. Qwen 2.5, Qwen 3 and many others."""

from __future__ import annotations

from .base import Parser, Waiting
from .json_call import json_call
from .structural import CallForm

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"


class Hermes(Parser):
    opening = _OPEN
    forms = (CallForm(trigger=_OPEN, begin=f'{_OPEN}\n{{"name": "NAME", "arguments": ', end=f"}}\n{_CLOSE}"),)

    def run(self) -> Waiting[None]:
        while (yield from self.until([_OPEN], self.content)):
            # A call whose end is forgotten is followed by the next one.
            more = True
            while more:
                yield from self.skip_space()
                yield from json_call(self)
                more = (yield from self.until([_CLOSE, _OPEN], self.drop)) == _OPEN
