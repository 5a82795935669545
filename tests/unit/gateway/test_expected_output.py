"""How long an answer will be where nobody says."""

from __future__ import annotations

import random

from gateway.core.quota.expected import UNKNOWN_TOKENS, ExpectedOutput


def observed(lengths: list[int]) -> ExpectedOutput:
    expected = ExpectedOutput()
    for tokens in lengths:
        expected.observe("t", "m", tokens)
    return expected


def test_unknown_until_ten_answers_were_seen() -> None:
    """A tenant's first answers, or those of another model or tenant, say nothing."""
    expected = observed([5] * 9)
    assert expected.expected("t", "m", most=4096) == UNKNOWN_TOKENS
    expected.observe("t", "m", 5)
    assert expected.expected("t", "m", most=4096) == 5
    assert expected.expected("t", "other", most=4096) == expected.expected("u", "m", most=4096) == UNKNOWN_TOKENS


def test_at_most_what_the_model_gives_and_at_least_one() -> None:
    """Also of answers without a token."""
    assert ExpectedOutput().expected("t", "m", most=16) == 16
    assert observed([1000] * 20).expected("t", "m", most=100) == 100
    assert observed([0] * 20).expected("t", "m", most=100) == 1


def test_the_90th_percentile_of_recent_answers() -> None:
    """Within a twelfth above the exact one, whatever the lengths."""
    rng = random.Random(3)
    for draw in (lambda: rng.randrange(1, 2000), lambda: round(rng.lognormvariate(5, 1)), lambda: rng.choice((7, 900))):
        lengths = [max(1, draw()) for _ in range(200)]
        exact = sorted(lengths)[179]
        assert exact <= observed(lengths).expected("t", "m", most=10**9) <= exact * 13 / 12 + 1


def test_it_follows_a_change() -> None:
    """A few hundred answers after a tenant's use has changed nothing is left of what was before."""
    lengths = [2000] * 5000 + [100] * 1500
    assert 100 <= observed(lengths).expected("t", "m", most=10**6) <= 109


def test_its_size_is_bounded() -> None:
    """Those that were not used for longest are forgotten, and steps that are rare."""
    expected = ExpectedOutput(most_pairs=3)
    for name in "abcd":
        for _ in range(10):
            expected.observe(name, "m", 9)
    assert [expected.expected(name, "m", most=999) == UNKNOWN_TOKENS for name in "abcd"] == [True, False, False, False]
