"""Log-probabilities from logits, against the plain formula."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.engines.llamacpp.scores import score

VALUES = st.lists(
    st.one_of(st.floats(-30, 30, width=32), st.sampled_from([0.0, 1.0, -math.inf])), min_size=1, max_size=700
).filter(lambda values: max(values) > -math.inf)


@given(VALUES, st.integers(0, 699), st.integers(0, 25))
def test_numbers_and_order(values: list[float], place: int, top: int) -> None:
    """Numbers are log-softmax; the best come first, of equals the smaller id, and the token is told in any case."""
    place %= len(values)
    given = score(np.array(values, np.float32), place, top)
    total = math.log(math.fsum(math.exp(value) for value in values))
    ranked = sorted(range(len(values)), key=lambda one: (-values[one], one))[:top]
    assert given.token_id == place
    assert given.logprob == pytest.approx(min(0.0, values[place] - total), abs=1e-5)
    assert [token for token, _ in given.top] == ranked
    assert [value for _, value in given.top] == pytest.approx(
        [min(0.0, values[one] - total) for one in ranked], abs=1e-5
    )


def test_a_whole_distribution_sums_to_one() -> None:
    """All tokens together are certain."""
    logits = np.random.default_rng(1).normal(0, 5, 49_152).astype(np.float32)
    assert math.fsum(math.exp(value) for _, value in score(logits, 0, logits.size).top) == pytest.approx(1, abs=1e-6)


def test_the_logits_stay_as_they_are() -> None:
    """They may be a view of memory that others read."""
    logits = np.random.default_rng(2).normal(0, 5, 1_000).astype(np.float32)
    before = logits.copy()
    score(logits, 3, 5)
    assert (logits == before).all()


def test_a_certain_token_has_zero() -> None:
    """Never more, whatever rounding does."""
    logits = np.full(1_000, -math.inf, np.float32)
    logits[7] = 12.3456
    assert score(logits, 7, 1).logprob == 0.0
    assert score(logits, 8, 1).logprob == -math.inf
