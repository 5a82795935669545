"""The rules of other routers as scorers, for comparison. What they do not say they leave to chance.

Each is what its project documents; the simulator shows how they do, and golden decisions in the tests pin them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..fleet import Floats
from .candidates import Candidates


@dataclass(frozen=True, slots=True)
class SmgCacheAware:
    """SGLang's model gateway: the shortest queue while loads are out of balance; else whoever has most of the prompt,
    if that is more than `match_threshold` of it; else whoever has the smallest tree."""

    match_threshold: float = 0.3
    balance_abs: float = 64.0
    balance_rel: float = 1.5

    def costs(self, candidates: Candidates) -> Floats:
        load = candidates.now.load
        most, least = float(load.max()), float(load.min())
        if most - least > self.balance_abs and most > self.balance_rel * least:
            return load.copy()
        matched = candidates.cached_tokens / candidates.request.prompt_tokens
        if matched.max() > self.match_threshold:
            return -matched
        return np.array([candidates.pool.indexed_blocks(worker) for worker in candidates.workers()], np.float64)


@dataclass(frozen=True, slots=True)
class DynamoKv:
    """NVIDIA Dynamo's, in KV blocks: prefill blocks in flight and of this prompt less those that are cached, and
    decode blocks."""

    overlap_score_credit: float = 1.0
    prefill_load_scale: float = 1.0

    def costs(self, candidates: Candidates) -> Floats:
        now, request = candidates.now, candidates.request
        block_size = candidates.worker(0).info.models[request.model]
        prefill = now.pending_tokens + request.prompt_tokens - self.overlap_score_credit * candidates.cached_tokens
        return (self.prefill_load_scale * np.maximum(prefill, 0.0) + now.kv_promised) / block_size


@dataclass(frozen=True, slots=True)
class LlmdWeighted:
    """llm-d's weighted sum: the depth of the queue, the use of the KV cache, the prefix."""

    queue: float = 2.0
    kv_utilisation: float = 2.0
    prefix: float = 3.0

    def costs(self, candidates: Candidates) -> Floats:
        now = candidates.now
        queued = np.maximum(0.0, -now.batch_room)
        span = float(queued.max() - queued.min())
        queue_score = (queued.max() - queued) / span if span else np.ones(len(candidates))
        kv_score = 1.0 - np.minimum(1.0, now.kv_share)
        prefix_score = candidates.cached_tokens / candidates.request.prompt_tokens
        return -(self.queue * queue_score + self.kv_utilisation * kv_score + self.prefix * prefix_score)


@dataclass(frozen=True, slots=True)
class LlmdTokenLoad:
    """llm-d's token load with look-ahead: prompt tokens in flight and of this prompt, less those that are cached."""

    most_tokens: float = 4_194_304.0

    def costs(self, candidates: Candidates) -> Floats:
        return np.minimum(1.0, (candidates.now.pending_tokens + candidates.uncached_tokens) / self.most_tokens)


@dataclass(frozen=True, slots=True)
class AibrixPrefix:
    """AIBrix's prefix cache: the fewest requests while loads are out of balance; else the best match among those that
    have no more requests than the mean and a standard deviation."""

    balance_abs: float = 8.0
    deviations: float = 1.0

    def costs(self, candidates: Candidates) -> Floats:
        load = candidates.now.load
        if load.max() - load.min() > self.balance_abs:
            return load.copy()
        is_busy = load > load.mean() + self.deviations * load.std()
        order = np.lexsort((load, -candidates.cached_tokens, is_busy))
        costs = np.empty(len(candidates))
        costs[order] = np.arange(len(candidates))
        return costs
