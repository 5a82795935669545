"""Values as Python writes them, given as the JSON that they mean.

Strings with either quote mark, numbers, True, False, None (and their JSON names), lists, tuples and dicts. Nothing is
evaluated; what is no such value (a name, an expression, a set) ends the reading.
"""

from __future__ import annotations

import re
from enum import Enum, auto

from .base import Parser, Sink, Waiting
from .typed import string

_CLOSING = {"[": "]", "(": ")", "{": "}"}
_JSON = {"[": "[", "]": "]", "(": "[", ")": "]", "{": "{", "}": "}"}
_MARKS = frozenset("[](){},:")
_MARK = re.compile(r"\s*([\[\](){},:])")
WORD = re.compile(r"""[^\s\[\](){},:;'"=<]*""")

_STRINGS = {quote: re.compile(rf"[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+", re.DOTALL) for quote in "'\""}
_ESCAPE = re.compile(r"\\(x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|[0-7]{1,3}|.)", re.DOTALL | re.ASCII)
_ESCAPES = {"\n": "", "a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_ESCAPES |= {character: character for character in "\\'\"/"}

_CONSTANTS = {"True": "true", "False": "false", "None": "null", "true": "true", "false": "false", "null": "null"}
_JSON_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)
_INTEGER = re.compile(r"[+-]?(?:\d[\d_]*|0[xX][\da-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+)", re.ASCII)
_FLOAT = re.compile(r"([+-]?)(\d[\d_]*)?\.?(\d[\d_]*)?([eE][+-]?\d+)?", re.ASCII)
# Of a number that JSON would write otherwise.
_MAX_DIGITS = 100


class _Comes(Enum):
    """What a value goes on with."""

    ITEM = auto()
    KEY = auto()
    COLON = auto()
    COMMA = auto()
    NOTHING = auto()


class _Json:
    """The JSON of one value, mark by mark; what cannot come next is refused and changes nothing."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.comes = _Comes.ITEM
        self._closing: list[str] = []
        self._comma = ""

    @property
    def is_whole(self) -> bool:
        return self.comes is _Comes.NOTHING

    def mark(self, mark: str) -> bool:
        inner = self._closing[-1] if self._closing else ""
        if mark in _CLOSING and self.comes is _Comes.ITEM:
            self.text += self._comma, _JSON[mark]
            self._closing.append(_CLOSING[mark])
            self._comma = ""
            if mark == "{":
                self.comes = _Comes.KEY
        elif mark == inner and (
            self.comes in (_Comes.COMMA, _Comes.KEY) or (self.comes is _Comes.ITEM and mark != "}")
        ):
            self.text.append(_JSON[self._closing.pop()])
            self.comes = _Comes.COMMA if self._closing else _Comes.NOTHING
        elif mark == "," and self.comes is _Comes.COMMA:
            self.comes, self._comma = _Comes.KEY if inner == "}" else _Comes.ITEM, ", "
        elif mark == ":" and self.comes is _Comes.COLON:
            self.text.append(": ")
            self.comes, self._comma = _Comes.ITEM, ""
        else:
            return False
        return True

    def scalar(self, literal: str) -> None:
        if self.comes is _Comes.KEY:
            self.text += self._comma, literal if literal[0] == '"' else f'"{literal}"'
            self.comes = _Comes.COLON
        else:
            self.text += self._comma, literal
            self.comes = _Comes.COMMA if self._closing else _Comes.NOTHING


class PythonValues(Parser):
    def python_value(self, sink: Sink) -> Waiting[bool]:
        """Give the value that comes next to `sink`. False: the text ends in it, or it is none."""
        value = _Json()
        while True:
            at = self._at
            while (match := _MARK.match(self._text, at)) and value.mark(match[1]):
                at = match.end()
            self.take(at - self._at)
            if value.is_whole:
                break
            sink("".join(value.text))
            value.text.clear()
            yield from self.skip_space()
            first = yield from self.peek()
            if first in _MARKS and value.mark(first):
                self.take(1)
                continue
            if first in _MARKS or value.comes not in (_Comes.ITEM, _Comes.KEY):
                break
            if first in _STRINGS:
                literal = yield from self.python_string()
            else:
                word = yield from self.span(WORD)
                literal = scalar(word)
                self.drop(word if literal is None else "")
            if literal is None:
                break
            value.scalar(literal)
        sink("".join(value.text))
        return value.is_whole

    def python_string(self) -> Waiting[str | None]:
        """The JSON of the string that comes next; None: the text ends in it."""
        quote = self.take(1)
        pieces: list[str] = []
        while True:
            pieces.append((yield from self.span(_STRINGS[quote])))
            if not (yield from self.wait()):
                return None
            if self._text.startswith(quote, self._at):
                self.take(1)
                return string(_unescaped("".join(pieces)))
            # A backslash; what it escapes is still to come.
            pieces.append(self.take(1))
            if (yield from self.wait()):
                pieces.append(self.take(1))


def scalar(word: str) -> str | None:
    """The JSON of a constant or a number; None for any other word."""
    if word in _CONSTANTS:
        return _CONSTANTS[word]
    if _JSON_NUMBER.fullmatch(word):
        return word
    if len(word) > _MAX_DIGITS:
        return None
    try:
        if _INTEGER.fullmatch(word):
            return str(int(word, 0 if word.lstrip("+-")[1:2].isalpha() else 10))
        if (number := _FLOAT.fullmatch(word)) and (number[2] or number[3]):
            sign, whole, fraction, exponent = (part or "" for part in number.groups())
            digits = f"{'-' if sign == '-' else ''}{int(whole or '0')}.{(fraction or '0').replace('_', '')}"
            return digits + exponent
    except ValueError:
        # Underscores where Python has none.
        pass
    return None


def _unescaped(text: str) -> str:
    text = _ESCAPE.sub(_character, text)
    # Halves of a pair, as JSON writes what is beyond sixteen bits, make one character; half a pair is none.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _character(escape: re.Match[str]) -> str:
    code = escape[1]
    if code[0] in "xuU" and len(code) > 1:
        number = int(code[1:], 16)
        return chr(number) if number <= 0x10FFFF else escape[0]
    if code.isdecimal():
        return chr(int(code, 8)) if code[0] in "01234567" else escape[0]
    return _ESCAPES.get(code, escape[0])
