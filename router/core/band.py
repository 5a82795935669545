"""The waiting requests of one priority: tenants by their counters, first come first served inside a tenant.

There is one lane for each set of excluded workers, because only requests that exclude workers can be passed by others
(see `heads`). A lane keeps a heap of its tenants, by counter and then by the arrival of their first request. What
changes a tenant's counter or its first request pushes a new entry; the old one is stale and is dropped when it comes
up, or when stale entries outnumber the live ones.

Cost: push, remove, serve, settle O(lanes of the tenant * log tenants) amortised, where a tenant has one lane until
workers fail; head and heads O(lanes).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace, merge
from operator import attrgetter

from .fairness import Account, Charge, Shares
from .messages import Excluded, Request, Ticket

# Stale heap entries that are tolerated however few are live; below it a rebuild is not worth its bookkeeping.
HEAP_SLACK = 64


@dataclass(slots=True, eq=False)
class Entry:
    request: Request
    # Counts arrivals over all bands.
    order: int
    account: Account
    cost: int
    # Account.pushed and .pushed_cost at its arrival.
    place: int
    cost_before: int

    @property
    def sort_key(self) -> tuple[float, int]:
        """Of two first ones of their lanes, the lesser is served first."""
        return self.account.counter, self.order


_sort_key = attrgetter("sort_key")


# A tenant's counter, the order of its first request in the lane, and its id.
_Turn = tuple[float, int, str]


@dataclass(slots=True)
class _Lane:
    by_tenant: dict[str, OrderedDict[Ticket, Entry]] = field(default_factory=dict)
    _turns: list[_Turn] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        tenant_id = entry.account.tenant_id
        line = self.by_tenant.get(tenant_id)
        if line is None:
            line = self.by_tenant[tenant_id] = OrderedDict()
        line[entry.request.ticket] = entry
        if len(line) == 1:
            self.renew(tenant_id)

    def remove(self, entry: Entry) -> None:
        tenant_id = entry.account.tenant_id
        line = self.by_tenant[tenant_id]
        was_first = next(iter(line.values())) is entry
        del line[entry.request.ticket]
        if not line:
            del self.by_tenant[tenant_id]
        elif was_first:
            self.renew(tenant_id)

    def renew(self, tenant_id: str) -> None:
        """The tenant's counter or its first request has changed; nothing where it does not wait here."""
        if len(self._turns) > 2 * len(self.by_tenant) + HEAP_SLACK:
            self._turns = [_turn(line) for line in self.by_tenant.values()]
            heapify(self._turns)
        elif (line := self.by_tenant.get(tenant_id)) is not None:
            heappush(self._turns, _turn(line))

    def first(self) -> Entry:
        while True:
            counter, order, tenant_id = self._turns[0]
            line = self.by_tenant.get(tenant_id)
            if line is not None:
                entry = next(iter(line.values()))
                if entry.order == order and entry.account.counter == counter:
                    return entry
            heappop(self._turns)


def _turn(line: OrderedDict[Ticket, Entry]) -> _Turn:
    entry = next(iter(line.values()))
    return entry.account.counter, entry.order, entry.account.tenant_id


def expected_cost(request: Request) -> int:
    """In tokens, before anything is known of caches."""
    return request.prompt_tokens + request.expected_tokens * request.num_choices


class Band:
    def __init__(self) -> None:
        # Prompt tokens of all that wait.
        self.tokens = 0
        self._cost = 0
        # Weights of the tenants that wait.
        self._weight = 0.0
        self._shares = Shares()
        self._lanes: dict[Excluded, _Lane] = {}
        # Each tenant that waits with what it holds, or has held, most first.
        self._holders: list[tuple[float, str]] = []
        # By arrival.
        self._entries: OrderedDict[Ticket, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def push(self, request: Request, order: int) -> Entry:
        account = self._shares.account(request.tenant_id)
        if not account.waiting:
            self._shares.begin(account, self._least())
        else:
            self._weight -= account.weight
        account.weight = request.tenant_weight
        self._weight += account.weight
        cost = expected_cost(request)
        entry = Entry(request, order, account, cost, account.pushed, account.pushed_cost)
        account.waiting += 1
        account.waiting_cost += cost
        account.pushed += 1
        account.pushed_cost += cost
        self._note_holding(account)
        lane = self._lanes.get(request.excluded)
        if lane is None:
            lane = self._lanes[request.excluded] = _Lane()
        lane.add(entry)
        self._entries[request.ticket] = entry
        self.tokens += request.prompt_tokens
        self._cost += cost
        return entry

    def remove(self, entry: Entry) -> None:
        request, account = entry.request, entry.account
        lane = self._lanes[request.excluded]
        lane.remove(entry)
        if not lane.by_tenant:
            del self._lanes[request.excluded]
        del self._entries[request.ticket]
        self.tokens -= request.prompt_tokens
        self._cost -= entry.cost
        account.waiting -= 1
        account.waiting_cost -= entry.cost
        if not account.waiting:
            # The sum of no weights is none, whatever rounding has left.
            self._weight = self._weight - account.weight if self._entries else 0.0
            self._shares.rest(account)

    def serve(self, entry: Entry, tokens: int) -> Charge:
        """Take out the first of a lane, which is dispatched at an expected cost of `tokens`."""
        charge = self._shares.charge(entry.account, tokens, entry.request.tenant_weight)
        self.remove(entry)
        # Its own lane has seen that its first has changed.
        for excluded, lane in self._lanes.items():
            if excluded != entry.request.excluded:
                lane.renew(entry.account.tenant_id)
        return charge

    def settle(self, charge: Charge, tokens: int) -> None:
        self._shares.settle(charge, tokens)
        if charge.account.waiting:
            self._renew(charge.account)

    def tenants(self) -> Iterator[Account]:
        """Those that wait."""
        return (account for account in self._shares.accounts.values() if account.waiting)

    def head(self) -> Entry:
        """Who is served first; somebody must wait."""
        if len(self._lanes) == 1:
            (lane,) = self._lanes.values()
            return lane.first()
        return min((lane.first() for lane in self._lanes.values()), key=_sort_key)

    def heads(self) -> list[Entry]:
        """The first of each lane, in the order in which they may be served.

        Nobody else can be next: whoever stands behind in a lane can use exactly the workers that its first can use.
        """
        firsts = [lane.first() for lane in self._lanes.values()]
        if len(firsts) > 1:
            firsts.sort(key=_sort_key)
        return firsts

    def oldest(self) -> Entry:
        return next(iter(self._entries.values()))

    def newest_first(self) -> Iterator[Entry]:
        return reversed(self._entries.values())

    def holding_after(self, request: Request) -> float:
        """Expected cost of all that the tenant would have waiting with this request, over its weight."""
        account = self._shares.accounts.get(request.tenant_id)
        waiting_cost = account.waiting_cost if account is not None else 0
        return (waiting_cost + expected_cost(request)) / request.tenant_weight

    def largest_holder(self) -> Account | None:
        """Of the tenants that wait, the one with the largest expected cost over its weight."""
        while self._holders:
            held, tenant_id = self._holders[0]
            account = self._shares.accounts.get(tenant_id)
            if account is not None and account.waiting:
                if account.holding == -held:
                    return account
                heapreplace(self._holders, (-account.holding, tenant_id))
            else:
                heappop(self._holders)
        return None

    def newest_first_of(self, account: Account) -> Iterable[Entry]:
        tenant_id = account.tenant_id
        lines = [lane.by_tenant[tenant_id] for lane in self._lanes.values() if tenant_id in lane.by_tenant]
        return merge(*(reversed(line.values()) for line in lines), key=lambda entry: -entry.order)

    def num_before(self, entry: Entry) -> int:
        """About how many of the band are served before this one; O(1).

        Exact for a tenant that waits alone and has cancelled nothing in between. Others are reckoned to be served,
        each at its band's mean cost, for as many tokens as their weights give them in the meantime.
        """
        account = entry.account
        first = next(iter(self._lanes[entry.request.excluded].by_tenant[account.tenant_id].values()))
        own = min(entry.place - first.place, account.waiting - 1)
        others = len(self) - account.waiting
        if not others:
            return own
        own_cost = min(entry.cost_before - first.cost_before, account.waiting_cost)
        least = self._least()
        assert least is not None
        # On the scale of counters, all that wait come up to this one's turn together.
        counters = account.counter - least + own_cost / account.weight
        others_cost = counters * max(0.0, self._weight - account.weight)
        mean_cost = (self._cost - account.waiting_cost) / others
        return own + min(others, round(others_cost / mean_cost))

    def _least(self) -> float | None:
        """The least counter of those that wait."""
        return self.head().account.counter if self._lanes else None

    def _note_holding(self, account: Account) -> None:
        if len(self._holders) > 2 * len(self._shares.accounts) + HEAP_SLACK:
            waiting = (account for account in self._shares.accounts.values() if account.waiting)
            self._holders = [(-account.holding, account.tenant_id) for account in waiting]
            heapify(self._holders)
        else:
            heappush(self._holders, (-account.holding, account.tenant_id))

    def _renew(self, account: Account) -> None:
        for lane in self._lanes.values():
            lane.renew(account.tenant_id)
