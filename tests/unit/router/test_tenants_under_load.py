"""What tenants get from a mesh that has more work than room: the real dispatcher, in virtual time."""

from __future__ import annotations

from random import Random

import pytest

from router.core.queue import Ageing, QueueLimits
from tests.support.virtual_mesh import Job, Run, play

# Of one slot.
_TOKENS_PER_S = 1_000.0


def seconds(job: Job) -> float:
    return job.tokens / _TOKENS_PER_S


def poisson(rng: Random, per_second: float, until: float) -> list[float]:
    times = []
    now = rng.expovariate(per_second)
    while now < until:
        times.append(now)
        now += rng.expovariate(per_second)
    return times


def quiet_jobs(rng: Random, per_second: float, until: float) -> list[Job]:
    return [
        Job(at, rng.randint(100, 500), rng.randint(20, 80), "quiet", expected_tokens=256)
        for at in poisson(rng, per_second, until)
    ]


def p99(runs: list[Run]) -> float:
    waits = sorted(run.wait_s for run in runs)
    return waits[int(0.99 * len(waits))]


def test_a_loud_tenant_does_not_take_the_quiet_ones_half() -> None:
    """Beside one of equal weight that sends a hundred times more and ten times longer prompts, more than the queue can
    hold, the quiet tenant loses no request, and its p99 wait is at most twice that of having half the slots for itself.

    With less load of its own it waits for nothing alone, and for a slot to come free beside the other.
    """
    slots, until = 2, 120.0
    mean_tokens = 300 + 50
    per_second = 0.9 * slots / 2 * _TOKENS_PER_S / mean_tokens
    quiet = quiet_jobs(Random(3), per_second, until)
    rng = Random(4)
    loud = [
        Job(at, rng.randint(1_000, 5_000), rng.randint(20, 80), "loud", expected_tokens=256)
        for at in poisson(rng, 100 * per_second, until)
    ]
    alone = play(quiet, slots=slots // 2, seconds=seconds, until=until + 60)
    beside = [
        run
        for run in play([*quiet, *loud], slots=slots, seconds=seconds, until=until + 60)
        if run.job.tenant_id == "quiet"
    ]
    assert len(alone) == len(beside) > 250
    assert not any(run.is_rejected for run in beside)
    assert p99(beside) <= 2 * p99(alone)


@pytest.mark.parametrize("weights", [(1.0, 1.0), (3.0, 1.0), (1.0, 8.0)])
def test_tenants_that_always_wait_share_by_weight(weights: tuple[float, float]) -> None:
    """Whatever the sizes of their requests and however wrong the expected lengths, tokens served are as the weights."""
    rng = Random(5)
    jobs = [
        Job(0.0, rng.randint(10, 100), rng.randint(1, 50), "small", weight=weights[0], expected_tokens=1_000)
        for _ in range(3_000)
    ]
    jobs += [
        Job(0.0, rng.randint(100, 4_000), rng.randint(1, 500), "large", weight=weights[1], expected_tokens=1)
        for _ in range(400)
    ]
    runs = play(jobs, slots=4, seconds=seconds, until=40.0)
    served = {
        tenant: sum(run.job.tokens for run in runs if run.job.tenant_id == tenant and run.finished_at <= 40.0)
        for tenant in ("small", "large")
    }
    assert served["small"] / served["large"] == pytest.approx(weights[0] / weights[1], rel=0.1)


def test_many_tenants_all_get_their_share() -> None:
    """Of fifty tenants that send at very different rates, those that ask for less than a fair share get all of it."""
    rng = Random(6)
    jobs = []
    for number in range(50):
        # Together 5 times what can be served; the lower half asks for less than a fiftieth each.
        per_second = 0.2 if number < 25 else 4.0
        jobs += [Job(at, 200, 50, f"t{number}") for at in poisson(rng, per_second, 100.0)]
    runs = play(jobs, slots=5, seconds=seconds, until=100.0, limits=QueueLimits(requests=400))
    modest = [run for run in runs if int(run.job.tenant_id[1:]) < 25]
    greedy = [run for run in runs if int(run.job.tenant_id[1:]) >= 25]
    assert not any(run.is_rejected for run in modest)
    assert sorted(run.wait_s for run in modest if run.job.at < 90.0)[-1] < 10.0
    assert sum(run.is_rejected for run in greedy) > len(greedy) / 2
    by_tenant = {run.job.tenant_id: 0 for run in greedy}
    for run in greedy:
        by_tenant[run.job.tenant_id] += run.finished_at <= 100.0
    assert max(by_tenant.values()) <= 1.2 * min(by_tenant.values())


def test_every_priority_finishes_and_the_highest_hardly_notices() -> None:
    """Nines that take all the room alone, and lower work beside them: that gets a tenth of the dispatches, the nines
    the rest."""
    slots, until = 4, 60.0
    nines = [Job(number * 0.0237, 80, 20, "a", 9) for number in range(round(until / 0.0237))]
    lower = [Job(number * 0.5, 80, 20, "b", number % 5) for number in range(120)]
    runs = play([*nines, *lower], slots=slots, seconds=seconds, until=until, ageing=Ageing(1.0, 0.1))
    dispatched = sorted((run for run in runs if run.dispatched_at <= until), key=lambda run: run.dispatched_at)
    share = sum(run.job.priority < 9 for run in dispatched) / len(dispatched)
    assert 0.04 < share <= 0.1
    early = [run for run in runs if run.job.priority < 9 and run.job.at < until - 20]
    assert all(run.dispatched_at <= until for run in early)
    assert max(run.wait_s for run in early) < 10.0
