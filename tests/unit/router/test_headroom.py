"""What is left of a model's capacity."""

from __future__ import annotations

from math import inf

import pytest

from router.core.headroom import Capacity, Headroom, headroom


def worker(
    load: int = 0,
    *,
    is_open: bool = True,
    pending_tokens: float = 0.0,
    kv_promised: float = 0.0,
    kv_total: float = 1_000.0,
) -> Capacity:
    """One of 10 slots that computes 1,000 prompt tokens a second."""
    return Capacity(is_open, load, 10, kv_total, kv_promised, pending_tokens, 1_000.0)


@pytest.mark.parametrize(
    ("why", "workers", "queued_tokens", "expected"),
    [
        ("nobody is there", [], 0, Headroom(0, 0.0, 0.0, 0.0, 0.0)),
        ("somebody waits and nobody is there", [], 5, Headroom(0, 0.0, 0.0, inf, 0.0)),
        ("all are idle", [worker(), worker()], 0, Headroom(2, 20.0, 20.0, 0.0, 1.0)),
        ("one may get nothing", [worker(), worker(is_open=False)], 0, Headroom(1, 10.0, 10.0, 0.0, 1.0)),
        ("slots are the least", [worker(5, kv_promised=200.0)], 0, Headroom(1, 5.0, 10.0, 0.0, 0.5)),
        ("one has more than its slots", [worker(14), worker()], 0, Headroom(2, 10.0, 20.0, 0.0, 0.5)),
        ("the KV cache is the least", [worker(1, kv_promised=800.0)], 0, Headroom(1, 9.0, 10.0, 0.0, 0.2)),
        ("more is promised than there is", [worker(kv_promised=1_500.0)], 0, Headroom(1, 10.0, 10.0, 0.0, 0.0)),
        ("capacity is unknown", [worker(kv_total=inf, kv_promised=9.0)], 0, Headroom(1, 10.0, 10.0, 0.0, 1.0)),
        ("prefill is the least", [worker(pending_tokens=500.0)], 1_000, Headroom(1, 10.0, 10.0, 1.5, 0.25)),
        ("prompts pile up", [worker()], 9_000, Headroom(1, 10.0, 10.0, 9.0, 0.0)),
    ],
)
def test_headroom(why: str, workers: list[Capacity], queued_tokens: int, expected: Headroom) -> None:
    """The least share that is free, of the workers that may get requests."""
    assert headroom(workers, queued_tokens=queued_tokens) == pytest.approx(expected), why
