"""Conversations of a known size for benchmarks: prose of many words, the same for the same seed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from typing import Any

Message = dict[str, str]

_SYLLABLES = "an be con de en for ge ha in ka lo mar ne on per qui re sta ti un ver wa ing tion ment ous ly er".split()
_COMMON = "the of and to in a is that it for was on are with as be at by this not have from or an which you we".split()
_ENDS = (", ", ". ", ".\n", "; ", "?\n\n")


def prose(rng: random.Random, tokens: int, count: Callable[[str], int]) -> str:
    """Some `tokens` tokens of text that no other call has made."""
    piece = "".join(
        (rng.choice(_COMMON) if rng.random() < 0.5 else "".join(rng.choices(_SYLLABLES, k=rng.choice((1, 2, 2, 3)))))
        + (rng.choice(_ENDS) if rng.random() < 0.1 else " ")
        for _ in range(tokens)
    )
    return piece[: round(len(piece) * tokens / count(piece))]


def turns(rng: random.Random, count: int, tokens: int, length: Callable[[str], int]) -> list[Message]:
    """A user's and an assistant's messages in turn, beginning and ending with a user's."""
    roles = ("user", "assistant")
    return [{"role": roles[turn % 2], "content": prose(rng, tokens, length)} for turn in range(2 * count - 1)]


def chat_body(model: str, messages: Sequence[Message], **more: Any) -> bytes:
    return json.dumps({"model": model, "messages": messages, **more}).encode()
