"""How tenants share a band, rule by rule. test_waiting_queue.py holds the whole against plain lists."""

from __future__ import annotations

from itertools import count

import pytest

from router.core.fairness import Shares
from router.core.messages import Request, Ticket
from router.core.queue import Ageing, Debit, WaitingQueue

_NEVER = Ageing(interval_s=1e9)


class Band:
    """A queue whose requests are named by tenant and number, as in a1, and cost what the test says."""

    def __init__(self) -> None:
        self.queue = WaitingQueue(ageing=_NEVER)
        self._numbers = count(1)
        self._names: dict[Ticket, str] = {}

    def push(self, *names: str, weight: float = 1.0, priority: int = 5) -> None:
        for name in names:
            ticket = Ticket(1, next(self._numbers))
            self._names[ticket] = name
            refused = self.queue.push(
                Request(ticket, name, "m", name[0], priority, 10, 1, (), 0.0, 1e9, tenant_weight=weight)
            ).refused
            assert not refused

    def serve(self, cost: int = 10) -> tuple[str, Debit]:
        head = next(self.queue.heads(now=0.0))
        return self._names[head.ticket], self.queue.dispatch(head.ticket, cost, now=0.0)

    def names(self, requests: int, costs: dict[str, int] | None = None) -> str:
        """Who is served next, each at its tenant's cost."""
        served = []
        for _ in range(requests):
            tenant = next(self.queue.heads(now=0.0)).tenant_id
            served.append(self.serve((costs or {}).get(tenant, 10))[0])
        return " ".join(served)


def test_inside_a_tenant_who_came_first_goes_first() -> None:
    """Tenants take turns at equal cost; each tenant's own requests keep their order."""
    band = Band()
    band.push("a1", "a2", "a3", "b1", "b2", "b3")
    assert band.names(6) == "a1 b1 a2 b2 a3 b3"


def test_tokens_are_shared_and_not_requests() -> None:
    """For each request of 30 tokens of one tenant, the other has three of 10."""
    band = Band()
    band.push(*(f"a{i}" for i in range(3)), *(f"b{i}" for i in range(9)))
    assert band.names(12, {"a": 30}) == "a0 b0 b1 b2 a1 b3 b4 b5 a2 b6 b7 b8"


def test_a_weight_multiplies_the_share() -> None:
    """A tenant of weight 2 has twice the tokens, one of 0.5 half of them."""
    for weight, expected in [(2.0, "a0 b0 b1 a1 b2 b3 a2 b4 b5"), (0.5, "a0 b0 a1 a2 b1 a3 a4 b2 a5")]:
        band = Band()
        band.push(*(f"a{i}" for i in range(9)))
        band.push(*(f"b{i}" for i in range(9)), weight=weight)
        assert band.names(9) == expected, weight


def test_having_been_idle_gives_no_credit() -> None:
    """Who comes late shares from then on; what others had before is not made up for."""
    band = Band()
    band.push(*(f"a{i}" for i in range(20)))
    band.names(10)
    band.push(*(f"b{i}" for i in range(5)))
    assert band.names(6) == "a10 b0 a11 b1 a12 b2"


def test_nor_does_it_where_nobody_waited_in_between() -> None:
    """The band remembers how far it was, so that a tenant of long ago does not come before one that has just begun."""
    band = Band()
    band.push("b0")
    band.serve()[1].settle(10)
    for number in range(10):
        band.push(f"a{number}")
        band.serve()[1].settle(10)
    band.push("b1", "b2", "b3", "a10", "a11", "a12")
    # b comes back at the 90 of the last request; a stands at 100.
    assert band.names(6) == "b1 b2 a10 b3 a11 a12"


def test_a_debt_outlasts_a_pause() -> None:
    """A tenant that has had a large answer does not get rid of that by leaving and coming back."""
    band = Band()
    band.push("a1", "b1", "b2", "b3", "b4", "b5")
    band.names(1, {"a": 35})
    band.push("a2")
    assert band.names(6) == "b1 b2 b3 b4 a2 b5"


def test_an_answer_that_was_shorter_than_expected_is_made_up_for() -> None:
    """At its end a request counts with what it has cost."""
    band = Band()
    band.push(*(f"a{i}" for i in range(5)), *(f"b{i}" for i in range(5)))
    _, debit = band.serve(cost=40)
    assert band.names(2) == "b0 b1"
    debit.settle(5)
    assert band.names(4) == "a1 a2 b2 a3"


def test_and_one_that_was_longer_is_charged() -> None:
    band = Band()
    band.push(*(f"a{i}" for i in range(5)), *(f"b{i}" for i in range(5)))
    band.serve(cost=10)[1].settle(30)
    assert band.names(5) == "b0 b1 b2 a1 b3"


def test_what_was_charged_before_a_pause_gives_no_credit_after_it() -> None:
    """A tenant that was lifted when it came back has no claim to what it would not have had either."""
    band = Band()
    band.push("a0", *(f"b{i}" for i in range(20)))
    _, debit = band.serve(cost=500)
    band.names(10)
    band.push(*(f"a{i}" for i in range(1, 6)))
    debit.settle(10)
    # a stood at 10, would have been lifted to the 100 of b, and stands there now.
    assert band.names(5) == "b10 a1 b11 a2 b12"


def test_bands_count_apart() -> None:
    """What a tenant has had at a high priority does not hold it back at a lower one."""
    band = Band()
    band.push("a0", "a1", "a2", priority=9)
    band.names(3)
    band.push("a3", "b0", "a4", "b1")
    assert band.names(4) == "a3 b0 a4 b1"


def test_tenants_that_are_gone_are_forgotten() -> None:
    """A hundred thousand tenants that come once leave no more than a bound, and none once the band has moved on."""
    shares = Shares()
    for number in range(100_000):
        account = shares.account(f"t{number}")
        shares.begin(account, None)
        shares.settle(shares.charge(account, 100, 1.0), 100)
    assert len(shares.accounts) <= 1_000
    account = shares.account("last")
    for _ in range(3):
        shares.begin(account, None)
        charge = shares.charge(account, 100, 1.0)
    assert set(shares.accounts) == {"last"}
    shares.settle(charge, 0)


@pytest.mark.parametrize("tenants", [1, 40])
def test_the_most_indebted_are_kept_longest(tenants: int) -> None:
    """Who is forgotten for lack of space is who would lose least by it."""
    shares = Shares()
    large = [f"large{number}" for number in range(tenants)]
    for tenant_id in [*large, *(f"small{number}" for number in range(5_000))]:
        account = shares.account(tenant_id)
        shares.begin(account, None)
        cost = 1_000 if tenant_id in large else 10
        shares.settle(shares.charge(account, cost, 1.0), cost)
    assert set(large) <= shares.accounts.keys()
