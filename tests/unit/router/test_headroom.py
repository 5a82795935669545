"""What is left of a model's capacity."""

from __future__ import annotations

from math import inf

import pytest

from router.core.headroom import Capacity, Headroom, headroom


def worker(load: int = 0, *, pending: int = 0, kv_taken: int = 0, kv_total: int | None = 1_000) -> Capacity:
    """Of 10 slots, that computes 1,000 prompt tokens a second."""
    return Capacity(
        slots=10,
        load=load,
        kv_total_tokens=kv_total,
        kv_taken_tokens=kv_taken,
        pending_tokens=pending,
        prefill_rate=1_000.0,
    )


@pytest.mark.parametrize(
    ("why", "workers", "queued_tokens", "expected"),
    [
        ("nobody is there", [], 0, Headroom(0, 0, 0, 0.0, 0.0)),
        ("somebody waits and nobody is there", [], 5, Headroom(0, 0, 0, inf, 0.0)),
        ("all are idle", [worker(), worker()], 0, Headroom(2, 20, 20, 0.0, 1.0)),
        ("one may get nothing", [worker(), None], 0, Headroom(1, 10, 10, 0.0, 1.0)),
        ("slots are the least", [worker(5, kv_taken=200)], 0, Headroom(1, 5, 10, 0.0, 0.5)),
        ("one has more than its slots", [worker(14), worker()], 0, Headroom(2, 10, 20, 0.0, 0.5)),
        ("the KV cache is the least", [worker(1, kv_taken=800)], 0, Headroom(1, 9, 10, 0.0, 0.2)),
        ("more is promised than there is", [worker(kv_taken=1_500)], 0, Headroom(1, 10, 10, 0.0, 0.0)),
        ("capacity is unknown", [worker(kv_total=None, kv_taken=9)], 0, Headroom(1, 10, 10, 0.0, 1.0)),
        ("prefill is the least", [worker(pending=500)], 1_000, Headroom(1, 10, 10, 1.5, 0.25)),
        ("prompts pile up", [worker()], 9_000, Headroom(1, 10, 10, 9.0, 0.0)),
    ],
)
def test_headroom(why: str, workers: list[Capacity | None], queued_tokens: int, expected: Headroom) -> None:
    """The least share that is free, of the workers that may get requests."""
    assert headroom(workers, queued_tokens=queued_tokens) == pytest.approx(expected), why
