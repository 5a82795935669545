"""Log-probabilities that go out with the text they belong to.

Text may be held back: for the rest of a character, or because it might become a stop string. A token's log-probability
waits as long as any of its text does. Of what a stop string hides nothing is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from ..engine import TokenLogprob
from .detokenize import TokenTable

# What stands for a probability of nothing, which JSON has no number for.
LEAST = -9999.0


class ScoredToken(NamedTuple):
    """A token by its bytes; `logprob` None for a prompt's first one; `top` is (bytes, logprob), best first."""

    token: bytes
    logprob: float | None
    top: Sequence[tuple[bytes, float]] = ()


def scored(score: TokenLogprob, table: TokenTable) -> ScoredToken:
    logprob = None if score.logprob is None else _finite(score.logprob)
    return ScoredToken(
        table.spelling(score.token_id),
        logprob,
        [(table.spelling(token_id), _finite(value)) for token_id, value in score.top],
    )


class HeldLogprobs:
    """Those of one choice, in characters of its text."""

    __slots__ = ("_decoded", "_shown", "_table", "_waiting")

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._decoded = 0
        self._shown = 0
        # Where a token's text begins and ends.
        self._waiting: deque[tuple[int, int, ScoredToken]] = deque()

    def add(self, score: TokenLogprob, characters: int, *, has_begun: bool) -> None:
        """A token that has brought `characters` of whole text, and the beginning of one more."""
        start, self._decoded = self._decoded, self._decoded + characters
        self._waiting.append((start, self._decoded + has_begun, scored(score, self._table)))

    def take(self, characters: int) -> list[ScoredToken]:
        """`characters` more are shown; the tokens whose text is complete with them."""
        self._shown += characters
        waiting, taken = self._waiting, []
        while waiting and waiting[0][1] <= self._shown:
            taken.append(waiting.popleft()[2])
        return taken

    def finish(self, characters: int, *, stopped: bool) -> list[ScoredToken]:
        """The last ones: all, or, at a stop string, those of which something is shown."""
        self._shown += characters
        taken = [token for start, _, token in self._waiting if not stopped or start < self._shown]
        self._waiting.clear()
        return taken


def _finite(logprob: float) -> float:
    """NaN counts as the least."""
    return logprob if logprob > LEAST else LEAST
