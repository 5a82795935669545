"""Records of decisions: what is kept, for how long, and what is let go."""

from __future__ import annotations

from random import Random

import pytest

from inferway.errors import ApiError, Reason
from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, Reject, ReleaseOutcome, Report, Request, Ticket, WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from router.core.records import DecisionState, Record, Records, margin


def machine_of(*workers: str) -> Dispatcher:
    machine = Dispatcher(routing=routing_of("default"), rng=Random(1), first_lease_id=1, limits=QueueLimits())
    for worker in workers:
        machine.worker_up(WorkerInfo(worker, "1", f"{worker}:1", {"m": 4}, 100, 0, None, 1000.0))
    return machine


def request(
    number: int,
    *,
    request_id: str = "",
    priority: int = 5,
    tenant: str = "t",
    at: float = 0.0,
    hashes: tuple[int, ...] = (),
    excluded: frozenset[str] = frozenset(),
) -> Request:
    return Request(
        Ticket(1, number), request_id or f"r{number}", "m", tenant, priority, 8, 4, hashes, at, at + 1000.0, excluded
    )


def dispatched(machine: Dispatcher, asked: Request) -> Dispatch:
    machine.submit(asked, now=asked.queued_at)
    (action,) = machine.tick(now=asked.queued_at)
    assert isinstance(action, Dispatch)
    return action


def states(records: Records, request_id: str = "r1") -> list[DecisionState]:
    return [record.state for record in records.find(request_id, 100)]


def test_a_record_follows_its_request_to_the_end() -> None:
    """First token and release are added as they come; the version is that of the moment of the decision."""
    machine, records = machine_of("a"), Records(10)
    records.routing_version = "v1"
    dispatch = dispatched(machine, request(1))
    records.decided(dispatch, now=2.0)
    records.routing_version = "v2"
    (record,) = records.find("r1", 100)
    assert (record.state, record.routing_version, record.decided_at) == (DecisionState.DISPATCHED, "v1", 2.0)
    assert not record.has_run
    records.first_token(dispatch.lease_id, 4, now=3.0)
    assert (record.first_token_at, record.cached_tokens, record.has_run) == (3.0, 4, True)
    records.released(dispatch.lease_id, ReleaseOutcome.OK, 7, now=5.0)
    assert (record.state, record.ended_at) == (DecisionState.ENDED, 5.0)
    assert (record.outcome, record.completion_tokens) == (ReleaseOutcome.OK, 7)


def test_what_comes_for_no_record_is_nothing() -> None:
    """First tokens and ends of leases that were never recorded, or are over, change nothing."""
    machine, records = machine_of("a"), Records(10)
    dispatch = dispatched(machine, request(1))
    records.decided(dispatch, now=0.0)
    records.released(dispatch.lease_id, ReleaseOutcome.FAILED, 0, now=1.0)
    for lease_id in (dispatch.lease_id, 999):
        records.first_token(lease_id, 4, now=2.0)
        records.released(lease_id, ReleaseOutcome.OK, 9, now=2.0)
        records.abandoned(lease_id, now=2.0)
    (record,) = records.find("r1", 100)
    assert (record.outcome, record.completion_tokens, record.cached_tokens) == (ReleaseOutcome.FAILED, 0, None)


def test_each_attempt_has_a_record() -> None:
    """A request that is sent again under its id has one record for each time, in order."""
    machine, records = machine_of("a", "b"), Records(10)
    first = dispatched(machine, request(1))
    records.decided(first, now=0.0)
    records.released(first.lease_id, ReleaseOutcome.REFUSED, 0, now=0.1)
    second = dispatched(machine, request(2, request_id="r1", excluded=frozenset({first.worker_id}), at=0.2))
    records.decided(second, now=0.2)
    one, two = records.find("r1", 100)
    assert one.dispatch is first
    assert two.dispatch is second
    assert first.worker_id != second.worker_id
    assert (one.outcome, two.outcome) == (ReleaseOutcome.REFUSED, None)
    assert two.request.excluded == {first.worker_id}


def test_rejections_and_cancellations_are_recorded() -> None:
    """Both leave the queue without a worker; a rejection keeps what its caller was told."""
    records = Records(10)
    error = ApiError(Reason.OVERLOADED, "full")
    records.decided(Reject(request(1), error), now=1.0)
    records.cancelled(request(1), now=2.0)
    assert states(records) == [DecisionState.REJECTED, DecisionState.CANCELLED]
    assert records.find("r1", 100)[0].error is error


@pytest.mark.parametrize("limit", [0, 3])
def test_the_ring_is_bounded(limit: int) -> None:
    """The newest so many stay; one that was pushed out is forgotten when its lease ends."""
    ended: list[Record] = []
    machine, records = machine_of("a"), Records(limit, ended=ended.append)
    leases = []
    for number in range(10):
        dispatch = dispatched(machine, request(number, at=float(number)))
        records.decided(dispatch, now=float(number))
        leases.append(dispatch.lease_id)
    assert len(records) == limit
    assert [bool(records.find(f"r{number}", 100)) for number in range(10)] == [n >= 10 - limit for n in range(10)]
    assert records.oldest_at() == (7.0 if limit else None)
    for lease_id in leases:
        records.released(lease_id, ReleaseOutcome.OK, 1, now=20.0)
    assert [record.request.request_id for record in ended] == [f"r{number}" for number in range(10)]
    assert not records._running


def test_only_the_newest_of_an_id_are_found() -> None:
    """An id that is used over and over does not make the answer grow."""
    records = Records(10)
    for at in range(5):
        records.cancelled(request(1), now=float(at))
    assert [record.decided_at for record in records.find("r1", 2)] == [3.0, 4.0]


def test_hashes_are_let_go() -> None:
    """With nobody to hand them to they go with the decision, else with the end, for which they are still there."""
    machine, records = machine_of("a"), Records(10)
    dispatch = dispatched(machine, request(1, hashes=(1, 2)))
    records.decided(dispatch, now=0.0)
    assert dispatch.request.block_hashes == ()

    seen: list[tuple[int, ...]] = []
    records = Records(10, ended=lambda record: seen.append(tuple(record.request.block_hashes)))
    dispatch = dispatched(machine, request(2, hashes=(1, 2)))
    records.decided(dispatch, now=0.0)
    assert dispatch.request.block_hashes == (1, 2)
    records.released(dispatch.lease_id, ReleaseOutcome.OK, 1, now=1.0)
    records.decided(Reject(request(3, hashes=(5,)), ApiError(Reason.OVERLOADED, "full")), now=1.0)
    assert seen == [(1, 2), (5,)]
    assert dispatch.request.block_hashes == ()


def test_the_dispatcher_tells_of_leases_that_nobody_released() -> None:
    """A gateway or a worker that is gone, and a report without the lease, end it; each is told once."""
    machine = machine_of("a", "b", "c")
    leases = {}
    for number in (1, 2, 3):
        dispatch = dispatched(machine, request(number))
        leases[dispatch.worker_id] = dispatch.lease_id
    assert machine.take_abandoned() == []
    machine.worker_down("a")
    for now in (10.0, 11.0):
        machine.worker_report("b", Report("1"), now=now)
    machine.drop_owner(1, now=12.0)
    assert machine.take_abandoned() == [leases[worker] for worker in "abc"]
    assert machine.take_abandoned() == []


def test_a_margin_is_between_the_chosen_and_the_best_other() -> None:
    """The runner-up costs the prompt that the chosen one has cached; without another candidate there is none."""
    machine = machine_of("a", "b")
    first = dispatched(machine, request(1, hashes=(1, 2)))
    machine.release(first.lease_id, ReleaseOutcome.OK, completion_tokens=1, now=1.0)
    second = dispatched(machine, request(2, at=2.0, hashes=(1, 2)))
    assert second.worker_id == first.worker_id
    found = margin(second)
    assert found is not None
    assert found.runner_up.worker_id != second.worker_id
    chosen = next(scored for scored in second.considered.best if scored.worker_id == second.worker_id)
    assert found.cost == pytest.approx(found.runner_up.cost - chosen.cost)
    assert margin(dispatched(machine_of("a"), request(1))) is None


def test_who_came_before_is_noted() -> None:
    """What waits at the request's priority and above when it comes; nothing in an empty queue."""
    machine = machine_of()
    behind = []
    for number, priority in [(1, 5), (2, 7), (3, 5), (4, 9), (5, 0)]:
        one = request(number, priority=priority)
        machine.submit(one, now=0.0)
        behind.append(one.queued_behind)
    assert behind == [0, 0, 2, 0, 4]


def test_queues_tell_who_waits() -> None:
    """Bands from the highest, tenants over all bands, requests by their id."""
    machine = machine_of()
    for number, priority, tenant in [(1, 5, "x"), (2, 9, "y"), (3, 5, "y"), (4, 5, "x"), (5, 5, "x")]:
        machine.submit(request(number, priority=priority, tenant=tenant), now=0.0)
    (model,) = machine.models()
    assert model.queue.bands() == [(9, 1, 8), (5, 4, 32)]
    assert model.queue.tenants() == [("x", 3, 36), ("y", 2, 24)]
    assert [one.ticket.number for one in machine.waiting("r4")] == [4]
    assert machine.waiting("r9") == []


def test_hits_add_up() -> None:
    """What was predicted and what was found, of prompts whose first token has come."""
    machine = machine_of("a")
    first = dispatched(machine, request(1, hashes=(1, 2)))
    machine.first_token(first.lease_id, 0, now=1.0)
    second = dispatched(machine, request(2, at=2.0, hashes=(1, 2)))
    machine.first_token(second.lease_id, 4, now=3.0)
    machine.first_token(second.lease_id, 4, now=3.0)
    (model,) = machine.models()
    assert (model.hits.prompt_tokens, model.hits.actual_tokens) == (16, 4)
    assert model.hits.predicted_tokens == second.predicted_cached_tokens > 0
