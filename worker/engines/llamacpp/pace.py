"""How much of a prompt a step may compute, so that steps stay short on any machine. Pure."""

from __future__ import annotations

# A step ends within about this time: what an abort waits for, and the gap in the tokens of those that decode.
STEP_S = 0.15
STEP_BESIDE_DECODING_S = 0.1
# Below this many rows a step's fixed costs outweigh its rows.
MIN_TOKENS = 8
# Weight of the newest step in the reported rate.
_NEWEST = 0.25


class Pace:
    """The measured rate of prompt tokens, and the budget that follows from it, `MIN_TOKENS` to `max_tokens`.

    The rate that is reported is a mean; the budget believes the last step where that was slower, for on a shared
    machine the cores go from one step to the next and come back slowly.
    """

    def __init__(self, *, tokens_per_s: float, max_tokens: int) -> None:
        self.tokens_per_s = tokens_per_s
        self._last = tokens_per_s
        self._max_tokens = max_tokens

    def budget(self, others_decode: bool) -> int:
        seconds = STEP_BESIDE_DECODING_S if others_decode else STEP_S
        return min(self._max_tokens, max(MIN_TOKENS, int(min(self.tokens_per_s, self._last) * seconds)))

    def record(self, *, rows: int, prompt_tokens: int, seconds: float) -> None:
        """Learn from a step of which `prompt_tokens` of the `rows` were of prompts; the others cost about as much."""
        if prompt_tokens >= MIN_TOKENS and seconds > 0:
            self._last = rows / seconds
            self.tokens_per_s += _NEWEST * (self._last - self.tokens_per_s)
