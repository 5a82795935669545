"""Calls that a grammar has forced, written alike by every family of models.

`required`: a JSON list of {"name": ..., "parameters": {...}}. A named tool: its arguments and nothing else. A model
that was not constrained may write otherwise; what is no such list is content.
"""

from __future__ import annotations

from .base import Parser, Tools, Waiting
from .json_call import json_call


class ForcedCalls(Parser):
    def run(self) -> Waiting[None]:
        space = yield from self.skip_space()
        if not (yield from self.next_is("[")):
            self.content(space)
            yield from self.rest(self.content)
            return
        while True:
            yield from self.skip_space()
            if (yield from self.peek()) != "{":
                break
            yield from json_call(self)
            yield from self.skip_space()
            if not (yield from self.next_is(",")):
                break
        yield from self.next_is("]")


class ForcedCall(Parser):
    def __init__(self, tools: Tools, name: str) -> None:
        self._name = name
        super().__init__(tools)

    def run(self) -> Waiting[None]:
        space = yield from self.skip_space()
        if (yield from self.peek()) != "{":
            self.content(space)
            yield from self.rest(self.content)
            return
        self.start_call(self._name)
        is_whole = yield from self.json_value(self.arguments)
        self.end_call(is_whole=is_whole)
