"""The waiting queue: order, bounds, cancelling and deadlines."""

from __future__ import annotations

from copy import deepcopy
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.messages import Request, Ticket
from router.core.queue import Ageing, Debit, QueueLimits, WaitingQueue
from tests.support.brute_queue import BruteQueue, Charged


def request(
    number: int,
    priority: int = 5,
    *,
    tokens: int = 1,
    deadline: float = 100.0,
    excluded: frozenset[str] = frozenset(),
    at: float = 0.0,
    tenant: str = "t",
    weight: float = 1.0,
) -> Request:
    return Request(
        ticket=Ticket(1, number),
        request_id=f"r{number}",
        model="m",
        tenant_id=tenant,
        priority=priority,
        prompt_tokens=tokens,
        expected_tokens=1,
        block_hashes=(),
        queued_at=at,
        deadline=deadline,
        excluded=excluded,
        tenant_weight=weight,
    )


def drain(queue: WaitingQueue, *, now: float = 0.0) -> list[int]:
    """Dispatch everybody at what is expected of each."""
    order = []
    while (head := next(queue.heads(now=now), None)) is not None:
        queue.dispatch(head.ticket, head.prompt_tokens + head.expected_tokens, now=now)
        order.append(head.ticket.number)
    return order


def test_higher_priority_goes_first_and_equals_in_order_of_arrival() -> None:
    """9 is served before 0, and inside a band who came first goes first."""
    queue = WaitingQueue()
    for number, priority in enumerate([0, 9, 5, 9, 0, 5]):
        queue.push(request(number, priority))
    assert drain(queue) == [1, 3, 2, 5, 0, 4]


def test_heads_are_the_first_of_each_exclusion_set() -> None:
    """One head for each band and set of excluded workers, in the order in which they may be served."""
    queue = WaitingQueue()
    away = frozenset({"a"})
    for number, priority, excluded in [(0, 3, away), (1, 3, frozenset()), (2, 3, away), (3, 7, frozenset({"b"}))]:
        queue.push(request(number, priority, excluded=excluded))
    assert [head.ticket.number for head in queue.heads(now=0.0)] == [3, 0, 1]


def test_a_full_queue_sheds_the_newest_of_the_lowest_band_for_a_higher_one() -> None:
    """A newcomer that outranks somebody takes the place of the newest request of the lowest band."""
    queue = WaitingQueue(QueueLimits(requests=3))
    for number, priority in enumerate([2, 1, 1]):
        queue.push(request(number, priority))
    pushed = queue.push(request(3, 2))
    assert [shed.ticket.number for shed in pushed.refused] == [2]
    assert pushed.limit == "3 requests wait, the limit is 3"
    assert drain(queue) == [0, 3, 1]


def test_a_full_queue_refuses_a_newcomer_that_outranks_nobody() -> None:
    """Without a lower band the newcomer itself is refused and nobody leaves."""
    queue = WaitingQueue(QueueLimits(requests=2))
    for number in range(2):
        queue.push(request(number, 4))
    newcomer = request(2, 4)
    assert queue.push(newcomer).refused == [newcomer]
    assert drain(queue) == [0, 1]


def test_the_token_bound_sheds_only_when_that_makes_room() -> None:
    """Nobody is shed for a newcomer that would not fit anyway; as many as needed are for one that does."""
    queue = WaitingQueue(QueueLimits(prompt_tokens=100))
    for number, (priority, tokens) in enumerate([(9, 50), (0, 20), (0, 20)]):
        queue.push(request(number, priority, tokens=tokens))
    too_large = request(3, 9, tokens=51)
    assert queue.push(too_large).refused == [too_large]
    assert [shed.ticket.number for shed in queue.push(request(4, 9, tokens=40)).refused] == [2, 1]
    assert queue.tokens == 90


def test_expiry_takes_out_what_is_due_in_order_of_deadlines() -> None:
    """`expire` returns those whose deadline has come and `next_deadline` the first of the rest."""
    queue = WaitingQueue()
    for number, deadline in enumerate([3.0, 1.0, 2.0, 4.0]):
        queue.push(request(number, deadline=deadline))
    queue.remove(Ticket(1, 2))
    assert queue.next_deadline() == 1.0
    assert [expired.request.ticket.number for expired in queue.expire(now=3.0)] == [1, 0]
    assert queue.next_deadline() == 4.0


def test_cancelling_leaves_no_garbage_without_bound() -> None:
    """Thousands of cancelled requests do not stay behind in the deadline heap."""
    queue = WaitingQueue()
    queue.push(request(0))
    for number in range(1, 5_000):
        queue.push(request(number, deadline=1_000.0 + number))
        queue.remove(Ticket(1, number))
    assert len(queue) == 1
    assert len(queue._deadlines) < 200


def test_a_ticket_that_comes_back_keeps_its_new_deadline() -> None:
    """The heap entry of a removed request does not expire a later one under the same ticket."""
    queue = WaitingQueue()
    queue.push(request(0, deadline=1.0))
    queue.remove(Ticket(1, 0))
    queue.push(request(0, deadline=5.0))
    assert queue.expire(now=2.0) == []
    assert queue.next_deadline() == 5.0


def test_a_full_band_refuses_its_own_newcomers_only() -> None:
    """The bound of a band holds whoever waits below it; other bands still take requests."""
    cases = [
        ("requests", QueueLimits(band_requests=2), "2 requests wait at priority 4, the limit is 2"),
        ("tokens", QueueLimits(band_prompt_tokens=25), "30 prompt tokens would wait at priority 4, the limit is 25"),
    ]
    for sentence, limits, message in cases:
        queue = WaitingQueue(limits)
        for number, priority in enumerate([0, 4, 4]):
            assert queue.push(request(number, priority, tokens=10)).refused == [], sentence
        newcomer = request(3, 4, tokens=10)
        assert queue.push(newcomer) == ([newcomer], message), sentence
        assert queue.push(request(4, 5, tokens=10)).refused == [], sentence
        assert drain(queue) == [4, 1, 2, 0], sentence


def test_a_full_queue_sheds_the_newest_of_the_tenant_that_holds_most() -> None:
    """Among equals a newcomer takes the place of a tenant that holds more, by its weight, than its own would."""
    cases = [
        ("one that floods the queue gives way", "quiet", 10, 1.0, [3]),
        ("its own newcomers do not push its older ones out", "loud", 10, 1.0, None),
        ("nor do they when its weight has grown", "loud", 10, 100.0, None),
        ("several leave for a large one", "quiet", 20, 1.0, [3, 2]),
        ("nobody leaves for one that would then hold more than the other", "quiet", 30, 1.0, None),
        ("with more weight it may hold more", "quiet", 30, 2.0, [3, 2, 1]),
        ("nobody leaves for one that would not fit anyway", "quiet", 46, 100.0, None),
    ]
    for sentence, tenant, tokens, weight, expected in cases:
        queue = WaitingQueue(QueueLimits(prompt_tokens=45))
        for number in range(4):
            queue.push(request(number, tenant="loud", tokens=10))
        newcomer = request(5, tenant=tenant, tokens=tokens, weight=weight)
        pushed = queue.push(newcomer)
        assert [left.ticket.number for left in pushed.refused] == (expected or [5]), sentence


def test_the_position_counts_who_goes_before() -> None:
    """Everybody in the bands above, and inside the band whoever is served first: exact while one tenant waits."""
    queue = WaitingQueue()
    for number, priority in enumerate([5, 5, 9, 0, 5]):
        queue.push(request(number, priority))
    assert [queue.position(Ticket(1, number)) for number in range(6)] == [1, 2, 0, 4, 3, None]
    queue.remove(Ticket(1, 0))
    assert [queue.position(Ticket(1, number)) for number in range(1, 5)] == [1, 0, 3, 2]


def test_the_position_reckons_with_the_shares_of_tenants() -> None:
    """A tenant's requests stand where its share brings them, not where they arrived."""
    queue = WaitingQueue()
    for number in range(100):
        queue.push(request(number, tenant="many", tokens=9))
    for number in range(100, 110):
        queue.push(request(number, tenant="few", tokens=19, weight=4.0))
    order = drain(deepcopy(queue))
    for number in (0, 1, 3, 20, 99, 100, 101, 103, 109):
        position = queue.position(Ticket(1, number))
        assert position is not None
        assert abs(position - order.index(number)) <= 2, number


def test_the_position_reckons_with_what_tenants_have_had() -> None:
    """A tenant that has just had much stands behind those that catch up."""
    queue = WaitingQueue()
    queue.push(request(0, tenant="had", tokens=9))
    queue.dispatch(Ticket(1, 0), 50, now=0.0)
    queue.push(request(1, tenant="other", tokens=9))
    queue.push(request(2, tenant="had", tokens=9))
    for number in range(3, 20):
        queue.push(request(number, tenant="other", tokens=9))
    # The other began at 0 and has 10 a request; this one stands at 50.
    assert queue.position(Ticket(1, 2)) == 5
    assert drain(queue).index(2) in (4, 5)


class Both:
    """The queue and its model in plain lists, which are told the same and must do the same."""

    def __init__(self, limits: QueueLimits, ageing: Ageing) -> None:
        self.queue, self.brute = WaitingQueue(limits, ageing), BruteQueue(limits, ageing)
        self.running: list[tuple[Debit, Charged]] = []
        self.now = 0.0
        self.count = 0

    def push(self, priority: int, tokens: int, timeout: int, away: str, tenant: str, weight: float) -> None:
        self.count += 1
        new = request(
            self.count,
            priority,
            tokens=tokens,
            deadline=self.now + timeout,
            excluded=frozenset(away),
            at=self.now,
            tenant=tenant,
            weight=weight,
        )
        assert self.queue.push(new).refused == self.brute.push(new)

    def remove(self, number: int) -> None:
        removed = self.queue.remove(Ticket(1, number))
        assert removed == next((w for w in self.brute.waiting if w.ticket.number == number), None)
        self.brute.waiting = [w for w in self.brute.waiting if w.ticket.number != number]

    def wait(self, seconds: int) -> None:
        self.now += seconds
        expired = [left.request for left in self.queue.expire(now=self.now)]
        assert {id(w) for w in expired} == {id(w) for w in self.brute.waiting if w.deadline <= self.now}
        self.brute.waiting = [w for w in self.brute.waiting if w.deadline > self.now]

    def dispatch(self, skipped: int, cost: int) -> None:
        """The first, or who stands behind it where it finds no room."""
        heads = list(self.queue.heads(now=self.now))
        assert len({id(head) for head in heads}) == len(heads)
        if not heads:
            return
        head = heads[skipped % len(heads)]
        debit = self.queue.dispatch(head.ticket, cost, now=self.now)
        self.running.append((debit, self.brute.dispatch(head, cost, now=self.now)))

    def settle(self, which: int, cost: int) -> None:
        if self.running:
            debit, charged = self.running.pop(which % len(self.running))
            debit.settle(cost)
            self.brute.settle(charged, cost)

    def check(self) -> None:
        queue, waiting = self.queue, self.brute.waiting
        ordered = self.brute.ordered(now=self.now)
        assert len(queue) == len(waiting)
        assert queue.tokens == sum(w.prompt_tokens for w in waiting)
        assert queue.next_deadline() == min((w.deadline for w in waiting), default=None)
        assert queue.oldest_at() == min((w.queued_at for w in waiting), default=None)
        heads = list(queue.heads(now=self.now))
        assert [w for w in ordered if any(w is head for head in heads)] == heads
        assert heads[:1] == ordered[:1]
        for request in waiting:
            position = queue.position(request.ticket)
            assert position is not None
            assert 0 <= position < len(queue)


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"),
            st.integers(0, 9),
            st.integers(1, 5),
            st.integers(1, 40),
            st.sampled_from(["", "", "a"]),
            st.sampled_from("tuvw"),
            st.sampled_from([1.0, 1.0, 2.0, 0.5]),
        ),
        st.tuples(st.just("remove"), st.integers(0, 60)),
        st.tuples(st.just("wait"), st.integers(1, 4)),
        st.tuples(st.just("dispatch"), st.integers(0, 2), st.integers(1, 40)),
        st.tuples(st.just("settle"), st.integers(0, 3), st.integers(0, 60)),
    ),
    max_size=80,
)


@given(operations, st.integers(1, 12), st.integers(1, 30), st.integers(1, 8), st.sampled_from([0.5, 0.25, 1.0]))
def test_the_queue_does_what_plain_lists_do(
    steps: list[tuple[Any, ...]], requests: int, tokens: int, band_requests: int, share: float
) -> None:
    """Order, shares, ageing, shedding, cancelling and expiry equal those of plain lists; each request leaves once."""
    both = Both(QueueLimits(requests, tokens, band_requests, tokens), Ageing(2.0, share))
    for name, *values in steps:
        getattr(both, name)(*values)
        both.check()


@pytest.mark.parametrize("seed", range(40))
def test_the_queue_does_so_for_long(seed: int) -> None:
    """The same in few bands, where counters drift apart, tenants come back and accounts are forgotten."""
    rng = Random(seed)
    both = Both(rng.choice([QueueLimits(), QueueLimits(9, 50, 6, 40)]), Ageing(3.0, 0.25))
    bands = rng.choice([[5], [0, 5], [0, 1, 9]])
    tenants = "tuvwxyz"[: rng.randint(2, 7)]
    weights = {tenant: rng.choice([0.5, 1.0, 1.0, 4.0]) for tenant in tenants}
    backlog = rng.choice([1, 3, 10])
    for _ in range(400):
        match rng.randrange(10):
            case 0 | 1 | 2 | 3 if len(both.queue) < backlog or rng.random() < 0.2:
                tenant = rng.choice(tenants)
                away = rng.choice(["", "", "", "a"])
                both.push(rng.choice(bands), rng.randint(1, 9), rng.randint(20, 60), away, tenant, weights[tenant])
            case 4 if both.count:
                both.remove(rng.randint(1, both.count))
            case 5:
                both.wait(1)
            case 6 | 7:
                both.dispatch(rng.choice([0, 0, 0, 1]), rng.randint(1, 64))
            case 8 | 9:
                both.settle(rng.randrange(10), rng.choice([0, 1, 30, 64, 100]))
        both.check()
