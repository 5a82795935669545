"""What the text of an answer is made of, once it has been taken apart: thought, answer and tool calls."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; `index` counts the calls of an answer. `call_id` is the model's own, where the format has one."""

    index: int
    name: str
    call_id: str = ""


@dataclass(frozen=True, slots=True)
class Arguments:
    """A piece of the arguments of the newest call: joined they are the JSON text that the model wrote or meant."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnd:
    """`is_whole` False: the text ended, or stopped to make sense, within the call."""

    index: int
    is_whole: bool


@dataclass(frozen=True, slots=True)
class Dropped:
    """Markup that is no call: reported, never shown."""

    text: str


Text = Content | Reasoning
Event = Text | CallStart | Arguments | CallEnd | Dropped
