"""The waiting queue: order, bounds, cancelling and deadlines."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from router.core.messages import Request, Ticket
from router.core.queue import QueueLimits, WaitingQueue


def request(
    number: int,
    priority: int = 5,
    *,
    tokens: int = 1,
    deadline: float = 100.0,
    excluded: frozenset[str] = frozenset(),
    at: float = 0.0,
) -> Request:
    return Request(
        ticket=Ticket(1, number),
        request_id=f"r{number}",
        model="m",
        tenant_id="t",
        priority=priority,
        prompt_tokens=tokens,
        expected_tokens=1,
        block_hashes=(),
        queued_at=at,
        deadline=deadline,
        excluded=excluded,
    )


def drain(queue: WaitingQueue) -> list[int]:
    order = []
    while (head := next(queue.heads(), None)) is not None:
        queue.remove(head.ticket)
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
    assert [head.ticket.number for head in queue.heads()] == [3, 0, 1]


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
    assert [expired.ticket.number for expired in queue.expire(now=3.0)] == [1, 0]
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


@dataclass
class BruteQueue:
    """The same queue as a list."""

    limits: QueueLimits
    waiting: list[Request] = field(default_factory=list)

    def push(self, new: Request) -> list[Request]:
        def fits(others: list[Request]) -> bool:
            tokens = sum(other.prompt_tokens for other in others) + new.prompt_tokens
            return len(others) < self.limits.requests and tokens <= self.limits.prompt_tokens

        if not fits([other for other in self.waiting if other.priority >= new.priority]):
            return [new]
        shed = []
        while not fits(self.waiting):
            lowest = min(other.priority for other in self.waiting)
            victim = [other for other in self.waiting if other.priority == lowest][-1]
            self.waiting.remove(victim)
            shed.append(victim)
        self.waiting.append(new)
        return shed

    def ordered(self) -> list[Request]:
        return sorted(self.waiting, key=lambda other: -other.priority)


operations = st.lists(
    st.one_of(
        st.tuples(
            st.just("push"), st.integers(0, 9), st.integers(1, 5), st.integers(1, 20), st.sampled_from(["", "a"])
        ),
        st.tuples(st.just("remove"), st.integers(0, 60)),
        st.tuples(st.just("expire"), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(operations, st.integers(1, 8), st.integers(1, 20))
def test_the_queue_does_what_a_sorted_list_does(steps: list[tuple], requests: int, tokens: int) -> None:  # type: ignore[type-arg]
    """Order, shedding, cancelling and expiry equal those of a plain list; each request leaves once."""
    limits = QueueLimits(requests, tokens)
    queue, brute = WaitingQueue(limits), BruteQueue(limits)
    for number, step in enumerate(steps):
        match step:
            case ("push", priority, size, deadline, away):
                new = request(
                    number, priority, tokens=size, deadline=deadline, excluded=frozenset(away), at=float(number)
                )
                assert queue.push(new).refused == brute.push(new)
            case ("remove", victim):
                removed = queue.remove(Ticket(1, victim))
                assert removed == next((w for w in brute.waiting if w.ticket.number == victim), None)
                brute.waiting = [w for w in brute.waiting if w.ticket.number != victim]
            case ("expire", now):
                expired = queue.expire(now=now)
                assert {id(w) for w in expired} == {id(w) for w in brute.waiting if w.deadline <= now}
                brute.waiting = [w for w in brute.waiting if w.deadline > now]
        assert len(queue) == len(brute.waiting)
        assert queue.tokens == sum(w.prompt_tokens for w in brute.waiting)
        assert queue.next_deadline() == min((w.deadline for w in brute.waiting), default=None)
        assert queue.oldest_at() == min((w.queued_at for w in brute.waiting), default=None)
        assert next(queue.heads(), None) == next(iter(brute.ordered()), None)
    assert drain(queue) == [w.ticket.number for w in brute.ordered()]
