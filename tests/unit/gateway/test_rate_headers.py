"""What callers are told of their limits."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.quota.calls import Standing, Verdict
from gateway.core.quota.policy import Bound, Kind
from gateway.core.quota.rate_headers import duration, limit_error, rate_headers, store_away_error
from inferway.errors import Reason

REQUESTS = Bound("t", Kind.REQUESTS_PER_MINUTE, 60)
KEY_REQUESTS = Bound("k:a", Kind.REQUESTS_PER_MINUTE, 10)
TOKENS = Bound("t", Kind.TOKENS_PER_MINUTE, 1_000_000)
DAY = Bound("m:small-*", Kind.TOKENS_PER_DAY, 5_000_000)
PARALLEL = Bound("t", Kind.PARALLEL_REQUESTS, 4)
ANYHOW = random.Random(0)


def refused(bound: Bound, used: int, wait_ms: int) -> Verdict:
    return Verdict(False, [Standing(used, wait_ms)], 0, wait_ms)


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"), (17, "17ms"), (999, "999ms"), (1_000, "1s"), (1_500, "1.5s"), (59_999, "59.999s"),
        (60_000, "1m0s"), (360_000, "6m0s"), (90_951, "1m30.951s"), (93_780_250, "26h3m0.25s"), (3_600_000, "1h0m0s"),
    ],
)  # fmt: skip
def test_durations_are_written_as_openai_does(milliseconds: int, text: str) -> None:
    """Whole units, without zeros at the end."""
    assert duration(milliseconds) == text


def test_headers_are_those_of_the_tightest_limit() -> None:
    """Of requests and of tokens the one with least left; tokens are whole, and nothing is below 0."""
    bounds = (REQUESTS, KEY_REQUESTS, PARALLEL, TOKENS, DAY)
    standings = [
        Standing(55, 50_000), Standing(4, 9_000), Standing(4, 1_000), Standing(250_400, 360),
        Standing(9_000_000, 7_200_000),
    ]  # fmt: skip
    assert rate_headers(bounds, standings) == {
        "x-ratelimit-limit-requests": "60",
        "x-ratelimit-remaining-requests": "5",
        "x-ratelimit-reset-requests": "50s",
        "x-ratelimit-limit-tokens": "5000",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "2h0m0s",
    }
    assert rate_headers(bounds[3:4], standings[3:4])["x-ratelimit-remaining-tokens"] == "749"
    assert rate_headers((PARALLEL,), standings[2:3]) == rate_headers((), ()) == {}


def test_a_rate_limit() -> None:
    """429 with the limit, its amount and what is used, and when to come back."""
    error = limit_error(
        (KEY_REQUESTS, TOKENS), Verdict(False, [Standing(10, 2_000), Standing(0, 0)], 0, 1_200), rng=ANYHOW
    )
    assert error.reason is Reason.RATE_LIMITED
    assert "the limit of requests per minute of this API key is 10, and 10 are used" in error.message
    headers = error.headers()
    assert headers["Retry-After"] == "2"
    assert 1_200 <= int(headers["retry-after-ms"]) <= 1_320
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert headers["x-ratelimit-remaining-tokens"] == "1000"
    assert "x-should-retry" not in headers


def test_the_headers_are_of_the_limit_that_failed() -> None:
    """Also where another has less left, and where it is one of requests in parallel."""
    standings = [Standing(60, 5_000), Standing(10, 2_000), Standing(4, 1_000)]
    bounds = (REQUESTS, KEY_REQUESTS, PARALLEL)
    for failed, limit in ((0, "60"), (1, "10"), (2, "4")):
        error = limit_error(bounds, Verdict(False, standings, failed, 1_000), rng=ANYHOW)
        assert error.headers()["x-ratelimit-limit-requests"] == limit


def test_a_budget() -> None:
    """429 of another type, which clients are told not to repeat."""
    error = limit_error((DAY,), refused(DAY, 5_000_999, 7_200_000), rng=ANYHOW)
    assert error.reason is Reason.INSUFFICIENT_QUOTA
    assert "tokens per day of the tenant for models 'small-*' is 5000, and 5000 are used" in error.message
    assert "2h0m0s" in error.message
    assert error.headers()["x-should-retry"] == "false"
    assert "Retry-After" not in error.headers()


def test_a_budget_that_is_only_held_is_a_rate_limit() -> None:
    """It comes back when the requests under way end."""
    error = limit_error((DAY,), refused(DAY, 5_000_000, 1_000), rng=ANYHOW)
    assert error.reason is Reason.RATE_LIMITED
    assert "x-should-retry" not in error.headers()


def test_the_store_is_away() -> None:
    """503 with a time, not the same for all."""
    times = {store_away_error(rng=random.Random(seed)).headers()["retry-after-ms"] for seed in range(20)}
    assert store_away_error(rng=ANYHOW).status == 503
    assert all(1000 <= int(text) <= 2000 for text in times)
    assert len(times) > 10


@given(st.integers(1, 60_000), st.integers(0, 2**32))
def test_jitter(wait_ms: int, seed: int) -> None:
    """Never sooner than there is room, a tenth or a second later at most, and within the window."""
    error = limit_error((REQUESTS,), refused(REQUESTS, 60, wait_ms), rng=random.Random(seed))
    told_ms = int(error.headers()["retry-after-ms"])
    assert wait_ms <= told_ms <= min(60_000, wait_ms + 1 + min(1_000, wait_ms // 10))
    assert 1 <= int(error.headers()["Retry-After"]) <= 60
