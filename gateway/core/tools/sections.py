"""Calls between marks that are special tokens of a family, often within a section that has marks of its own."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from .base import Parser, Waiting
from .json_call import NO_ARGUMENTS, json_string


class SectionParser(Parser):
    """Reads sections and calls; a call may stand outside a section, and may lack the mark behind it.

    A mark anywhere is markup and never shown. Behind a section text is content again; within one only calls count.
    """

    ends_thought = True
    section_begins: Sequence[str]
    section_ends: Sequence[str]
    call_begins: Sequence[str]
    # All marks of the family, those above included.
    marks: Sequence[str]

    @abstractmethod
    def call(self) -> Waiting[str | None]:
        """Read the call that comes next, if one does: its own mark may be forgotten where a section begins.

        Returns the mark of the family that was taken last; None: whatever comes next is not taken.
        """

    def run(self) -> Waiting[None]:
        in_section = False
        mark = yield from self.until(self.marks, self.content)
        while mark is not None:
            following = None
            if mark in self.section_begins or mark in self.call_begins:
                in_section = in_section or mark in self.section_begins
                following = yield from self.call()
            elif mark in self.section_ends:
                in_section = False
            mark = following or (yield from self.until(self.marks, self.drop if in_section else self.content))


def json_arguments(parser: Parser, ends: Sequence[str]) -> Waiting[str | None]:
    """Read the JSON object that comes next as the arguments of the open call, and end the call.

    An object within a string is read as that object. Where one of `ends` comes instead, it is taken and returned, and
    the call has no arguments. Where anything else comes, it is left there, and the call is not whole.
    """
    yield from parser.skip_space()
    following = yield from parser.peek()
    if following == "{":
        is_whole = yield from parser.json_value(parser.arguments)
        parser.end_call(is_whole=is_whole)
    elif following == '"':
        text = yield from json_string(parser)
        parser.arguments(NO_ARGUMENTS if text == "" else text or "")
        parser.end_call(is_whole=text is not None and (not text or text.lstrip().startswith("{")))
    elif mark := (yield from parser.next_is(*ends)):
        parser.arguments(NO_ARGUMENTS)
        parser.end_call()
        return mark
    else:
        parser.end_call(is_whole=False)
    return None
