"""What is left of a model's capacity."""

from __future__ import annotations

from math import inf

import pytest

from router.core.fleet import Reading
from router.core.headroom import Headroom, headroom


def reading(
    load: float = 0.0,
    *,
    is_open: bool = True,
    pending_tokens: float = 0.0,
    kv_promised: float = 0.0,
    kv_total: float = 1_000.0,
) -> Reading[float]:
    """A worker of 10 slots that computes 1,000 prompt tokens a second."""
    return Reading(
        is_open=float(is_open),
        load=load,
        slots=10.0,
        max_running=8.0,
        could_take=16.0,
        kv_total=kv_total,
        kv_promised=kv_promised,
        kv_growth_share=0.5,
        pending_tokens=pending_tokens,
        prefill_rate=1_000.0,
        mean_lease_s=1.0,
        trust=1.0,
    )


@pytest.mark.parametrize(
    ("why", "readings", "queued_tokens", "expected"),
    [
        ("nobody is there", [], 0, Headroom(0, 0.0, 0.0, 0.0, 0.0)),
        ("somebody waits and nobody is there", [], 5, Headroom(0, 0.0, 0.0, inf, 0.0)),
        ("all are idle", [reading(), reading()], 0, Headroom(2, 20.0, 20.0, 0.0, 1.0)),
        ("one may get nothing", [reading(), reading(is_open=False)], 0, Headroom(1, 10.0, 10.0, 0.0, 1.0)),
        ("slots are the least", [reading(5.0, kv_promised=200.0)], 0, Headroom(1, 5.0, 10.0, 0.0, 0.5)),
        ("one has more than its slots", [reading(14.0), reading()], 0, Headroom(2, 10.0, 20.0, 0.0, 0.5)),
        ("the KV cache is the least", [reading(1.0, kv_promised=800.0)], 0, Headroom(1, 9.0, 10.0, 0.0, 0.2)),
        ("more is promised than there is", [reading(kv_promised=1_500.0)], 0, Headroom(1, 10.0, 10.0, 0.0, 0.0)),
        ("capacity is unknown", [reading(kv_total=inf, kv_promised=9.0)], 0, Headroom(1, 10.0, 10.0, 0.0, 1.0)),
        ("prefill is the least", [reading(pending_tokens=500.0)], 1_000, Headroom(1, 10.0, 10.0, 1.5, 0.25)),
        ("prompts pile up", [reading()], 9_000, Headroom(1, 10.0, 10.0, 9.0, 0.0)),
    ],
)
def test_headroom(why: str, readings: list[Reading[float]], queued_tokens: int, expected: Headroom) -> None:
    """The least share that is free, of the workers that may get requests."""
    assert headroom(readings, queued_tokens=queued_tokens) == pytest.approx(expected), why
