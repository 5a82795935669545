"""From a conversation to token ids, and the wall between the text of callers and the marks of the template.

What a caller writes never becomes a control token, nor the ids of a structural mark (marks.py), also where it does so
only together with its neighbours: with the next message, with the template's own text, or after a filter of the
template has trimmed it. And it changes nothing else: a conversation that spells no mark has the ids of its reference
rendering, encoded whole; in one that does, every id outside those spellings is the reference's.

How: the first and the last character of the marks ("<" and ">", mostly) are swapped in all text of callers for
noncharacters that stand for them, the template is rendered, and they are swapped back. A mark in the result that has
one of the swapped characters in it is not the template's alone: it is taken out, leaving a gap that splits the text as
a control token would, and its own ids are put there, cut so that they are ordinary text.

Not handled, because nobody can tell it from what the template means: a mark that a template composes around a
caller's word ("<|" + name + "|>"). Templates that look for a mark in a caller's text (such as </think> in an
assistant's) do not find it. Noncharacters of callers become U+FFFD where they are needed here.

Cost: mostly the tokenizer's, which remembers the pieces between control tokens (docs/design/request-path.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from inferway.errors import ApiError, invalid

from .chat_template import RESERVED, ChatTemplate
from .tokenizer import GAP, Tokenizer

assert RESERVED[-1] == GAP


class Rendered(NamedTuple):
    """Text in which each GAP stands for the next of the marks that callers have `spelled`."""

    text: str
    spelled: Sequence[str] = ()


class PromptBuilder:
    """Template and tokenizer of one model; `template` None: it takes no conversations."""

    def __init__(
        self, template: ChatTemplate | None, tokenizer: Tokenizer, structural_marks: Sequence[str] = ()
    ) -> None:
        """`structural_marks`: those that the worker names beside the template's own. Raises ValueError."""
        self._template = template
        self._tokenizer = tokenizer
        own = template.marks if template is not None else ()
        normalized = tokenizer.normalized if tokenizer.normalizes_control_tokens else None
        self._wall = _Wall({*tokenizer.control_tokens, *structural_marks, *own}, normalized)

    @property
    def takes_chat(self) -> bool:
        return self._template is not None

    @property
    def takes_arguments_as_text(self) -> bool:
        """Whether the template writes the arguments of earlier calls as they are, and fails with objects."""
        return self._template is not None and self._template.takes_arguments_as_text

    @property
    def uses_tools(self) -> bool:
        return self._template is not None and self._template.uses_tools

    def build_text(self, text: str, *, framed: bool = True) -> list[int]:
        """Token ids of a text that no template renders; `framed` by what the tokenizer puts around it, such as BOS.

        All of it is a caller's: a control token that it spells is text. Who means control tokens sends ids.
        """
        inner = self.encode(self._wall.take_out(self._wall.swapped(text)))
        if not framed:
            return inner
        return [*self._tokenizer.prefix_ids, *inner, *self._tokenizer.suffix_ids]

    def text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids)

    def build(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Token ids of the conversation; the model takes some. Raises ApiError (400)."""
        return self.encode(self.render(messages, tools=tools, template_kwargs=template_kwargs))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        template_kwargs: Mapping[str, Any] | None = None,
    ) -> Rendered:
        """The first half of `build`."""
        assert self._template is not None
        swapped = self._wall.swapped
        try:
            messages, tools, template_kwargs = swapped(messages), swapped(tools), swapped(template_kwargs)
        except RecursionError:
            raise invalid(None, "The body is nested too deeply.") from None
        try:
            text = self._template.render(messages, tools=tools, template_kwargs=template_kwargs)
        except ApiError as error:
            error.message = self._wall.restored(error.message)
            raise
        return self._wall.take_out(text)

    def encode(self, rendered: Rendered) -> list[int]:
        """The second half of `build`; for long texts it takes milliseconds, in which other threads run."""
        text, spelled = rendered
        return self._tokenizer.encode_with(text, spelled) if spelled else self._tokenizer.encode(text)


class _Wall:
    """Swaps the characters of marks in the text of callers, and finds what they spell. See the module's docstring."""

    def __init__(self, marks: Iterable[str], normalized: Callable[[str], str] | None) -> None:
        """`normalized` is given where a text is normalized before control tokens are looked for in it.

        Raises ValueError when the marks begin and end with too many different characters.
        """
        self._normalized = normalized
        ordered = sorted(filter(None, marks), key=len, reverse=True)
        # One for each first character, for which a text is searched at the speed of memory.
        self._marks = [
            re.compile("|".join(re.escape(mark) for mark in ordered if mark[0] == first))
            for first in sorted({mark[0] for mark in ordered})
        ]
        # Marks without any punctuation are swapped only where they are spelled whole.
        guarded = {mark: [character for character in mark if _may_stand_in(character)] for mark in ordered}
        characters = sorted({side for found in guarded.values() for side in (*found[:1], *found[-1:])})
        words = [mark for mark, found in guarded.items() if not found]
        if len(characters) + len(words) >= len(RESERVED):
            raise ValueError("the structural marks of the model begin and end with too many different characters")
        # No character of a name is swapped.
        self._spares_names = not words
        stand_ins = iter(RESERVED)
        self._swaps = [(character, next(stand_ins)) for character in characters]
        self._swaps += [(word, next(stand_ins) + word[1:]) for word in words]
        self._back = [(stand_in[0], what[0]) for what, stand_in in self._swaps]
        reserved = [stand_in for stand_in, _ in self._back]
        self._forged = re.compile("[" + "".join(map(re.escape, reserved)) + GAP + "]")
        self._stand_in = re.compile("[" + "".join(map(re.escape, reserved)) + "]") if reserved else re.compile(r"(?!)")

    def swapped(self, value: Any) -> Any:
        """A copy of plain data with the characters of marks swapped. May raise RecursionError."""
        if isinstance(value, str):
            if not value.isascii() and self._forged.search(value):
                value = self._forged.sub("\ufffd", value)
            if self._normalized is not None:
                seen = self._normalized(value)
                value = seen if any(marks.search(seen) for marks in self._marks) else value
            for what, stand_in in self._swaps:
                if what in value:
                    value = value.replace(what, stand_in)
            return value
        if isinstance(value, Mapping):
            return {
                key if self._spares_names and key.isidentifier() else self.swapped(key): (
                    item if key == "role" and item in _ROLES else self.swapped(item)
                )
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.swapped(item) for item in value]
        return value

    def restored(self, text: str) -> str:
        if not text.isascii():
            for stand_in, character in self._back:
                text = text.replace(stand_in, character)
        return text

    def take_out(self, swapped: str) -> Rendered:
        """The text that callers and template meant, with a GAP for each mark that callers had a part in."""
        text = self.restored(swapped)
        if text == swapped:
            return Rendered(text)
        pieces: list[str] = []
        spelled: list[str] = []
        at = 0
        matched = 0
        found = (match for marks in self._marks for match in marks.finditer(text))
        for match in sorted(found, key=lambda match: match.start()):
            if match.start() < matched:
                continue  # inside another
            matched = match.end()
            if self._stand_in.search(swapped, match.start(), match.end()):
                pieces.append(text[at : match.start()])
                spelled.append(match.group())
                at = match.end()
        pieces.append(text[at:])
        return Rendered(GAP.join(pieces), spelled)


# Which templates compare with; one that is a control token all the same is the template's to write.
_ROLES = ("system", "user", "assistant", "tool", "function")


def _may_stand_in(character: str) -> bool:
    """Whether templates do not look for this character, as they do for letters, quotes and white space."""
    return not (character.isalnum() or character.isspace() or character in "_\"'\\")
