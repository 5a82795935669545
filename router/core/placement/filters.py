"""Filters: who is out of the question while others are not. What would leave nobody leaves everybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .candidates import Candidates

Mask = NDArray[np.bool_]


class Filter(Protocol):
    def keep(self, candidates: Candidates) -> Mask:
        """True for each candidate that stays."""


@dataclass(frozen=True, slots=True)
class Spread:
    """No worker gets further ahead of the others than `factor` times their mean number of requests plus `slack`.

    Else every sibling of a hot prefix would go to whoever has it.
    """

    factor: float = 1.25
    slack: float = 2.0

    def keep(self, candidates: Candidates) -> Mask:
        added = candidates.request.num_choices
        mean = candidates.pool.mean_load + added / len(candidates.pool.workers)
        return candidates.now.load <= self.factor * mean + self.slack - added


@dataclass(frozen=True, slots=True)
class KvHeadroom:
    """Workers whose KV cache is promised beyond `limit` are left alone: what is running there will grow."""

    limit: float = 0.95

    def keep(self, candidates: Candidates) -> Mask:
        return candidates.now.kv_share <= self.limit


@dataclass(frozen=True, slots=True)
class Affinity:
    """llm-d's: those that have at least a share `hit` of the prompt, while they are not behind by `horizon_s`.

    Behind is who has more tokens in flight, the prompt's own included, than it prefills in that time.
    """

    hit: float = 0.8
    horizon_s: float = 14.0

    def keep(self, candidates: Candidates) -> Mask:
        now, request = candidates.now, candidates.request
        is_warm = candidates.cached_tokens >= self.hit * request.prompt_tokens
        behind_ms = (now.pending_tokens + candidates.uncached_tokens) * now.ms_per_token
        return is_warm & (behind_ms <= 1_000.0 * self.horizon_s)
