"""When a scheduler that says nothing counts as stuck."""

from __future__ import annotations

import pytest

from worker.engines.sglang.stall import StallWatch


def silence(*, limit_s: float = 10.0, uncached: int = 0, speed: float = 0.0, step_tokens: int = 8_000) -> float:
    """The first second, of a busy scheduler whose numbers do not change, at which it counts as stuck."""
    watch = StallWatch(limit_s, step_tokens=step_tokens)
    for now in range(10_000):
        found = watch.look("same", is_busy=True, uncached_tokens=uncached, tokens_per_s=speed, now=float(now))
        if found is not None:
            assert found == now
            return found
    raise AssertionError("never")


@pytest.mark.parametrize(
    ("case", "seconds"),
    [
        ({}, 11),
        ({"uncached": 4_000}, 11),  # no speed is known
        ({"uncached": 1_000, "speed": 1_000.0}, 15),
        ({"uncached": 100_000, "speed": 1_000.0}, 43),  # one step's share
        ({"uncached": 100_000, "speed": 1_000.0, "step_tokens": 0}, 411),
        ({"uncached": 0, "speed": 1_000.0}, 11),
    ],
)
def test_the_limit_grows_with_the_prompt_that_one_step_computes(case: dict[str, float], seconds: int) -> None:
    """A long prompt pass is no stall; what further steps compute does not count."""
    assert silence(**case) == seconds  # type: ignore[arg-type]


def test_whatever_moves_starts_the_time_anew() -> None:
    """An output or a number that changes is life; so is having nothing to do."""
    watch = StallWatch(10.0, step_tokens=0)

    def look(progress: int, now: float, *, is_busy: bool = True) -> float | None:
        return watch.look(progress, is_busy=is_busy, uncached_tokens=0, tokens_per_s=0.0, now=now)

    assert look(1, 0.0) is None
    assert look(2, 9.0) is None
    assert look(2, 19.0) is None
    assert look(2, 50.0, is_busy=False) is None
    assert look(2, 60.0) is None
    assert look(2, 61.0) == 11.0
