"""A model's chat template, rendered as the reference renders it (transformers' apply_chat_template)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any

import minijinja

from inferway.errors import ApiError, Reason

from .marks import marks_of_template

_GENERATION_BLOCK = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")
# Steps of the template engine: a template that loops without end stops here.
_TEMPLATE_FUEL = 50_000_000
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
# Noncharacters, for which no text has a use: they may stand for characters of callers while a template is rendered.
RESERVED = "".join(map(chr, range(0xFDD0, 0xFDF0)))


class ChatTemplate:
    """Sandboxed: it sees plain data and has no way out of the engine."""

    # What it writes between the texts of callers (marks.py), its BOS and EOS included.
    marks: frozenset[str]
    uses_tools: bool

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """`now` dates the prompts of templates that ask for the day; without it they find no strftime_now.

        Raises minijinja.TemplateError for a template that does not parse.
        """
        self._environment = minijinja.Environment(
            trim_blocks=True, lstrip_blocks=True, pycompat=True, fuel=_TEMPLATE_FUEL, debug=False
        )
        self._environment.add_global("raise_exception", _refuse)
        if now is not None:
            self._environment.add_global("strftime_now", lambda form: now().strftime(form))
        self._environment.add_filter("tojson", _to_json)
        self._environment.add_template("chat", _GENERATION_BLOCK.sub("", source))
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self.marks = marks_of_template(source) | {token for token in (bos_token, eos_token) if token}
        self.uses_tools = "tools" in self._environment.undeclared_variables_in_template("chat")
        self.takes_arguments_as_text = not self._renders_call({}) and self._renders_call("{}")

    def _renders_call(self, arguments: Any) -> bool:
        """Whether a conversation with an earlier call can be rendered, its arguments given so."""
        function = {"name": "f", "arguments": arguments}
        call = {"id": "abcdefghi", "type": "function", "function": function}
        conversation: list[dict[str, Any]] = [
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "x", "tool_call_id": "abcdefghi", "name": "f"},
        ]
        try:
            self.render(conversation)
        except ApiError:
            return False
        return True

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt's text, with the generation prompt at its end.

        Raises ApiError (CONVERSATION_NOT_SUPPORTED) with the template's own sentence, never with its source.
        """
        context = {**(template_kwargs or {}), **self._tokens, "add_generation_prompt": True}
        try:
            return self._environment.render_template("chat", messages=messages, tools=tools, **context)
        except TemplateRefusal as refusal:
            message = str(refusal)
        except minijinja.TemplateError as error:
            message = f"The chat template of this model cannot render the conversation ({error.kind})."
        except (TypeError, ValueError, RecursionError):
            message = "The chat template of this model cannot render the conversation."
        raise ApiError(Reason.CONVERSATION_NOT_SUPPORTED, message, "messages")


class TemplateRefusal(Exception):
    """What a template says through raise_exception."""


def _refuse(message: str) -> None:
    raise TemplateRefusal(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Sequence[str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Templates expect plain JSON: not ASCII only unless asked for, and without HTML escapes."""
    pair = None if separators is None else (separators[0], separators[1])
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=pair, sort_keys=sort_keys)
    # Not by json itself, which would not spare the reserved characters.
    return _NOT_ASCII.sub(_escaped, text) if ensure_ascii else text


def _escaped(match: re.Match[str]) -> str:
    character = match.group()
    return character if character in RESERVED else json.dumps(character)[1:-1]
