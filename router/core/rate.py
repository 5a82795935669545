"""How fast a queue drains."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

# A rate that was measured over less than this says little.
_LEAST_S = 1.0


@dataclass(slots=True)
class DrainRate:
    """Dispatches a second over the time in which somebody waited, with fading weight over the last `window_s` of it.

    Time in which nobody waits neither counts nor fades: what is dispatched then shows how much was asked for, not how
    much could be served.
    """

    window_s: float = 10.0
    # Seconds in which somebody waited, up to `_at`.
    _waited_s: float = field(init=False, default=0.0)
    _at: float = field(init=False, default=0.0)
    _is_waited_for: bool = field(init=False, default=False)
    # Dispatches, each faded by the waited time since.
    _level: float = field(init=False, default=0.0)

    def dispatched(self, *, now: float) -> None:
        """Counts if somebody waited just before."""
        if self._is_waited_for:
            self._move(now)
            self._level += 1.0

    def waits(self, somebody: bool, *, now: float) -> None:
        """Whether somebody waits from now on."""
        if not (somebody or self._is_waited_for):
            return
        self._move(now)
        self._is_waited_for = somebody

    def per_second(self, *, now: float) -> float:
        """0.0 while there was no dispatch; a young series is averaged over its own age, at least one second."""
        self._move(now)
        age = max(_LEAST_S, self._waited_s)
        return self._level / (self.window_s * (1.0 - exp(-age / self.window_s)))

    def _move(self, now: float) -> None:
        seconds = max(0.0, now - self._at)
        if self._is_waited_for:
            self._waited_s += seconds
            self._level *= exp(-seconds / self.window_s)
        self._at = max(self._at, now)
