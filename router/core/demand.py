"""How much work arrives lately."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp


@dataclass(slots=True)
class Demand:
    """Tokens a second, averaged over roughly the last `window_s` with exponentially fading weight."""

    window_s: float = 10.0
    _level: float = field(init=False, default=0.0)
    _at: float = field(init=False, default=0.0)
    _since: float | None = field(init=False, default=None)

    def add(self, tokens: float, *, now: float) -> None:
        self._level = self._faded(now) + tokens
        self._at = now
        if self._since is None:
            self._since = now

    def per_second(self, *, now: float) -> float:
        """0.0 before the first tokens; a young series is averaged over its own age, at least one second."""
        if self._since is None:
            return 0.0
        age = max(1.0, now - self._since)
        return self._faded(now) / (self.window_s * (1.0 - exp(-age / self.window_s)))

    def _faded(self, now: float) -> float:
        return self._level * exp(-max(0.0, now - self._at) / self.window_s)
