"""How long an answer will be where the caller does not say: what nine tenths of a tenant's recent answers stayed under.

A histogram in steps of a twelfth for each tenant and model. When it holds enough its counts are halved, so that the
last few hundred answers count most. Looking and counting cost O(steps in use), some tens.
"""

from __future__ import annotations

import math
from collections import OrderedDict

# Until a tenant's answers from a model are known.
UNKNOWN_TOKENS = 256
_KNOWN_FROM = 10
_SHARE = 0.9
_STEP = math.log(13 / 12)
_ROUNDING = 1e-6
_HALVE_AT = 256.0
# What is left of a count that has been halved so often is noise.
_LEAST = 0.25
_MOST_PAIRS = 10_000


class ExpectedOutput:
    """Completion tokens by tenant and model; those that were not asked for longest are forgotten."""

    def __init__(self, *, most_pairs: int = _MOST_PAIRS) -> None:
        self._most = most_pairs
        self._counts: OrderedDict[tuple[str, str], dict[int, float]] = OrderedDict()

    def observe(self, tenant_id: str, model: str, completion_tokens: int) -> None:
        """Count an answer that came to its end by itself."""
        pair = (tenant_id, model)
        counts = self._counts.get(pair)
        if counts is None:
            if len(self._counts) >= self._most:
                self._counts.popitem(last=False)
            counts = self._counts[pair] = {}
        else:
            self._counts.move_to_end(pair)
        step = math.ceil(math.log(completion_tokens) / _STEP) if completion_tokens > 1 else 0
        counts[step] = counts.get(step, 0.0) + 1
        if sum(counts.values()) >= _HALVE_AT:
            self._counts[pair] = {each: count / 2 for each, count in counts.items() if count / 2 >= _LEAST}

    def expected(self, tenant_id: str, model: str, *, most: int) -> int:
        """Tokens, at least 1 and at most `most`, which the model or the caller sets."""
        counts = self._counts.get((tenant_id, model), {})
        total = sum(counts.values())
        if total < _KNOWN_FROM:
            return max(1, min(UNKNOWN_TOKENS, most))
        seen = 0.0
        for step in sorted(counts):
            seen += counts[step]
            if seen >= _SHARE * total:
                return max(1, min(math.floor(math.exp(step * _STEP) + _ROUNDING), most))
        raise AssertionError("the steps hold the total")
