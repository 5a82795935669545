"""The drain rate tells how fast a queue drains, not how much is asked for."""

from __future__ import annotations

import pytest

from router.core.rate import DrainRate


def drained(rate: DrainRate, *, start: float, seconds: float, per_second: float) -> float:
    """Somebody waits all the time; returns the end."""
    rate.waits(True, now=start)
    for index in range(1, round(seconds * per_second) + 1):
        rate.dispatched(now=start + index / per_second)
    rate.waits(False, now=start + seconds)
    return start + seconds


def test_nothing_is_known_at_first() -> None:
    rate = DrainRate()
    assert rate.per_second(now=5.0) == 0.0
    rate.waits(True, now=5.0)
    assert rate.per_second(now=50.0) == 0.0


@pytest.mark.parametrize("per_second", [0.5, 4.0, 100.0])
@pytest.mark.parametrize("seconds", [4.0, 30.0])
def test_it_is_dispatches_over_time(per_second: float, seconds: float) -> None:
    """Also of a young series, which is averaged over its own age."""
    rate = DrainRate()
    end = drained(rate, start=100.0, seconds=seconds, per_second=per_second)
    assert rate.per_second(now=end) == pytest.approx(per_second, rel=0.15)


def test_dispatches_that_nobody_waited_for_do_not_count() -> None:
    """An idle mesh that is asked for little is not slow."""
    rate = DrainRate()
    for second in range(100):
        rate.dispatched(now=float(second))
    assert rate.per_second(now=100.0) == 0.0


def test_time_in_which_nobody_waits_does_not_count() -> None:
    """What was measured stays true over a quiet hour, and a second rush goes on from there."""
    rate = DrainRate()
    end = drained(rate, start=0.0, seconds=20.0, per_second=8.0)
    assert rate.per_second(now=end + 3600.0) == pytest.approx(8.0, rel=0.05)
    end = drained(rate, start=end + 3600.0, seconds=1.0, per_second=8.0)
    assert rate.per_second(now=end) == pytest.approx(8.0, rel=0.05)


def test_it_follows_a_change() -> None:
    """Within some ten seconds of waiting the old rate has faded."""
    rate = DrainRate()
    end = drained(rate, start=0.0, seconds=60.0, per_second=10.0)
    end = drained(rate, start=end, seconds=30.0, per_second=1.0)
    assert rate.per_second(now=end) == pytest.approx(1.5, abs=0.3)


def test_a_standstill_lowers_it() -> None:
    """Waiting without dispatches is a rate that falls."""
    rate = DrainRate()
    end = drained(rate, start=0.0, seconds=60.0, per_second=10.0)
    rate.waits(True, now=end)
    readings = [rate.per_second(now=end + seconds) for seconds in (0.0, 10.0, 30.0)]
    assert readings == sorted(readings, reverse=True)
    assert readings[2] < 0.06 * readings[0]
