"""Arguments as Gemma 4 writes them, given as JSON: objects with bare keys, and strings between marks of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from .base import Parser, Waiting
from .json_call import json_string
from .typed import ANY, STRING, Parameters, string, typed

OPEN, CLOSE, QUOTE = "<|tool_call>", "<tool_call|>", '<|"|>'
_CLOSING = {"{": "}", "[": "]", "(": ")"}
_KEY = re.compile(r"""[^:=,<{}\[\]()"']*""")
_WORD = re.compile(r"[\w$.-]*")
# All of a structure that says nothing by itself about what comes next.
_STRUCTURE = re.compile(r"[\s,{}\[\])]*")
# What ends a value without quotes, and what says behind a comma that the text goes no further.
_BEHIND_BARE = (QUOTE, CLOSE, OPEN, ",", "}", "]")
_BEHIND_COMMA = ("", "}", ")", ",", '"', "<")


class GemmaArguments:
    """Of one call that has begun; `schema` is that of its tool. Cost is linear, whatever the text."""

    def __init__(self, parser: Parser, schema: Mapping[str, Any]) -> None:
        # A mark that ended the call before its last bracket, once that is read.
        self.mark: str | None = None
        self._parser = parser
        self._parameters = Parameters(schema)
        # Read already, of what follows a value: structure, and a key with its colon.
        self._structure = ""
        self._key = ""

    def read(self, bracket: str) -> Waiting[bool]:
        """Read from behind the first bracket to behind the last one; False where something does not fit."""
        self._parser.arguments("{")
        closing = [_CLOSING[bracket]]
        before = ""
        types = ANY
        while True:
            # That of the member of an object whose value comes next.
            key, self._key = self._key, ""
            if key:
                types = self._parameters.types(key) if len(closing) == 1 else ANY
                self._parser.arguments(f"{before}{string(key)}: ")
                before = ""
            structure = self._structure + (yield from self._parser.span(_STRUCTURE))
            self._structure = ""
            written = []
            for at, character in enumerate(structure):
                if character == closing[-1] and not key:
                    written.append("]" if closing.pop() == "]" else "}")
                    before = ", "
                elif character in _CLOSING and (key or closing[-1] == "]"):
                    written.append(before + character)
                    closing.append(_CLOSING[character])
                    before = key = ""
                elif (key and character == ",") or character in "{}[])":
                    self._parser.arguments("".join(written))
                    self._parser.drop(structure[at:])
                    return False
                if not closing:
                    self._parser.arguments("".join(written))
                    self._parser.drop(structure[at + 1 :])
                    return not structure[at + 1 :].strip()
            self._parser.arguments("".join(written))
            if key or closing[-1] == "]":
                self._parser.arguments(before)
                if not (yield from self._value(types if key else ANY, closing[-1])):
                    return False
                before = ", "
            else:
                self._key = yield from self._read_key()
                if not self._key:
                    return False

    def _read_key(self) -> Waiting[str]:
        """A key, behind its colon; empty where none comes."""
        if (yield from self._parser.next_is(QUOTE)):
            pieces: list[str] = []
            if (yield from self._parser.until([QUOTE, CLOSE], pieces.append)) == CLOSE:
                self.mark = CLOSE
            key = "".join(pieces)
        elif (yield from self._parser.peek()) == '"':
            key = (yield from json_string(self._parser)) or ""
        else:
            key = yield from self._parser.span(_KEY)
        yield from self._parser.skip_space()
        if not self.mark and (yield from self._parser.next_is(":", "=")):
            return key.strip()
        self._parser.drop(key)
        return ""

    def _value(self, types: frozenset[str], closing: str) -> Waiting[bool]:
        if (yield from self._parser.next_is(QUOTE)):
            return (yield from self._string())
        character = yield from self._parser.peek()
        if character == "'":
            text = yield from self._quoted()
            self._parser.arguments(string(text))
            return True
        if character == '"':
            decoded = yield from json_string(self._parser)
            if decoded is not None:
                self._parser.arguments(string(decoded))
            return decoded is not None
        return (yield from self._bare(types, closing))

    def _string(self) -> Waiting[bool]:
        """Behind its opening mark. The end of a call may be text in it, if more of the string comes."""
        self._parser.arguments('"')
        while mark := (yield from self._parser.until([QUOTE, CLOSE], self._characters)):
            if mark == QUOTE:
                self._parser.arguments('"')
                return True
            space = yield from self._parser.skip_space()
            self.mark = yield from self._parser.next_is(OPEN)
            if self.mark or not (yield from self._parser.peek()):
                break
            self._characters(mark + space)
        return False

    def _characters(self, text: str) -> None:
        self._parser.arguments(string(text)[1:-1])

    def _quoted(self) -> Waiting[str]:
        """Between apostrophes; one that no structure follows is text."""
        self._parser.take(1)
        pieces: list[str] = []
        while (yield from self._parser.until(["'"], pieces.append)):
            space = yield from self._parser.skip_space()
            if (yield from self._parser.peek()) in ("", ",", "}", "]", ")"):
                break
            pieces.append("'" + space)
        return "".join(pieces)

    def _bare(self, types: frozenset[str], closing: str) -> Waiting[bool]:
        """Without quotes, or with only the closing one: then commas are text unless a key follows."""
        pieces: list[str] = []
        marks = (*_BEHIND_BARE, ")") if closing == ")" else _BEHIND_BARE
        is_text = False
        while (mark := (yield from self._parser.until(marks, pieces.append))) == "," and closing != "]":
            if not is_text and typed("".join(pieces)) != string("".join(pieces)):
                break
            is_text = True
            space = yield from self._parser.skip_space()
            word = yield from self._parser.span(_WORD)
            behind = yield from self._parser.skip_space()
            if word and (yield from self._parser.next_is(":", "=")):
                self._key = word
                break
            if not word and (yield from self._parser.peek()) in _BEHIND_COMMA:
                break
            pieces.append(f",{space}{word}{behind}")
        text = "".join(pieces)
        if mark in (None, CLOSE, OPEN):
            self.mark = mark
            self._parser.drop(text)
            return False
        if mark == QUOTE:
            self._parser.arguments(string(text))
            return True
        if not self._key:
            self._structure = str(mark)
        if text.strip():
            self._parser.arguments(typed(text, types) if types != STRING else string(text.strip()))
        return bool(text.strip())
