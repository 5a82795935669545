"""Scorers: what it costs to place the request at each candidate. The least sum wins; units are each scorer's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from inferway.rendezvous import ranked

from ..fleet import Floats
from .candidates import Candidates

# Share of an engine's time that the answers of a full batch take from prompts that are computed beside them.
DECODE_SHARE = 0.5


class Scorer(Protocol):
    def costs(self, candidates: Candidates) -> Floats:
        """One for each candidate, in an array of their own; less is better."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Milliseconds that others take: prompts before this one, answers beside both, and a slot where the batch is full.

    A full batch makes prompts slower by `decode_share`, this one as well. Memory does not come into it: without room
    for the request a worker is no candidate.
    """

    decode_share: float = DECODE_SHARE

    def costs(self, candidates: Candidates) -> Floats:
        now, num_choices = candidates.now, candidates.request.num_choices
        beside = self.decode_share * now.crowding * (now.pending_tokens + candidates.uncached_tokens)
        costs = (now.pending_tokens + beside) * now.ms_per_token
        if now.batch_room.min() < num_choices:
            costs += np.maximum(0.0, num_choices - now.batch_room) * now.slot_ms
        return costs


@dataclass(frozen=True, slots=True)
class Work:
    """Milliseconds that the worker computes for the prompt, and what they cost whoever comes behind it.

    A millisecond costs 1 + price * u / (1 - u) at the fleet's utilisation u, as in a queue where later work waits for
    earlier work: an idle fleet spreads prompts, a busy one sends them to their caches.
    """

    price: float = 2.0
    # Utilisation counts up to here: estimates are rough, and the price has a pole at 1.
    most_utilisation: float = 0.8

    def costs(self, candidates: Candidates) -> Floats:
        utilisation = min(self.most_utilisation, candidates.pool.utilisation)
        factor = 1.0 + self.price * utilisation / (1.0 - utilisation)
        return factor * candidates.uncached_tokens * candidates.now.ms_per_token


@dataclass(frozen=True, slots=True)
class Load:
    """Requests that the worker has."""

    def costs(self, candidates: Candidates) -> Floats:
        return candidates.now.load.copy()


@dataclass(frozen=True, slots=True)
class Prefix:
    """Share of the prompt that is not cached."""

    def costs(self, candidates: Candidates) -> Floats:
        return candidates.uncached_tokens / candidates.request.prompt_tokens


@dataclass(frozen=True, slots=True)
class KvUtilisation:
    """Share of the KV cache that is in use or promised; 0 where its size is unknown."""

    def costs(self, candidates: Candidates) -> Floats:
        return np.minimum(1.0, candidates.now.kv_share)


@dataclass(frozen=True, slots=True)
class Adapter:
    """0 where a request with the same adapter (MODEL:ADAPTER) runs, so that it is spread over few batches, else 1.

    For a model itself all cost the same.
    """

    def costs(self, candidates: Candidates) -> Floats:
        model = candidates.request.model
        if ":" not in model:
            return np.zeros(len(candidates))
        return np.array([0.0 if worker.books.runs(model) else 1.0 for worker in candidates.workers()])


@dataclass(frozen=True, slots=True)
class Session:
    """Place in the session's own order of the workers (rendezvous hashing); 0 for requests without a session.

    A worker that comes or goes moves only the sessions that it gets or had.
    """

    def costs(self, candidates: Candidates) -> Floats:
        session = candidates.request.session
        if not session:
            return np.zeros(len(candidates))
        names = [worker.worker_id for worker in candidates.workers()]
        places = {name: place for place, name in enumerate(ranked(session.to_bytes(8, "big"), names))}
        return np.array([places[name] for name in names], np.float64)
