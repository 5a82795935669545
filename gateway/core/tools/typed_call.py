"""Arguments of a call that a model writes as pairs of key and text."""

from __future__ import annotations

from .base import Parser
from .typed import STRING, Parameters, string, typed


class TypedCall:
    """Writes them as a JSON object: a string as its text comes, any other value once it is whole."""

    def __init__(self, parser: Parser, name: str) -> None:
        self._parser = parser
        self._parameters = Parameters(parser.tools.get(name, {}))
        self._key = ""
        self._types = STRING
        self._pieces: list[str] = []
        self._is_empty = True
        self._is_broken = False
        parser.start_call(name)

    def begin(self, key: str) -> None:
        """The text of a value follows, by `add`, up to `close`."""
        self._key = key
        self._types = self._parameters.types(key)
        self._pieces = []
        if self._types == STRING:
            self._parser.arguments(f'{self._before()}{string(key)}: "')

    def add(self, text: str) -> None:
        if self._types == STRING:
            self._parser.arguments(string(text)[1:-1])
        else:
            self._pieces.append(text)

    def close(self) -> None:
        if self._types == STRING:
            self._parser.arguments('"')
        else:
            value = typed("".join(self._pieces), self._types)
            self._parser.arguments(f"{self._before()}{string(self._key)}: {value}")

    def spoil(self) -> None:
        """Something that belongs to the call is lost: it cannot end whole."""
        self._is_broken = True

    def end(self, *, is_whole: bool = True) -> None:
        if is_whole and not self._is_broken:
            self._parser.arguments("{}" if self._is_empty else "}")
        self._parser.end_call(is_whole=is_whole and not self._is_broken)

    def _before(self) -> str:
        before = "{" if self._is_empty else ", "
        self._is_empty = False
        return before
