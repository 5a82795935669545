"""What the dispatcher tells of its queues, and what it charges tenants for."""

from __future__ import annotations

from random import Random

import pytest

from inferway.errors import Reason
from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, Place, Reject, ReleaseOutcome, Report, Request, Ticket, WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits

OK = ReleaseOutcome.OK


def dispatcher(limits: QueueLimits = QueueLimits()) -> Dispatcher:  # noqa: B008 - an immutable tuple
    machine = Dispatcher(routing=routing_of("default"), rng=Random(1), first_lease_id=1, limits=limits)
    machine.worker_up(WorkerInfo("a", "1", "a:1", {"m": 4}, 1, 0))
    return machine


def request(number: int, tenant: str = "t", *, priority: int = 5, at: float = 0.0, owner: int = 1) -> Request:
    return Request(Ticket(owner, number), f"r{number}", "m", tenant, priority, 10, 10, (), at, at + 1000.0)


def lease(machine: Dispatcher, *, now: float) -> Dispatch:
    (action,) = machine.tick(now=now)
    assert isinstance(action, Dispatch)
    return action


def test_a_place_is_what_waits_before_and_how_long_that_takes() -> None:
    """Known while the ticket waits; the time only once somebody has waited and been dispatched."""
    machine = dispatcher()
    for number in range(60):
        machine.submit(request(number), now=0.0)
    current = lease(machine, now=0.0)
    assert machine.place(Ticket(1, 0), now=0.0) is None
    assert machine.place(Ticket(2, 1), now=0.0) is None
    assert machine.place(Ticket(1, 3), now=0.0) == Place(2, None)
    for step in range(1, 41):
        machine.release(current.lease_id, OK, now=step / 2)
        current = lease(machine, now=step / 2)
    machine.submit(request(100, priority=9, at=20.0), now=20.0)
    assert machine.tick(now=20.0) == []
    place = machine.place(Ticket(1, 45), now=20.0)
    assert place is not None
    assert place.position == 5
    assert place.expected_wait_s == pytest.approx(3.0, rel=0.1)
    machine.cancel(Ticket(1, 45))
    assert machine.place(Ticket(1, 45), now=20.0) is None


def test_a_mesh_that_is_asked_for_little_is_not_taken_for_slow() -> None:
    """What is dispatched at once, while nobody waits, says nothing of how long a queue takes; nor does the time."""
    machine = dispatcher()
    for second in range(0, 100, 10):
        machine.submit(request(second, at=second), now=second)
        machine.release(lease(machine, now=second).lease_id, OK, now=second + 1.0)
        assert machine.tick(now=second + 1.0) == []
    for number in range(200, 240):
        machine.submit(request(number, at=100.0), now=100.0)
    current = lease(machine, now=100.0)
    place = machine.place(Ticket(1, 239), now=100.0)
    assert place == Place(38, None)
    for step in range(1, 11):
        machine.release(current.lease_id, OK, now=100.0 + step / 4)
        current = lease(machine, now=100.0 + step / 4)
    place = machine.place(Ticket(1, 239), now=102.5)
    assert place is not None
    assert place.position == 28
    assert place.expected_wait_s == pytest.approx(29 / 4, rel=0.15)


def test_a_rejection_says_how_many_wait_and_who_took_the_place() -> None:
    """Refused, or shed for a higher priority, or for a tenant with less."""
    machine = dispatcher(QueueLimits(requests=4))
    machine.submit(request(0), now=0.0)
    lease(machine, now=0.0)
    for number in range(1, 5):
        machine.submit(request(number, "loud"), now=0.0)
    assert machine.tick(now=0.0) == []
    newcomers = [
        (request(5, "loud"), 5, "with about 4 requests before it"),
        (
            request(6, "quiet"),
            4,
            "; a request of a tenant with less waiting took this one's place, with about 4 requests",
        ),
        (
            request(7, "loud", priority=6),
            6,
            "; a request of higher priority took this one's place, with about 4 requests",
        ),
    ]
    for newcomer, leaving, message in newcomers:
        machine.submit(newcomer, now=0.0)
        (reject,) = machine.tick(now=0.0)
        assert isinstance(reject, Reject)
        assert reject.request.ticket.number == leaving
        assert reject.error.reason is Reason.OVERLOADED
        assert reject.error.message.startswith("the queue of this model is full: 4 requests wait, the limit is 4")
        assert message in reject.error.message
        assert reject.error.retry_after_s is not None


@pytest.mark.parametrize(
    ("sentence", "outcome", "has_first_token", "completion_tokens", "cost"),
    [
        ("prompt and answer", OK, True, 7, 17),
        ("an answer longer than expected", OK, True, 50, 60),
        ("a refusal costs nothing", ReleaseOutcome.REFUSED, False, 0, 0),
        ("nor does a worker that was lost during the prefill", ReleaseOutcome.FAILED, False, 0, 0),
        ("what it had produced does", ReleaseOutcome.FAILED, True, 3, 13),
        ("a caller that leaves pays for the prompt", ReleaseOutcome.CANCELLED, False, 0, 10),
        ("and for what came", ReleaseOutcome.CANCELLED, True, 4, 14),
        ("a worker that is gone", "worker down", True, 0, 10),
        ("a worker that is gone before the first token", "worker down", False, 0, 0),
        ("a gateway that is gone", "owner gone", True, 0, 10),
        ("a lease that the worker does not know", "reconciled", True, 0, 10),
    ],
)
def test_a_tenant_pays_for_what_it_got(
    sentence: str, outcome: ReleaseOutcome | str, has_first_token: bool, completion_tokens: int, cost: int
) -> None:
    """At dispatch 20 tokens are charged; in the end what the request has cost."""
    machine = dispatcher()
    machine.submit(request(1, "payer", owner=2), now=0.0)
    lease_id = lease(machine, now=0.0).lease_id
    # Keeps the account from being forgotten.
    machine.submit(request(2, "payer"), now=0.0)
    accounts = machine._models["m"].queue._bands[5]._shares.accounts
    assert accounts["payer"].counter == 20
    if has_first_token:
        machine.first_token(lease_id, 0, now=0.0)
    match outcome:
        case "worker down":
            machine.worker_down("a")
        case "owner gone":
            machine.drop_owner(2, now=1.0)
        case "reconciled":
            for now in (6.0, 7.0):
                machine.worker_report("a", Report("1"), now=now)
        case ReleaseOutcome():
            machine.release(lease_id, outcome, completion_tokens=completion_tokens, now=1.0)
    assert accounts["payer"].counter == cost, sentence
