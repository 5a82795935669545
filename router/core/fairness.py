"""How the tenants of one band share: by tokens served, over their weights.

Each tenant has a counter (a virtual token counter). A request is charged when it is dispatched, by what it is expected
to cost, and settled when it ends, by what it has cost; both over the tenant's weight. Who has the least counter is
next. A tenant that begins to wait is lifted to the least counter of those that wait already, or, where nobody does, to
the counter at which the last request was served: to have been idle gives no credit. While two tenants wait, their
counters differ by the cost of one request at most.

A counter is forgotten once it says nothing: nobody waits, nothing runs, and to begin anew would lift it as high. Of
tenants that have gone with a higher one, the most indebted are kept, up to a bound.

Known weakness: tenants that nobody has seen before begin at the least counter, so that an endless row of new ones is
served before a tenant that has had more than they. Who counts as a tenant is for the gateway's keys to say.

Cost: O(log tenants) each.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple

# Counters above the floor that are kept for tenants that are gone.
_MOST_IDLE = 1_000


@dataclass(slots=True, eq=False)
class Account:
    """One tenant in one band."""

    tenant_id: str
    counter: float
    # As its last request had it.
    weight: float = 1.0
    # Requests that wait, and their expected cost in tokens.
    waiting: int = 0
    waiting_cost: int = 0
    # Charges that are not settled.
    in_flight: int = 0
    # How often the tenant has begun to wait.
    period: int = 0
    # How far the counter stood above the level to which it would have been lifted when the period began; below 0 where
    # it was lifted.
    surplus: float = 0.0
    # Requests that have ever begun to wait here, and their expected cost.
    pushed: int = 0
    pushed_cost: int = 0

    @property
    def holding(self) -> float:
        return self.waiting_cost / self.weight


class Charge(NamedTuple):
    """What a dispatch has been charged; it is settled once."""

    account: Account
    period: int
    tokens: int
    weight: float


@dataclass(slots=True)
class Shares:
    """The accounts of one band."""

    accounts: dict[str, Account] = field(default_factory=dict)
    # The highest counter at which a request was served: nobody who is served from now on was below it.
    floor: float = 0.0
    # Idle accounts above the floor, least first; stale where the account has moved on.
    _idle: list[tuple[float, str]] = field(default_factory=list)

    def account(self, tenant_id: str) -> Account:
        account = self.accounts.get(tenant_id)
        if account is None:
            account = self.accounts[tenant_id] = Account(tenant_id, self.floor)
        return account

    def begin(self, account: Account, least: float | None) -> None:
        """A tenant begins to wait; `least` is the least counter of those that wait already."""
        level = self.floor if least is None else max(self.floor, least)
        account.period += 1
        account.surplus = account.counter - level
        account.counter = max(account.counter, level)

    def charge(self, account: Account, tokens: int, weight: float) -> Charge:
        """A request of the account is served now."""
        self.floor = max(self.floor, account.counter)
        account.counter += tokens / weight
        account.in_flight += 1
        while self._idle and self._idle[0][0] <= self.floor:
            self._forget_least()
        return Charge(account, account.period, tokens, weight)

    def settle(self, charge: Charge, tokens: int) -> None:
        """A request that was served has cost `tokens`."""
        account = charge.account
        correction = (tokens - charge.tokens) / charge.weight
        if charge.period == account.period:
            account.counter += correction
        else:
            # Had it been known when the period began, the counter would have been lifted from there.
            before = account.surplus
            account.surplus += correction
            account.counter += max(0.0, account.surplus) - max(0.0, before)
        account.in_flight -= 1
        self.rest(account)

    def rest(self, account: Account) -> None:
        """Forget an account that says nothing; mark one that will say nothing one day."""
        if account.waiting or account.in_flight:
            return
        if account.counter <= self.floor:
            del self.accounts[account.tenant_id]
            return
        heappush(self._idle, (account.counter, account.tenant_id))
        if len(self._idle) > _MOST_IDLE:
            self._forget_least()

    def _forget_least(self) -> None:
        counter, tenant_id = heappop(self._idle)
        account = self.accounts.get(tenant_id)
        if account is not None and account.counter == counter and not account.waiting and not account.in_flight:
            del self.accounts[tenant_id]
