"""DeepSeek: calls between marks that are special tokens, within a section.

V3.1, V3.2-Exp and Terminus write the name and the arguments:
    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_time<｜tool▁sep｜>{"zone": "CET"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>
V3 and R1 write what is called, its name, and the arguments in a fence:
    <｜tool▁call▁begin｜>function<｜tool▁sep｜>get_time
    ```json
    {"zone": "CET"}
    ```<｜tool▁call▁end｜>

What follows <｜tool▁sep｜> tells the two apart, so one parser reads both: R1's smaller relatives are often served under
the name of the other form. They also write the marks as plain text, with _ or a space for ▁.
"""

from __future__ import annotations

import re

from .base import Waiting
from .sections import SectionParser, json_arguments
from .structural import CallForm


def _spellings(mark: str) -> tuple[str, ...]:
    return tuple(f"<｜{mark.replace(' ', gap)}｜>" for gap in ("▁", "_", " ", "\\_"))


_SEPARATORS = _spellings("tool sep")
_CALLS = _spellings("tool call begin")
_CALL_ENDS = _spellings("tool call end")
_FENCE = "```"
# What is called, in the older form.
_TYPE = "function"
_HEADER = re.compile(r'[^<`{"\n]*')


class DeepSeek(SectionParser):
    opening = "<｜tool▁calls▁begin｜>"
    forms = (CallForm(trigger=_CALLS[0], begin=f"{_CALLS[0]}NAME{_SEPARATORS[0]}", end=_CALL_ENDS[0]),)
    section_begins = _spellings("tool calls begin")
    section_ends = _spellings("tool calls end")
    call_begins = _CALLS
    marks = (*section_begins, *section_ends, *call_begins, *_CALL_ENDS, *_SEPARATORS)

    def call(self) -> Waiting[str | None]:
        name = yield from self._header()
        is_certain = bool((yield from self.next_is(*_SEPARATORS)))
        rest = ""
        if is_certain:
            rest = yield from self._header()
            if name in ("", _TYPE) and rest:
                name, rest = rest, ""
        # At the end of the text more of the name may have been to come.
        if not name or not (is_certain or name in self.tools) or not (yield from self.peek()):
            self.drop(f"{name} {rest}".strip())
            return None
        self.start_call(name)
        if rest:
            self.end_call(is_whole=False)
            self.drop(rest)
            return None
        if (yield from self.next_is(_FENCE)):
            yield from self.next_is("json")
        mark = yield from json_arguments(self, self.marks)
        yield from self.skip_space()
        yield from self.next_is(_FENCE)
        return mark

    def _header(self) -> Waiting[str]:
        yield from self.skip_space()
        header = yield from self.span(_HEADER)
        yield from self.skip_space()
        return header.strip()


class DeepSeekV3(DeepSeek):
    forms = (
        CallForm(
            trigger=_CALLS[0],
            begin=f"{_CALLS[0]}{_TYPE}{_SEPARATORS[0]}NAME\n{_FENCE}json\n",
            end=f"\n{_FENCE}{_CALL_ENDS[0]}",
        ),
    )
