"""A call that is one JSON object with the name and the arguments among its members, in any order."""

from __future__ import annotations

import json
from collections.abc import Collection

from .base import Parser, Sink, Waiting

NAME = "name"
ARGUMENTS = frozenset({"arguments", "parameters"})
ID = "id"
NO_ARGUMENTS = "{}"


def json_call(parser: Parser, *, arguments_keys: Collection[str] = ARGUMENTS) -> Waiting[bool]:
    """Read the object that comes next as a call; where none comes, nothing is taken.

    Arguments go out as they come once the name is known, and are kept until then. Some models write them as a string
    that holds the object; then that is what they are. A call without arguments, or with null, has {}. An object without
    a name is no call: it is dropped. True: there was an object, and it was whole.
    """
    if not (yield from parser.next_is("{")):
        return False
    call = _Call(parser)
    while True:
        yield from parser.skip_space()
        if (yield from parser.next_is("}")):
            call.end(is_whole=True)
            return True
        yield from parser.next_is(",")
        yield from parser.skip_space()
        key = yield from json_string(parser)
        yield from parser.skip_space()
        if key is None or not (yield from parser.next_is(":")):
            break
        yield from parser.skip_space()
        first = yield from parser.peek()
        # Of several members for the arguments the first one holds.
        is_arguments = key in arguments_keys and not call.has_arguments
        value: list[str] = []
        streams = is_arguments and first not in ('"', "n")
        if not (yield from parser.json_value(call.arguments if streams else value.append)):
            break
        if is_arguments and not streams:
            call.arguments((_decoded("".join(value)) if first == '"' else "") or NO_ARGUMENTS)
        elif key == NAME and first == '"':
            call.named(_decoded("".join(value)))
        elif key == ID and first == '"':
            call.call_id = _decoded("".join(value))
    call.end(is_whole=False)
    return False


class _Call:
    def __init__(self, parser: Parser) -> None:
        self._parser = parser
        self._name = ""
        self._early: list[str] = []
        self.has_arguments = False
        self.call_id = ""

    def named(self, name: str) -> None:
        if self._name or not name:
            return
        self._name = name
        self._parser.start_call(name, self.call_id)
        for text in self._early:
            self._parser.arguments(text)

    def arguments(self, text: str) -> None:
        self.has_arguments = True
        if self._name:
            self._parser.arguments(text)
        else:
            self._early.append(text)

    def end(self, *, is_whole: bool) -> None:
        if not self._name:
            self._parser.drop("".join(["{", *self._early]))
            return
        if is_whole and not self.has_arguments:
            self._parser.arguments(NO_ARGUMENTS)
        self._parser.end_call(is_whole=is_whole)


def json_string(parser: Parser) -> Waiting[str | None]:
    """The text of a JSON string; None where none comes, or where it does not end."""
    if (yield from parser.peek()) != '"':
        return None
    pieces: list[str] = []
    sink: Sink = pieces.append
    return _decoded("".join(pieces)) if (yield from parser.json_value(sink)) else None


_LENIENT = json.JSONDecoder(strict=False)


def _decoded(literal: str) -> str:
    """What a JSON string says; its own text, where it is malformed."""
    text = literal[1:-1]
    if "\\" in text:
        try:
            text = _LENIENT.decode(literal)
        except ValueError:
            text = literal.strip('"')
    # Half a surrogate pair, which JSON may write, is no character that could be sent on.
    return text.encode(errors="replace").decode() if not text.isascii() else text
