"""Requests that wait for the first worker of a model."""

from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Gauge

from gateway.arrivals import Arrivals
from inferway.errors import ApiError, Reason


async def test_who_waits_is_counted_bounded_and_woken() -> None:
    """A thousand wait; one more is refused; those of the model that comes go on, and who leaves is not counted."""
    registry = CollectorRegistry()
    arrivals = Arrivals(Gauge("waiting", "Waiting.", ["model"], registry=registry))

    def waiting(model: str) -> float | None:
        return registry.get_sample_value("waiting", {"model": model})

    some = [asyncio.create_task(arrivals.wait("a", 60)) for _ in range(600)]
    others = [asyncio.create_task(arrivals.wait("b", 60)) for _ in range(400)]
    await asyncio.sleep(0)
    assert (waiting("a"), waiting("b")) == (600, 400)
    with pytest.raises(ApiError) as full:
        await arrivals.wait("a", 60)
    assert full.value.reason is Reason.OVERLOADED
    assert full.value.retry_after_s
    arrivals.came(["alias of a", "a"])
    await asyncio.gather(*some)
    assert (waiting("a"), waiting("b")) == (0, 400)
    for other in others:
        other.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert waiting("b") == 0
    with pytest.raises(ApiError) as late:
        await arrivals.wait("b", 0)
    assert late.value.reason is Reason.MODEL_NOT_READY
