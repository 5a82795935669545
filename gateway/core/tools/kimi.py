"""Kimi K2: calls between marks that are special tokens, within a section. The id of a call tells its name.

    <|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:0<|tool_call_argument_begin|>{"zone": "CET"}
    <|tool_call_end|><|tool_calls_section_end|>

An id is functions.NAME:INDEX. Models copy what the history has, so where a client has changed ids they also write
functions_NAME_INDEX, functionsNAMEINDEX, NAME:INDEX, or an id that says nothing, with the name among the arguments.
The tools on offer decide which reading is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from .base import Tools, Waiting
from .json_call import ARGUMENTS, NAME
from .sections import SectionParser, json_arguments
from .structural import CallForm

_CALL, _CALL_END = "<|tool_call_begin|>", "<|tool_call_end|>"
_ARGUMENTS_BEGIN = "<|tool_call_argument_begin|>"
_ID = re.compile(r"(?:functions\.)?([\w.-]+):\d+")
_REGULAR = "functions."
_HEADER = re.compile(r"[^<{]*")
_PREFIXES = ("functions.", "functions_", "functions:", "functions", "")
# More digits at the end of an id are no index.
_INDEX_DIGITS = 4


class KimiK2(SectionParser):
    opening = "<|tool_calls_section_begin|>"
    call_id_style = "kimi"
    forms = (CallForm(trigger=_CALL, begin=f"{_CALL}functions.NAME:", index_end=_ARGUMENTS_BEGIN, end=_CALL_END),)
    section_begins = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>")
    section_ends = ("<|tool_calls_section_end|>", "<|tool_call_section_end|>")
    call_begins = (_CALL,)
    marks = (*section_begins, *section_ends, *call_begins, _ARGUMENTS_BEGIN, _CALL_END)

    def __init__(self, tools: Tools) -> None:
        self._ids: set[str] = set()
        super().__init__(tools)

    def call(self) -> Waiting[str | None]:
        yield from self.skip_space()
        call_id = (yield from self.span(_HEADER)).strip()
        # At the end of the text more of the id may have been to come.
        if not call_id or not (yield from self.peek()):
            self.drop(call_id)
            return None
        name = self._name(call_id)
        is_certain = bool((yield from self.next_is(_ARGUMENTS_BEGIN)))
        if name:
            self.start_call(name, self._own_id(call_id, name))
            return (yield from json_arguments(self, self.marks))
        if is_certain:
            yield from self._unnamed_call(call_id)
        else:
            self.drop(call_id)
        return None

    def _name(self, call_id: str) -> str:
        """Empty: the id tells none."""
        if offered := [reading for reading in _readings(call_id) if reading in self.tools]:
            return max(offered, key=len)
        match = _ID.fullmatch(call_id)
        return match.group(1) if match else ""

    def _own_id(self, call_id: str, name: str) -> str:
        """The model's id where it is regular and no other call's; else there is none."""
        match = _ID.fullmatch(call_id)
        if not match or not call_id.startswith(_REGULAR) or match.group(1) != name or call_id in self._ids:
            return ""
        self._ids.add(call_id)
        return call_id

    def _unnamed_call(self, call_id: str) -> Waiting[None]:
        """Arguments are kept until all are there: a name may be among them. A sole tool on offer needs none."""
        pieces: list[str] = []
        yield from self.skip_space()
        is_whole = yield from self.json_value(pieces.append)
        text = "".join(pieces)
        name, arguments = _with_name(text) if is_whole else ("", text)
        if name not in self.tools:
            name, arguments = next(iter(self.tools)) if len(self.tools) == 1 else "", text
        if not name or not text.startswith("{"):
            self.drop(f"{call_id} {text}")
            return
        self.start_call(name)
        self.arguments(arguments)
        self.end_call(is_whole=is_whole)


def _readings(call_id: str) -> Iterator[str]:
    """The names that an id can mean."""
    for prefix in _PREFIXES:
        if not call_id.startswith(prefix):
            continue
        stem = call_id[len(prefix) :]
        yield stem
        for _ in range(_INDEX_DIGITS):
            if not stem[-1:].isdigit():
                break
            stem = stem[:-1]
            yield stem
            if stem.endswith((":", "_", ".", "-")):
                yield stem[:-1]


def _with_name(text: str) -> tuple[str, str]:
    """The name among arguments, and the arguments without it; an empty name where there is none."""
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return "", text
    if not isinstance(members, dict) or not isinstance(name := members.pop(NAME, None), str):
        return "", text
    nested = [members[key] for key in ARGUMENTS & members.keys() if isinstance(members[key], dict)]
    return name, json.dumps(nested[0] if nested else members, ensure_ascii=False)
