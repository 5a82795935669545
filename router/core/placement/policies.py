"""Policies: filters, weighted scorers and a picker put together, and the ones that have a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import NamedTuple

import numpy as np

from ..fleet import Floats
from ..messages import MOST_EXPLAINED, Considered
from ..worker import Worker
from .candidates import Candidates
from .filters import Affinity, Filter, KvHeadroom, Mask, Spread
from .pickers import Least, Picker, PowerOfTwo, Random, Rng, RoundRobin
from .rules import AibrixPrefix, DynamoKv, LlmdTokenLoad, LlmdWeighted, SmgCacheAware
from .scorers import DECODE_SHARE, Adapter, Load, Scorer, Session, Wait, Work

# Up to so many candidates a record keeps the costs of all, which is less work than finding the best of them.
_FEW = 64


class NamedFilter(NamedTuple):
    name: str
    filter: Filter


class WeightedScorer(NamedTuple):
    name: str
    weight: float
    scorer: Scorer


class Decision(NamedTuple):
    worker: Worker
    # Of the prompt, predicted.
    cached_tokens: int
    ttft_s: float
    considered: Considered


class Policy:
    def __init__(
        self, name: str, *, filters: Sequence[NamedFilter] = (), scorers: Sequence[WeightedScorer] = (), picker: Picker
    ) -> None:
        self.name = name
        self.filters = filters
        self.scorers = scorers
        self.picker = picker
        self._scorer_names = tuple(scorer.name for scorer in scorers)

    def decide(self, candidates: Candidates, rng: Rng) -> Decision:
        """Choose one of the candidates, of which there is at least one."""
        num_candidates = len(candidates)
        candidates, removed = self._filtered(candidates)
        terms = [_weighted(scorer.costs(candidates), weight) for _, weight, scorer in self.scorers]
        costs: Floats = reduce(add, terms) if terms else np.zeros(len(candidates))
        chosen = self.picker.pick(candidates, costs, rng)
        places, cached_tokens = candidates.places, candidates.cached_tokens
        if len(places) > _FEW:
            best = costs.argpartition(MOST_EXPLAINED)[:MOST_EXPLAINED]
            places, cached_tokens, terms = places[best], cached_tokens[best], [term[best] for term in terms]
        return Decision(
            worker=candidates.worker(chosen),
            cached_tokens=int(candidates.cached_tokens.item(chosen)),
            ttft_s=_ttft_s(candidates, chosen),
            considered=Considered(
                self.name,
                self._scorer_names,
                num_candidates,
                removed,
                names=candidates.pool.names,
                places=places,
                terms=terms,
                cached_tokens=cached_tokens,
            ),
        )

    def _filtered(self, candidates: Candidates) -> tuple[Candidates, dict[str, int]]:
        """Those that all filters leave, and how many each has taken out. One that would leave nobody takes nobody."""
        left, removed = len(candidates), {}
        stays: Mask | None = None
        for name, filter_ in self.filters:
            kept = filter_.keep(candidates)
            if stays is not None:
                kept &= stays
            count = int(np.count_nonzero(kept))
            if 0 < count < left:
                removed[name], left, stays = left - count, count, kept
        return (candidates.only(stays.nonzero()[0]) if stays is not None else candidates), removed


def _weighted(costs: Floats, weight: float) -> Floats:
    return costs if weight == 1.0 else weight * costs


def _ttft_s(candidates: Candidates, chosen: int) -> float:
    """Seconds to the first token, by what the scorers `wait` and `work` reckon with."""
    now = candidates.now
    tokens = now.pending_tokens.item(chosen) + candidates.uncached_tokens.item(chosen)
    beyond = max(0.0, candidates.request.num_choices - now.batch_room.item(chosen))
    beside = 1.0 + DECODE_SHARE * now.crowding.item(chosen)
    return (beside * tokens * now.ms_per_token.item(chosen) + beyond * now.slot_ms.item(chosen)) / 1_000.0


# Beside any rule that would send all siblings of a prefix to one worker: nobody gets twice the mean.
_GUARD = NamedFilter("spread", Spread(factor=1.9))


def _alone(name: str, scorer: Scorer, *filters: NamedFilter) -> Policy:
    return Policy(name, filters=[_GUARD, *filters], scorers=[WeightedScorer(name, 1.0, scorer)], picker=Least())


def _default() -> Policy:
    return Policy(
        "default",
        filters=[NamedFilter("kv_headroom", KvHeadroom()), NamedFilter("spread", Spread())],
        scorers=[WeightedScorer("wait", 1.0, Wait()), WeightedScorer("work", 1.0, Work())],
        picker=Least(),
    )


def _session() -> Policy:
    scorers = [WeightedScorer("session", 1.0, Session()), WeightedScorer("load", 0.001, Load())]
    return Policy("session", filters=[_GUARD], scorers=scorers, picker=Least())


def _lora() -> Policy:
    scorers = [WeightedScorer("adapter", 1.0, Adapter()), WeightedScorer("load", 0.001, Load())]
    return Policy("lora", filters=[_GUARD], scorers=scorers, picker=Least())


# A new one at each call: some pickers remember whom they took.
POLICIES: Mapping[str, Callable[[], Policy]] = {
    "default": _default,
    "round_robin": lambda: Policy("round_robin", picker=RoundRobin()),
    "random": lambda: Policy("random", picker=Random()),
    "least_requests": lambda: _alone("least_requests", Load()),
    "power_of_two": lambda: Policy("power_of_two", scorers=[WeightedScorer("load", 1.0, Load())], picker=PowerOfTwo()),
    "session": _session,
    "lora": _lora,
    "smg_cache_aware": lambda: _alone("smg_cache_aware", SmgCacheAware()),
    "dynamo_kv": lambda: _alone("dynamo_kv", DynamoKv()),
    "llmd_weighted": lambda: _alone("llmd_weighted", LlmdWeighted()),
    "llmd_sticky": lambda: _alone("llmd_sticky", LlmdTokenLoad(), NamedFilter("affinity", Affinity())),
    "aibrix_prefix": lambda: _alone("aibrix_prefix", AibrixPrefix()),
}


def policy_named(name: str) -> Policy:
    """A new instance. Raises LookupError with the names that there are."""
    make = POLICIES.get(name)
    if make is None:
        raise LookupError(f"there is no policy '{name}'; there are {', '.join(POLICIES)}")
    return make()
