"""Which cell range serves which choice, and what of its prompt is already there. Pure.

A slot is one sequence of the KV cache. It keeps its tokens after its choice has ended, until another choice needs
the room: that is the prefix cache. Prefixes are looked for under the choice's own salt only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferway.errors import ApiError

from ...engine import GenerateRequest, TokenLogprob

if TYPE_CHECKING:
    from .grammar import Grammar


@dataclass(slots=True, eq=False)
class Choice:
    """One admitted request. At `limit` completion tokens it ends by LENGTH; 0: only its prompt is computed."""

    request: GenerateRequest
    prompt: list[int]
    limit: int
    arrival: int
    # Monotonic seconds: submitted, and its first prompt token about to be computed.
    came_at: float = 0.0
    began_at: float = 0.0
    completion: list[int] = field(default_factory=list)
    # None until its first prompt token is about to be computed.
    cached_tokens: int | None = None
    # Of the prompt's tokens so far, where they are asked for.
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    # Its grammar is being compiled: all of its prompt but the last token may be computed.
    is_blocked: bool = False
    grammar: Grammar | None = None
    aborted: bool = False
    # Why it ends with the step, unless it is aborted.
    error: ApiError | None = None

    @property
    def is_leaving(self) -> bool:
        return self.aborted or self.error is not None

    @property
    def rank(self) -> tuple[int, int]:
        """Smaller is sooner: higher priority, then earlier arrival."""
        return -self.request.priority, self.arrival


@dataclass(slots=True, eq=False)
class Slot:
    """`tokens` is what the KV cache holds for the sequence `index`; all of them were computed under `salt`."""

    index: int
    tokens: list[int] = field(default_factory=list)
    salt: bytes = b""
    used_at: int = 0
    choice: Choice | None = None

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens of its choice that are still to be computed."""
        return max(0, len(self.choice.prompt) - len(self.tokens)) if self.choice is not None else 0

    @property
    def has_work(self) -> bool:
        """Something of its choice can be computed, or said, in a step."""
        choice = self.choice
        if choice is None:
            return False
        return not choice.is_blocked or choice.is_leaving or len(self.tokens) < len(choice.prompt) - 1

    def reusable(self, choice: Choice) -> int:
        """Tokens at the head of the prompt that this slot holds; the last one is always computed, for its logits.

        None for a prompt whose log-probabilities are asked for: all of its logits are needed.
        """
        if self.salt != choice.request.cache_salt or choice.request.prompt_logprobs:
            return 0
        return min(common_prefix(self.tokens, choice.prompt), len(choice.prompt) - 1)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix; some 20 microseconds for 1,000 tokens."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    return next(i for i in range(length) if left[i] != right[i])


def place(free: Sequence[Slot], choice: Choice) -> Slot:
    """The free slot for `choice`: the one with the longest common prefix, unless too much else would be lost.

    A slot most of whose tokens do not belong to this prompt is left to the conversation that may come back for
    them; the least recently used one is taken instead, into which the prefix can be copied.
    """
    best = max(free, key=lambda slot: (slot.reusable(choice), -slot.used_at))
    if 0 < len(best.tokens) <= 2 * best.reusable(choice):
        return best
    return min(free, key=lambda slot: (bool(slot.tokens), slot.used_at, slot.index))
