"""The router's queue once more, as plain lists: slow, and short enough to be checked by reading."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from router.core.messages import Request
from router.core.queue import Ageing, QueueLimits


@dataclass
class Tenant:
    """One tenant in one band. Nothing is ever forgotten."""

    # The level at which the tenant last began to wait, what it stood above (or below) that, and its charges since.
    level: float = 0.0
    carried: float = 0.0
    since: float = 0.0
    period: int = 0

    @property
    def counter(self) -> float:
        return self.level + max(0.0, self.carried) + self.since


@dataclass
class Charged:
    tenant: Tenant
    period: int
    tokens: int
    weight: float


@dataclass
class BruteQueue:
    limits: QueueLimits = QueueLimits()  # noqa: RUF009 - an immutable tuple
    ageing: Ageing = Ageing()  # noqa: RUF009 - an immutable tuple
    # In the order of arrival.
    waiting: list[Request] = field(default_factory=list)
    tenants: dict[tuple[int, str], Tenant] = field(default_factory=dict)
    weights: dict[tuple[int, str], float] = field(default_factory=dict)
    floors: dict[int, float] = field(default_factory=dict)
    dispatches_since_lifted: int = 0

    def push(self, new: Request) -> list[Request]:
        """Those that must leave."""
        kept, shed = list(self.waiting), []

        def is_over(everybody: bool) -> bool:
            limits = self.limits
            band = [other for other in kept if everybody or other.priority == new.priority]
            requests, tokens = limits[:2] if everybody else limits[2:]
            return len(band) + 1 > requests or sum(r.prompt_tokens for r in [*band, new]) > tokens

        def held(tenant_id: str) -> float:
            return sum(map(_cost, own_of(tenant_id))) / self.weights[new.priority, tenant_id]

        def own_of(tenant_id: str) -> list[Request]:
            return [other for other in kept if (other.priority, other.tenant_id) == (new.priority, tenant_id)]

        while is_over(True) and any(other.priority < new.priority for other in kept):
            lowest = min(other.priority for other in kept)
            shed.append([other for other in kept if other.priority == lowest][-1])
            kept.remove(shed[-1])
        share = (sum(map(_cost, own_of(new.tenant_id))) + _cost(new)) / new.tenant_weight
        tenants = {other.tenant_id for other in kept if other.priority == new.priority}
        largest = min(tenants, key=lambda tenant_id: (-held(tenant_id), tenant_id), default=new.tenant_id)
        while is_over(True) or is_over(False):
            if largest == new.tenant_id or held(largest) <= share:
                return [new]
            shed.append(own_of(largest)[-1])
            kept.remove(shed[-1])
        self.waiting = kept
        self.weights[new.priority, new.tenant_id] = new.tenant_weight
        others = [other for other in self.waiting if other.priority == new.priority]
        tenant = self.tenants.setdefault((new.priority, new.tenant_id), Tenant())
        if all(other.tenant_id != new.tenant_id for other in others):
            level = max([self.floors.get(new.priority, 0.0), min(map(self.counter, others), default=0.0)])
            tenant.level, tenant.carried, tenant.since = level, tenant.counter - level, 0.0
            tenant.period += 1
        self.waiting.append(new)
        return shed

    def counter(self, request: Request) -> float:
        return self.tenants[request.priority, request.tenant_id].counter

    def ordered(self, *, now: float) -> list[Request]:
        """Whoever has room takes the first; the rest are in the order in which they would follow it were it gone."""
        arrival = dict(zip(map(id, self.waiting), count(), strict=False))
        first_arrival: dict[tuple[int, str, object], int] = {}
        for request in self.waiting:
            first_arrival.setdefault((request.priority, request.tenant_id, request.excluded), arrival[id(request)])

        def key(request: Request) -> tuple[float, float, int, int]:
            lane = first_arrival[request.priority, request.tenant_id, request.excluded]
            return -request.priority, self.counter(request), lane, arrival[id(request)]

        ordered = sorted(self.waiting, key=key)
        lifted = self._lifted(ordered, arrival, now)
        return ordered if lifted is None else [lifted, *(request for request in ordered if request is not lifted)]

    def dispatch(self, request: Request, tokens: int, *, now: float) -> Charged:
        lifted = self.ordered(now=now)[0] is request and request.priority < max(r.priority for r in self.waiting)
        self.dispatches_since_lifted = 0 if lifted else self.dispatches_since_lifted + 1
        tenant = self.tenants[request.priority, request.tenant_id]
        self.floors[request.priority] = max(self.floors.get(request.priority, 0.0), tenant.counter)
        tenant.since += tokens / request.tenant_weight
        self.waiting.remove(request)
        return Charged(tenant, tenant.period, tokens, request.tenant_weight)

    def settle(self, charged: Charged, tokens: int) -> None:
        correction = (tokens - charged.tokens) / charged.weight
        if charged.period == charged.tenant.period:
            charged.tenant.since += correction
        else:
            charged.tenant.carried += correction

    def _lifted(self, ordered: list[Request], arrival: dict[int, int], now: float) -> Request | None:
        if not ordered or (self.dispatches_since_lifted + 1) * self.ageing.share < 1.0 - 1e-9:
            return None
        top = ordered[0].priority
        firsts = {request.priority: request for request in reversed(ordered)}
        due = []
        for priority, request in firsts.items():
            band = min(9, priority + int((now - request.queued_at) / self.ageing.interval_s))
            if priority < top <= band:
                due.append((-band, arrival[id(request)], request))
        return min(due, default=(0, 0, None))[2]


def _cost(request: Request) -> int:
    return request.prompt_tokens + request.expected_tokens * request.num_choices
