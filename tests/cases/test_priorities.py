"""Handed cases on who waits for whom. They last minutes, so they run on the router's dispatcher in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from router.core.queue import Ageing
from tests.cases.handed import case
from tests.support.virtual_mesh import Job, play

_AGEING_BOUND_S = 10.0


def script_s(case: Any) -> float:
    return sum(step.get("sleep_ms", 0) for step in case["engine_script"]) / 1000


@case("PRI-01")
def test_the_lowest_is_served_under_steady_load_of_the_highest(case: Any) -> None:
    """The low one is dispatched within the ageing bound; the high ones keep their share and their order."""
    duration_s = script_s(case)
    low = Job(0.0, 5, 2, priority=0)
    high = [Job(0.0, 5, 2, priority=9) for _ in range(5)]
    high += [Job(number * duration_s, 5, 2, priority=9) for number in range(round(60 / duration_s))]
    ageing = Ageing()
    runs = play([*high, low], slots=1, seconds=lambda _: duration_s, until=60.0, ageing=ageing)
    (low_run,) = (run for run in runs if run.job is low)
    assert low_run.wait_s <= _AGEING_BOUND_S
    # Not before it has been lifted as high as the others.
    assert low_run.wait_s >= 9 * ageing.interval_s
    dispatched = [run for run in runs if run.dispatched_at <= 60.0]
    assert len(dispatched) >= 60 / duration_s - 1
    others = [run.dispatched_at for run in dispatched if run is not low_run]
    assert len(others) >= (1 - ageing.share) * len(dispatched)
    assert others == sorted(others)


@case("PRI-03")
@pytest.mark.parametrize("idle_s", [0.0, 50.0])
def test_tenants_share_tokens(case: Any, idle_s: float) -> None:
    """Tokens served differ by less than one request of the larger ones, from the moment when both wait."""
    prefill_tokens_per_s, completion_tokens = 30_000, 100
    until = idle_s + 100.0
    heavy = [Job(0.0, 30_000, completion_tokens, "A") for _ in range(400)]
    light = [Job(idle_s, 300, completion_tokens, "B") for _ in range(12_000)]

    def seconds(job: Job) -> float:
        return script_s(case) / 100 + job.prompt_tokens / prefill_tokens_per_s

    runs = play([*heavy, *light], slots=1, seconds=seconds, until=until)
    assert any(run.finished_at > until for run in runs if run.job.tenant_id == "A")
    assert any(run.finished_at > until for run in runs if run.job.tenant_id == "B")
    finished = sorted((run for run in runs if idle_s < run.finished_at <= until), key=lambda run: run.finished_at)
    # What ran as B came was A's from before.
    served = {"A": 0, "B": 0}
    for run in finished:
        if run.dispatched_at >= idle_s:
            served[run.job.tenant_id] += run.job.tokens
            assert abs(served["A"] - served["B"]) <= 30_000 + completion_tokens
    assert abs(served["A"] - served["B"]) < 30_000 + completion_tokens
    assert min(served.values()) > 1_000_000
