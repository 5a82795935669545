"""Waiting lifts requests, but only so many."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest

from router.core.messages import Request, Ticket
from router.core.queue import Ageing, WaitingQueue


def push(queue: WaitingQueue, number: int, priority: int, *, at: float = 0.0, tenant: str = "t") -> None:
    request = Request(Ticket(1, number), f"r{number}", "m", tenant, priority, 10, 1, (), at, 1e9)
    assert not queue.push(request).refused


def serve(queue: WaitingQueue, *, now: float) -> int:
    head = next(queue.heads(now=now))
    queue.dispatch(head.ticket, 10, now=now)
    return head.ticket.number


def due(ageing: Ageing, *, top: int = 9) -> WaitingQueue:
    """A queue that has served enough for a lifted request to go next, with requests 1000 and up at the top."""
    queue = WaitingQueue(ageing=ageing)
    for number in range(20):
        push(queue, number, top)
        serve(queue, now=0.0)
    for number in range(1000, 1020):
        push(queue, number, top)
    return queue


def test_a_request_that_was_lifted_to_the_top_goes_first() -> None:
    """One band for each interval that it has waited; until it has come to the highest band that waits, it waits on."""
    cases = [
        ("not long enough", 9, [(1, 4, 0.0)], 4.9, 1000),
        ("five bands in five intervals", 9, [(1, 4, 0.0)], 5.0, 1),
        ("only as far as somebody waits", 6, [(1, 4, 0.0)], 2.0, 1),
        ("the lowest takes nine", 9, [(1, 0, 0.0)], 8.9, 1000),
        ("and no more", 9, [(1, 0, 0.0)], 9.0, 1),
        ("of two that have come so far, who came first", 9, [(1, 4, 0.1), (2, 0, 0.0)], 9.2, 2),
        ("the higher, where the top is not the highest band", 6, [(1, 3, 0.0), (2, 5, 1.0)], 4.0, 2),
        ("of equally lifted ones, who came first", 6, [(1, 4, 0.5), (2, 3, 0.0)], 9.0, 2),
    ]
    for sentence, top, others, now, expected in cases:
        queue = due(Ageing(interval_s=1.0), top=top)
        for number, priority, at in sorted(others, key=lambda other: other[2]):
            push(queue, number, priority, at=at)
        assert serve(queue, now=now) == expected, sentence


def test_nobody_above_means_no_ageing() -> None:
    """A band that is the highest which waits is served in its own order, however long anybody has waited."""
    queue = WaitingQueue(ageing=Ageing(interval_s=1.0))
    for number, tenant in enumerate(["a", "a", "b"]):
        push(queue, number, 0, tenant=tenant)
    assert [serve(queue, now=100.0) for _ in range(3)] == [0, 2, 1]


def test_lifted_requests_are_the_first_of_their_band() -> None:
    """Which tenant of a band is lifted is decided by the band's shares, so a flood there does not take it all."""
    queue = due(Ageing(interval_s=1.0))
    for number in range(50):
        push(queue, number, 0, tenant="flood")
    push(queue, 50, 0, tenant="quiet")
    served = [serve(queue, now=20.0) for _ in range(11)]
    lifted = [number for number in served if number <= 50]
    assert lifted == [0, 50]


@pytest.mark.parametrize(("share", "every"), [(0.1, 10), (0.25, 4), (0.3, 4), (0.5, 2), (1.0, 1)])
def test_lifted_requests_take_no_more_than_their_share(share: float, every: int) -> None:
    """At any moment, and from any moment on, at most one of so many dispatches went to a lifted request."""
    queue = WaitingQueue(ageing=Ageing(1.0, share))
    for number in range(1000):
        push(queue, number, number % 5)
    rng, was_lifted = Random(1), []
    for number in range(1000, 2000):
        push(queue, number, 9, at=100.0)
        was_lifted.append(serve(queue, now=100.0 + rng.random()) < 1000)
    for end in range(1, 1000):
        assert sum(was_lifted[:end]) <= share * end + (1 if share == 1.0 else 0)
    starts = [index for index, lifted in enumerate(was_lifted) if lifted]
    assert {after - before for before, after in pairwise(starts)} == {every}


def test_the_highest_is_never_behind_unlifted_lower_work() -> None:
    """Whatever waits below, a request of priority 9 is next, or behind one lifted request."""
    rng = Random(2)
    queue = WaitingQueue(ageing=Ageing(2.0, 0.1))
    now = 0.0
    for number in range(3000):
        now += 0.05
        push(queue, number, rng.choice([0, 0, 3, 5, 8, 9]), at=now, tenant=rng.choice("abc"))
        heads = [head.priority for head in queue.heads(now=now)]
        if 9 in heads:
            assert heads.index(9) <= 1
        if number % 2:
            serve(queue, now=now)


def test_the_lowest_finishes_under_steady_load_of_the_highest() -> None:
    """With the queue never empty of nines, twenty requests of priority 0 are all served, in order."""
    queue = WaitingQueue(ageing=Ageing(1.0, 0.1))
    for number in range(20):
        push(queue, number, 0)
    served, now = [], 0.0
    for number in range(1000, 1300):
        push(queue, number, 9, at=now)
        push(queue, number + 1000, 9, at=now)
        number = serve(queue, now=now)
        now += 0.2
        if number < 20:
            served.append((number, now))
    assert [number for number, _ in served] == list(range(20))
    assert served[0][1] <= 9.0 + 10 * 0.2 + 0.2
