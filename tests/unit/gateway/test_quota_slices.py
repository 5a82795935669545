"""What a gateway grants alone while the store is away: never more than the stated bound, whoever had what before."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.quota.books import QuotaBooks
from gateway.core.quota.calls import Reserve, Settlement, Standing
from gateway.core.quota.policy import Bound, Kind
from gateway.core.quota.slices import Slices

MINUTE_MS = 60_000
NOW_MS = 1_790_000_000_000


def call(number: int, *bounds: Bound, units: int = 0) -> Reserve:
    return Reserve(str(number), bounds, units, lease_ms=600_000)


def granted_alone(slices: Slices, gateways: int, *bounds: Bound, units: int = 0, now_ms: int = NOW_MS) -> int:
    """How many requests get through, one after the other, none of them ending."""
    number = 1000  # no id is there twice
    while slices.reserve("t", call(number, *bounds, units=units), gateways=gateways, now_ms=now_ms).is_granted:
        number += 1
    return number - 1000


@pytest.mark.parametrize(
    ("kind", "most", "gateways", "expected"),
    [
        (Kind.REQUESTS_PER_MINUTE, 20, 2, 10),
        (Kind.PARALLEL_REQUESTS, 9, 3, 3),
        # More gateways than requests: one each, or nobody could say who may.
        (Kind.REQUESTS_PER_MINUTE, 3, 5, 1),
        # The last one may pass the bound, as everywhere.
        (Kind.TOKENS_PER_MINUTE, 1000, 2, 6),
        (Kind.TOKENS_PER_DAY, 1000, 1, 10),
    ],
)
def test_a_slice_is_the_bound_divided(kind: Kind, most: int, gateways: int, expected: int) -> None:
    units = 90 if kind is Kind.TOKENS_PER_MINUTE else 100
    assert granted_alone(Slices(), gateways, Bound("t", kind, most), units=units) == expected


def test_what_was_granted_before_counts() -> None:
    """The gateway's own use is part of its slice, from the last minute too."""
    slices, bound = Slices(), Bound("t", Kind.REQUESTS_PER_MINUTE, 20)
    for number in range(7):
        slices.granted("t", call(100 + number, bound), [Standing(number + 1, MINUTE_MS)], now_ms=NOW_MS)
    assert granted_alone(slices, 2, bound) == 3


def test_a_budget_is_divided_by_what_was_left_of_it() -> None:
    """800 of 1,000 were spent by all when the store was last heard of, 100 of these here: two get 100 more each."""
    slices, bound = Slices(), Bound("t", Kind.TOKENS_PER_MONTH, 1000)
    one = call(1, bound, units=100)
    slices.granted("t", one, [Standing(800, 1)], now_ms=NOW_MS)
    slices.settle("t", Settlement("1", [bound], 100), now_ms=NOW_MS)
    assert granted_alone(slices, 2, bound, units=50) == 2


@given(
    before=st.lists(st.integers(0, 4), max_size=60),
    gateways=st.integers(1, 5),
    most=st.integers(1, 40),
    wait_ms=st.integers(0, 2 * MINUTE_MS),
)
def test_the_bound_of_overspend(before: list[int], gateways: int, most: int, wait_ms: int) -> None:
    """In any minute around the switch: the bound times (2 - 1/gateways) and a request a gateway at most."""
    bound = Bound("t", Kind.REQUESTS_PER_MINUTE, most)
    shared, all_slices = QuotaBooks(), [Slices() for _ in range(gateways)]
    granted_before = 0
    for number, who in enumerate(before):
        one = call(number, bound)
        verdict = shared.reserve(one, now_ms=NOW_MS)
        if verdict.is_granted:
            granted_before += 1
            all_slices[who % gateways].granted("t", one, verdict.standings, now_ms=NOW_MS)
    after = sum(granted_alone(slices, gateways, bound, now_ms=NOW_MS + wait_ms) for slices in all_slices)
    if wait_ms < MINUTE_MS:
        assert granted_before + after <= most * (2 - 1 / gateways) + gateways
    else:
        assert after <= most + gateways


def test_a_budget_that_has_begun_anew_is_divided_whole() -> None:
    """Others had spent all of yesterday's, or of last month's: that says nothing of the one that runs."""
    for kind, later_ms in ((Kind.TOKENS_PER_DAY, 86_400_000), (Kind.TOKENS_PER_MONTH, 31 * 86_400_000)):
        slices, bound = Slices(), Bound("t", kind, 1000)
        slices.granted("t", call(1, bound, units=100), [Standing(1000, 1)], now_ms=NOW_MS)
        slices.settle("t", Settlement("1", [bound], 100), now_ms=NOW_MS)
        assert granted_alone(slices, 2, bound, units=100) == 0
        assert granted_alone(slices, 2, bound, units=100, now_ms=NOW_MS + later_ms) == 5


def test_a_budget_that_others_have_spent_is_known_from_a_refusal() -> None:
    """Nothing had been spent when this gateway was last granted something, and all when it was refused."""
    slices, bound = Slices(), Bound("t", Kind.TOKENS_PER_DAY, 1000)
    slices.granted("t", call(1, bound, units=100), [Standing(100, 1)], now_ms=NOW_MS)
    slices.settle("t", Settlement("1", [bound], 100), now_ms=NOW_MS)
    slices.refused("t", call(2, bound, units=100), [Standing(1000, 1)], now_ms=NOW_MS)
    assert granted_alone(slices, 2, bound, units=100) == 0
