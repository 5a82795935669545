"""Harmony, the format of gpt-oss: messages in channels. It parts thought, answer and calls, with or without tools.

    <|channel|>analysis<|message|>I need the time.<|end|><|start|>assistant<|channel|>commentary to=functions.get_time
    <|constrain|>json<|message|>{"zone": "CET"}<|call|>

`analysis` is thought, `final` the answer. `commentary` to a recipient is a call, to nobody a preamble that the user
sees. The recipient may also stand before <|channel|>. The template has written the first <|start|>assistant.
Between <|end|> and <|message|> all is header, however badly written; a header without a message is dropped. What
others are made to say in the model's text (a tool, a user) is dropped too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from .base import Parser, Sink, Waiting
from .sections import json_arguments

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = (_START, _CHANNEL, "<|end|>", "<|call|>", "<|return|>")
_MARKS = (*_ENDS, _CONSTRAIN, _MESSAGE)
_OUR_CHANNEL = f"assistant{_CHANNEL}"
# With these a text may begin that has a header, though no mark has come yet.
_LEADS = (" to=", "to=", "assistant to=", _OUR_CHANNEL)
_RECIPIENT = re.compile(r"\bto=(\S*)")
_CHANNELS = re.compile("analysis|commentary|final")
_FUNCTIONS = "functions."
_OTHERS = ("user", "system", "developer", "tool", _FUNCTIONS)
# Recipients that are no tool.
_PEOPLE = ("assistant", "user", "all")


class _Header(NamedTuple):
    channel: str
    recipient: str
    is_ours: bool


class Harmony(Parser):
    def run(self) -> Waiting[None]:
        lead = yield from self.next_is(*_LEADS)
        if lead == _OUR_CHANNEL:
            mark: str | None = _CHANNEL
        elif lead:
            mark = yield from self._message(lead)
        else:
            mark = yield from self._words(self.content)
        while mark is not None:
            mark = yield from self._message()

    def _message(self, lead: str = "") -> Waiting[str | None]:
        """Read a header and its message. Returns the mark behind, which is taken."""
        header = [lead]
        mark = yield from self.until(_MARKS, header.append)
        # Without any mark that a header has, what looked like the lead of one was text.
        sink = self.content if lead and mark not in (_CHANNEL, _CONSTRAIN, _MESSAGE) else self.drop
        while mark in (_CHANNEL, _CONSTRAIN):
            header.append(" ")
            mark = yield from self.until(_MARKS, header.append)
        if mark != _MESSAGE:
            sink("".join(header))
            return mark
        return (yield from self._body(_parsed("".join(header))))

    def _body(self, header: _Header) -> Waiting[str | None]:
        channel, recipient, is_ours = header
        sink = self.reasoning if channel == "analysis" else self.content
        if not is_ours:
            sink = self.drop
        elif recipient and recipient not in _PEOPLE:
            name = recipient.removeprefix(_FUNCTIONS)
            space = ""
            is_call = channel not in ("analysis", "final")
            if not is_call and (name != recipient or name in self.tools):
                # Models err about the channel of a call, and leave recipients on thoughts.
                space = yield from self.skip_space()
                is_call = (yield from self.peek()) == "{"
            if is_call and name:
                self.start_call(name)
                mark = yield from json_arguments(self, _ENDS)
                return mark or (yield from self.until(_ENDS, self.drop))
            if is_call:
                sink = self.drop
            sink(space)
        return (yield from self._words(sink))

    def _words(self, sink: Sink) -> Waiting[str | None]:
        mark = yield from self.until(_MARKS, sink)
        while mark in (_CONSTRAIN, _MESSAGE):
            mark = yield from self.until(_MARKS, sink)
        return mark


def _parsed(header: str) -> _Header:
    found = _RECIPIENT.search(header)
    words = header[: found.start()] + header[found.end() :] if found else header
    channel = _CHANNELS.search(words)
    return _Header(
        channel.group() if channel else "",
        found.group(1) if found else "",
        is_ours=not header.lstrip().startswith(_OTHERS),
    )
