"""Llama 3.1 to 4 with their JSON templates: calls are bare objects in the text, which no mark need announce.

`{"name": "get_weather", "parameters": {"city": "Paris"}}`, several separated by `; ` or new lines. Seen as well: behind
<|python_tag|> or between <|python_start|> and <|python_end|>; in a list; with "type": "function"; with the name under
"function", or an object under "function" that has it; with a brace too many or too few.

An object is a call once it has named one of the tools and comes to its arguments or its end. Until then it is held, for
as long as its members allow that; what is no call is content exactly as written. Where the text ends in what is held
and one member has begun, that is a call cut off: it is dropped.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from .base import Parser, Sink, Tools, Waiting
from .json_call import NO_ARGUMENTS, json_string
from .structural import CallForm

_TAGS = ("<|python_tag|>", "<|python_start|>", "<|python_end|>")
_TAG = re.compile(r"(<\|python_(?:tag|start|end)\|>)")
_NAMES = ('"name"', '"function"')
_ARGUMENTS = ('"parameters"', '"arguments"')
_KEYS = (*_NAMES, *_ARGUMENTS, '"type"', '"id"')
# A tag, or an object whose first member may be a call's, also in a list; or what may become that, where the text ends.
_BEGINS = r"""
    <\|python_(?:tag|start|end)\|> | <(?:\|[a-z_]*\|?)?\Z | \[\s*\Z
    | (?:\[\s*)? \{\s* (?:
        \Z | "[a-z]*\Z | "[a-z]+"\s*\Z
        | "(?:name|function)"\s*:\s* (?: \Z | NAMES | "[^"]*\Z )
        | "function"\s*:\s* \{\s* (?: \Z | " )
        | "(?:parameters|arguments)"\s*:\s* (?: \Z | ["{n] )
        | "(?:type|id)"\s*:\s* (?: \Z | "(?:[^"\\]|\\.)*+ (?: \\?\Z | "\s*(?:\Z|[,"]) ) )
    )
"""
_BEHIND = re.compile(r"[\s;,}\]]*")


@dataclass(slots=True)
class _Head:
    """What an object has said before it is certain that it is a call."""

    name: str = ""
    arguments: str = ""
    depth: int = 1
    has_begun: bool = False
    # What would have been right where it stopped.
    expected: tuple[str, ...] = ("",)


class Llama3Json(Parser):
    opening = _TAGS[0]
    ends_thought = True
    # Other objects are text, so a call begins with the name of a tool.
    forms = (CallForm(trigger='{"name": "NAME"', begin='{"name": "NAME", "parameters": ', end="}"),)

    def __init__(self, tools: Tools) -> None:
        self._quoted = {json.dumps(name, ensure_ascii=False): name for name in tools}
        names = "|".join(map(re.escape, self._quoted)) or "(?!)"
        self._begins = re.compile(_BEGINS.replace("NAMES", names), re.VERBOSE | re.DOTALL)
        super().__init__(tools)

    def run(self) -> Waiting[None]:
        while (yield from self.search(self._begins, self.content)):
            if tag := (yield from self.next_is(*_TAGS)):
                space = yield from self.skip_space()
                if tag != _TAGS[-1] and (yield from self.peek()) not in ("{", "["):
                    self.drop(tag)
                self.content(space)
                continue
            self.hold()
            if (yield from self.next_is("[")):
                yield from self.skip_space()
            if not (yield from self.next_is("{")):
                self.content(self.release() or self.take(1))
                continue
            head = _Head()
            is_call = yield from self._head(head)
            held = self.release()
            if is_call:
                yield from self._call(head)
                yield from self._behind()
            elif head.has_begun and self.could_be(*head.expected):
                self.drop(held)
                yield from self.rest(self.drop)
            else:
                for part in _TAG.split(held):
                    (self.drop if part in _TAGS else self.content)(part)

    def _head(self, head: _Head) -> Waiting[bool]:
        """Read an object behind its brace until it is certain that it is a call, or that it is none."""
        may_have_comma = False
        while True:
            yield from self.skip_space()
            if head.name and head.arguments:
                return True
            if head.name and (yield from self.next_is("}")):
                head.depth -= 1
                head.arguments = NO_ARGUMENTS
                return True
            if may_have_comma and (yield from self.next_is(",")):
                yield from self.skip_space()
            may_have_comma = True
            head.expected = _KEYS
            key = yield from self.next_is(*_KEYS)
            if key is None:
                return False
            head.has_begun = True
            yield from self.skip_space()
            head.expected = (":",)
            if not (yield from self.next_is(":")):
                return False
            yield from self.skip_space()
            head.expected = ("",)
            if key == '"function"' and head.depth == 1 and (yield from self.next_is("{")):
                head.depth = 2
                may_have_comma = False
            elif key in _NAMES:
                head.expected = tuple(self._quoted)
                quoted = yield from self.next_is(*self._quoted)
                if quoted is None:
                    return False
                head.name = self._quoted[quoted]
            elif key in _ARGUMENTS:
                if (yield from self.peek()) not in ("{", '"', "n"):
                    return False
                if head.name:
                    return True
                early: list[str] = []
                if not (yield from self._arguments(early.append)):
                    return False
                head.arguments = "".join(early)
            elif (yield from json_string(self)) is None:
                return False

    def _arguments(self, sink: Sink) -> Waiting[bool]:
        """An object, also within a string, or null."""
        first = yield from self.peek()
        if first == "{":
            return (yield from self.json_value(sink))
        pieces: list[str] = []
        text = (yield from json_string(self)) if first == '"' else None
        is_null = first == "n" and (yield from self.json_value(pieces.append)) and "".join(pieces) == "null"
        if text is None and not is_null:
            return False
        sink(text or NO_ARGUMENTS)
        return True

    def _call(self, head: _Head) -> Waiting[None]:
        self.start_call(head.name)
        is_whole = True
        if head.arguments:
            self.arguments(head.arguments)
        else:
            is_whole = yield from self._arguments(self.arguments)
        for _ in range(head.depth if is_whole else 0):
            yield from self._other_members()
            yield from self.next_is("}")
        self.end_call(is_whole=is_whole)

    def _other_members(self) -> Waiting[None]:
        while True:
            yield from self.skip_space()
            if not (yield from self.next_is(",")):
                return
            yield from self.skip_space()
            yield from json_string(self)
            yield from self.skip_space()
            if not (yield from self.next_is(":")):
                return
            yield from self.skip_space()
            yield from self.json_value(lambda _: None)

    def _behind(self) -> Waiting[None]:
        """Brackets behind a call are markup, and what separates it from the next one is none of the text."""
        behind = yield from self.span(_BEHIND)
        self.drop("}" * behind.count("}"))
        is_separator = (yield from self.peek()) in ("", "{", "[", "<")
        self.content(re.sub(r"[};,\]]" if is_separator else r"[}\]]", "", behind))
