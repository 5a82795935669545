"""Pickers: one of the candidates, by their costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..fleet import Floats
from .candidates import Candidates

# Costs that differ by less than this share count as equal: what they are made of are estimates.
_TIE_SHARE = 1e-9


class Rng(Protocol):
    def random(self) -> float:
        """A number in [0, 1)."""


class Picker(Protocol):
    def pick(self, candidates: Candidates, costs: Floats, rng: Rng) -> int:
        """The number of one candidate, of which there is at least one."""


@dataclass(frozen=True, slots=True)
class Least:
    """The least cost; ties are broken at random."""

    def pick(self, candidates: Candidates, costs: Floats, rng: Rng) -> int:
        least = costs.item(costs.argmin())
        (best,) = (costs <= least + abs(least) * _TIE_SHARE).nonzero()
        return best.item(int(rng.random() * len(best)) if len(best) > 1 else 0)


@dataclass(frozen=True, slots=True)
class Softmax:
    """The less the cost the likelier, more so at a lower `temperature`; costs count by their place between the
    least and the most."""

    temperature: float = 0.1

    def pick(self, candidates: Candidates, costs: Floats, rng: Rng) -> int:
        span = float(costs.max() - costs.min())
        relative = (costs - costs.min()) / (span or 1.0)
        weights = np.exp(-relative / self.temperature)
        return int(np.searchsorted(np.cumsum(weights), rng.random() * weights.sum(), side="right"))


@dataclass(frozen=True, slots=True)
class Random:
    """Any of them, whatever the costs."""

    def pick(self, candidates: Candidates, costs: Floats, rng: Rng) -> int:
        return int(rng.random() * len(candidates))


@dataclass(frozen=True, slots=True)
class PowerOfTwo:
    """Of two drawn at random the one that costs less."""

    def pick(self, candidates: Candidates, costs: Floats, rng: Rng) -> int:
        first = int(rng.random() * len(candidates))
        if len(candidates) == 1:
            return first
        second = (first + 1 + int(rng.random() * (len(candidates) - 1))) % len(candidates)
        return first if costs[first] <= costs[second] else second


@dataclass(slots=True)
class RoundRobin:
    """Each in turn, in the order of their ids, whatever the costs."""

    _last: str = ""

    def pick(self, candidates: Candidates, costs: Floats, rng: Rng) -> int:
        names = [worker.worker_id for worker in candidates.workers()]
        behind = [name for name in names if name > self._last]
        self._last = min(behind or names)
        return names.index(self._last)
