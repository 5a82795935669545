"""Log-probabilities from logits: a row of the vocabulary in, one number and the best of its row out. Pure."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ...engine import TokenLogprob

# Rows into which the vocabulary is folded to bound the best ones from below.
_FOLDS = 64


def score(logits: NDArray[np.float32], token_id: int, top: int) -> TokenLogprob:
    """How likely `token_id` was, with the `top` most likely ones; of equals the smaller id comes first.

    `logits` is not changed and not kept. A token that is masked out has -inf. 0.2 ms for a vocabulary of 49,152.
    """
    largest = float(logits.max())
    total = largest + math.log(float(np.exp(logits - largest).sum(dtype=np.float64)))
    best = [(place, _logprob(logits, place, total)) for place in _best(logits, top)] if top else []
    return TokenLogprob(token_id, _logprob(logits, token_id, total), best)


def _logprob(logits: NDArray[np.float32], token_id: int, total: float) -> float:
    """Rounding must not make a certain token more than certain; NaN stays NaN."""
    value = float(logits[token_id]) - total
    return 0.0 if value > 0.0 else value


def _best(logits: NDArray[np.float32], count: int) -> list[int]:
    count = min(count, logits.size)
    # The largest of each column of the folded vocabulary: `count` of them are at least as large as the least of those,
    # so what is smaller need not be sorted.
    columns = logits.size // _FOLDS
    folded = logits[: columns * _FOLDS].reshape(_FOLDS, columns).max(axis=0) if columns >= count else logits
    candidates = np.flatnonzero(logits >= np.partition(folded, -count)[-count])
    order = np.argsort(-logits[candidates], kind="stable")[:count]
    return [int(token_id) for token_id in candidates[order]]
