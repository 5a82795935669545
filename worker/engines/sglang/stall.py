"""Whether SGLang's scheduler still moves: a process that is frozen or spins has not ended, and says nothing. Pure.

It moves when an output comes or any of its own numbers changes. A part of a prompt is computed in one step without a
sign of life, so the limit grows by several times what that should take; not before the speed is known.
"""

from __future__ import annotations

# A prompt pass beside running choices, or at the end of a long context, is slower than the mean.
_SLOWEST = 4.0


class StallWatch:
    def __init__(self, limit_s: float, *, step_tokens: int) -> None:
        """`step_tokens` is the most prompt tokens that one step computes; 0: all of them."""
        self._limit_s = limit_s
        self._step_tokens = step_tokens
        self._progress: object = None
        self._moved_at = 0.0

    def look(
        self, progress: object, *, is_busy: bool, uncached_tokens: int, tokens_per_s: float, now: float
    ) -> float | None:
        """Seconds without a change of `progress` while there was work, once they are too many; else None."""
        if not is_busy or progress != self._progress:
            self._progress, self._moved_at = progress, now
            return None
        pass_tokens = min(uncached_tokens, self._step_tokens) if self._step_tokens else uncached_tokens
        allowance_s = _SLOWEST * pass_tokens / tokens_per_s if tokens_per_s else 0.0
        silent_s = now - self._moved_at
        return silent_s if silent_s > self._limit_s + allowance_s else None
