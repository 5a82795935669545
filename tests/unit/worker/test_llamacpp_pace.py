"""The budget of a step follows the measured rate."""

from __future__ import annotations

import pytest

from worker.engines.llamacpp.pace import MIN_TOKENS, Pace


@pytest.mark.parametrize(
    ("rate", "others_decode", "budget"),
    [
        (200.0, False, 30),
        (200.0, True, 20),
        (10_000.0, False, 120),
        (1.0, True, MIN_TOKENS),
    ],
    ids=["a step's time", "less beside decoding", "at most the batch", "never nothing"],
)
def test_budget(rate: float, others_decode: bool, budget: int) -> None:
    """As many tokens as fit the time of a step, within bounds."""
    assert Pace(tokens_per_s=rate, max_tokens=120).budget(others_decode) == budget


def test_slower_at_once() -> None:
    """One slow step makes the next one short; one fast step does not make it long."""
    pace = Pace(tokens_per_s=200.0, max_tokens=120)
    pace.record(rows=30, prompt_tokens=30, seconds=0.6)
    assert pace.budget(False) == MIN_TOKENS
    pace.record(rows=30, prompt_tokens=30, seconds=0.03)
    assert pace.budget(False) < 120


def test_decoding_says_nothing() -> None:
    """Steps with hardly a prompt token do not change the rate."""
    pace = Pace(tokens_per_s=200.0, max_tokens=120)
    pace.record(rows=8, prompt_tokens=0, seconds=1.0)
    assert pace.tokens_per_s == 200.0
