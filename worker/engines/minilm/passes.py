"""Which of the waiting texts the next pass takes. Pure.

A pass reads every weight from memory once, which is most of what a short text costs: short texts share a pass. Beyond
some hundred tokens sharing gains nothing and only makes others wait.
"""

from __future__ import annotations

from dataclasses import dataclass

# Tokens of a pass that is worth its weights, and those beyond which sharing gains nothing, with the bundled model:
# `python -m benchmarks.embeddings` has texts alone and together.
SMALL_PASS_TOKENS = 32
FULL_PASS_TOKENS = 128


@dataclass(frozen=True, slots=True)
class _Text:
    key: int
    tokens: int
    priority: int


class Passes:
    """Texts that wait, by a key of the caller's that grows; higher priorities first, else in their order."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Text] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: int, tokens: int, priority: int) -> None:
        self._waiting[key] = _Text(key, tokens, priority)

    def discard(self, key: int) -> None:
        """Unknown keys are ignored."""
        self._waiting.pop(key, None)

    def take(self, free_threads: int) -> list[int]:
        """The keys of a pass for one of the free threads; empty when nothing waits.

        What waits is shared among them, and a pass has at most FULL_PASS_TOKENS, or one text.
        """
        share = sum(text.tokens for text in self._waiting.values()) // free_threads
        budget = min(FULL_PASS_TOKENS, max(SMALL_PASS_TOKENS, share))
        taken: list[int] = []
        for text in sorted(self._waiting.values(), key=lambda text: (-text.priority, text.key)):
            budget -= text.tokens
            if taken and budget < 0:
                break
            taken.append(text.key)
        for key in taken:
            del self._waiting[key]
        return taken
