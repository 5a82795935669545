"""Which of the workers with room gets a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from .messages import Request
from .worker import Worker

# A full batch of decoding requests takes about this share of the engine's time from a prefill beside it.
_DECODE_SHARE = 0.5
# Costs that differ by less than this share count as equal: the inputs are estimates.
_TIE_SHARE = 1e-9


class Rng(Protocol):
    def random(self) -> float:
        """A number in [0, 1)."""


class Pick(NamedTuple):
    worker: Worker
    cached_tokens: int
    # Predicted seconds from dispatch to first token.
    ttft_s: float


class Policy(Protocol):
    def pick(self, request: Request, workers: Sequence[Worker], matched: Mapping[str, int], rng: Rng) -> Pick:
        """Choose one of `workers`, of which there is at least one and all have room.

        `matched` has the number of cached blocks by worker id; absent workers have none.
        """


class PredictedTtft:
    """The worker with the least predicted time to first token; ties are broken at random.

    What has to be computed before the first token (prompts in flight and this one's uncached rest) over the worker's
    prefill rate, stretched by the share that decoding takes from a crowded batch, plus the wait for a slot where the
    batch is full. Known weakness: it prices a cache miss only for the request that suffers it, not for those that
    wait behind it, so affinity does not grow with load.
    """

    def pick(self, request: Request, workers: Sequence[Worker], matched: Mapping[str, int], rng: Rng) -> Pick:
        best: Worker | None = None
        best_cost, best_cached, ties = 0.0, 0, 1
        for worker in workers:
            blocks = matched.get(worker.worker_id, 0)
            # The last token of a prompt is always computed: its logits give the first token.
            cached = min(blocks * worker.info.models[request.model], request.prompt_tokens - 1) if blocks else 0
            cost = _predict(worker, request, cached)
            if best is None or cost < best_cost - best_cost * _TIE_SHARE:
                best, best_cost, best_cached, ties = worker, cost, cached, 1
            elif cost <= best_cost + best_cost * _TIE_SHARE:
                # Each of n tied workers is kept with probability 1/n, whatever their order.
                ties += 1
                if rng.random() * ties < 1.0:
                    best, best_cost, best_cached = worker, cost, cached
        assert best is not None, "pick needs a candidate"
        return Pick(best, best_cached, best_cost)


def _predict(worker: Worker, request: Request, cached_tokens: int) -> float:
    books = worker.books
    tokens = books.pending_tokens + request.prompt_tokens - cached_tokens
    load, batch = books.load, worker.info.max_running
    seconds = tokens / worker.prefill_rate * (1.0 + _DECODE_SHARE * min(1.0, load / batch))
    beyond = load + request.num_choices - batch
    if beyond > 0:
        seconds += worker.mean_lease_s * beyond / batch
    return seconds
