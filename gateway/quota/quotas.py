"""What the journey of a request asks of quotas: a place before it begins, its account when it has ended.

A reservation is made once and closed once, whatever happens between. `reserve` may be cancelled with its request;
`close` never waits, and what it has to send goes on without the request.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from inferway.errors import OK
from inferway.ledger import LedgerEntry

from ..core.ledger import settlement_of
from ..core.quota.account import booked
from ..core.quota.calls import Reserve, Settlement, Verdict
from ..core.quota.expected import ExpectedOutput
from ..core.quota.policy import Bound
from ..core.quota.rate_headers import limit_error, rate_headers, store_away_error
from ..core.quota.slices import Slices
from ..core.sse import Usage
from ..core.tenants import Caller
from ..generation_group import Running
from ..identity import new_reservation_id
from ..metrics import Metrics
from .settling import Settling
from .wire import StoreAway, StoreRefused

# How soon it is noticed that the books are back, and how many calls are told again at a time.
_LOOK_S = 0.1
_AT_ONCE = 64
# How long the last count of an aborted request may take to come; then what the gateway has seen counts.
_COUNT_S = 2.0
_NOTHING = Usage(0, 0)


class Books(Protocol):
    """Where places are held for all gateways, or for this one alone."""

    @property
    def gateways(self) -> int | None:
        """How many live, as far as is known; None: the store has never been met."""

    async def reserve(self, tenant_id: str, call: Reserve) -> Verdict:
        """Raises StoreAway."""

    async def wait_up(self, timeout_s: float) -> bool:
        """Whether they could be asked within that time."""


@dataclass(slots=True)
class Reservation:
    """A request's place under its bounds, until it is closed."""

    reservation_id: str
    caller: Caller
    bounds: tuple[Bound, ...]
    # What the answer says of the bounds.
    headers: Mapping[str, str] = field(default_factory=dict)
    # What generates for it; None for embeddings.
    running: Running | None = None


class Quotas:
    def __init__(
        self,
        books: Books,
        settling: Settling,
        slices: Slices | None,
        metrics: Metrics,
        *,
        lease_s: float,
        has_ledger: bool,
    ) -> None:
        """`slices` decide while the books are away; None where the books are this process's own.

        Without a ledger requests that no bound counts are not told to anybody.
        """
        self._books = books
        self._settling = settling
        self._slices = slices
        self._has_ledger = has_ledger
        self._metrics = metrics
        self._lease_ms = round(lease_s * 1000)
        self._rng = random.Random()
        self.expected = ExpectedOutput()
        # Closed, and waiting for the last count of what was aborted.
        self._uncounted: dict[str, Callable[[], None]] = {}
        # Something was granted without the books that they have not been told of yet.
        self._is_alone = False

    @property
    def is_shared(self) -> bool:
        """Whether another gateway could book what this one has not."""
        return self._slices is not None

    async def run(self) -> None:
        """Until cancelled: when the books are back, they are told first what has been granted without them."""
        while self._slices is not None:
            if self._is_alone and await self._books.wait_up(_LOOK_S):
                try:
                    told = await self._tell_open(self._slices)
                    self._is_alone = False
                    # And those that were granted meanwhile, which are few.
                    await self._tell_open(self._slices, told)
                except StoreAway:
                    self._is_alone = True
            await asyncio.sleep(_LOOK_S)

    async def _tell_open(self, slices: Slices, told: Set[str] = frozenset()) -> Set[str]:
        """All but those that have been told; the ids of these. Raises StoreAway."""
        calls = [each for each in slices.open_calls() if each[1].reservation_id not in told]
        for start in range(0, len(calls), _AT_ONCE):
            answers = await asyncio.gather(
                *(
                    self._books.reserve(tenant_id, replace(call, is_shadow=True))
                    for tenant_id, call in calls[start : start + _AT_ONCE]
                ),
                return_exceptions=True,
            )
            for answer in answers:
                if isinstance(answer, BaseException) and not isinstance(answer, StoreRefused):
                    raise answer
        return {call.reservation_id for _, call in calls}

    async def reserve(self, caller: Caller, names: tuple[str, ...], most: Usage) -> Reservation:
        """A place for a request that will use `most` as far as one can tell, for a model that goes by `names`.

        Raises ApiError (RATE_LIMITED, INSUFFICIENT_QUOTA, QUOTA_UNAVAILABLE).
        """
        if not self._settling.has_room:
            raise store_away_error(rng=self._rng)  # what it uses could be booked nowhere
        policy = caller.quota
        reservation = Reservation(new_reservation_id(), caller, policy.bounds(caller.key_id, *names))
        if not reservation.bounds:
            return reservation
        units, shadow = policy.weights.units(most), policy.is_shadow
        call = Reserve(reservation.reservation_id, reservation.bounds, units, self._lease_ms, shadow)
        verdict = await self._verdict(reservation, call)
        if verdict is None:
            return reservation
        if verdict.failed is not None:
            bound = call.bounds[verdict.failed].kind.field
            self._metrics.quota_refusals.labels(bound, "shadow" if shadow else "enforced").inc()
        if not verdict.is_granted:
            raise limit_error(call.bounds, verdict, rng=self._rng)
        reservation.headers = rate_headers(call.bounds, verdict.standings)
        return reservation

    async def _verdict(self, reservation: Reservation, call: Reserve) -> Verdict | None:
        """None: granted without having counted."""
        tenant_id = reservation.caller.tenant_id
        if self._is_alone:
            return self._alone(reservation, call)
        try:
            verdict = await self._books.reserve(tenant_id, call)
        except StoreRefused:
            return self._alone(reservation, call)
        except StoreAway as away:
            alone = self._alone(reservation, call, in_doubt=away.in_doubt)
            self._is_alone = self._is_alone or alone is not None
            return alone
        except asyncio.CancelledError:
            self._void(reservation)
            raise
        if self._slices is not None:
            told = self._slices.granted if verdict.is_granted else self._slices.refused
            told(tenant_id, call, verdict.standings, now_ms=_now_ms())
        self._decided("shared", verdict)
        return verdict

    def _alone(self, reservation: Reservation, call: Reserve, *, in_doubt: bool = False) -> Verdict | None:
        """Decide without the books. `in_doubt`: they may have granted this all the same."""
        caller = reservation.caller
        gateways = self._books.gateways
        if caller.quota.outage == "open":
            self._metrics.quota_decisions.labels("open").inc()
            return None
        if caller.quota.outage == "closed" or self._slices is None or not gateways:
            self._metrics.quota_decisions.labels("closed").inc()
            if in_doubt:
                self._void(reservation)
            raise store_away_error(rng=self._rng)
        verdict = self._slices.reserve(caller.tenant_id, call, gateways=gateways, now_ms=_now_ms())
        if in_doubt and not verdict.is_granted:
            self._void(reservation)
        self._decided("local", verdict)
        return verdict

    def _decided(self, by: str, verdict: Verdict) -> None:
        self._metrics.quota_decisions.labels(f"{by}_{'granted' if verdict.is_granted else 'refused'}").inc()

    def _void(self, reservation: Reservation) -> None:
        """Give a place back, whether or not there is one."""
        self._book(reservation, Settlement(reservation.reservation_id, reservation.bounds, 0, is_request=False))

    # Ends.

    def close(self, reservation: Reservation, entry: LedgerEntry, usage: Usage | None) -> None:
        """The request has ended as `entry` says; `usage` is what is known of it now, None where no worker had it.

        Where something was aborted, the engine's own count is waited for, aside.
        """
        running = reservation.running
        if running is None or usage is None:
            self._settle(reservation, entry, usage)
            return
        if running.counted.done():
            self._settle(reservation, entry, _exact(running, usage))
            return
        ended = time.monotonic()
        key = reservation.reservation_id

        def settle() -> None:
            """With the count that there is by now."""
            if self._uncounted.pop(key, None) is not None:
                timer.cancel()
                self._settle(
                    reservation, entry, _exact(running, usage), age_ms=round((time.monotonic() - ended) * 1000)
                )

        timer = asyncio.get_running_loop().call_later(_COUNT_S, settle)
        self._uncounted[key] = settle
        running.counted.add_done_callback(lambda _: settle())

    def close_all(self) -> None:
        """At the end of the process: what still waits for a count goes with what is known."""
        for settle in list(self._uncounted.values()):
            settle()

    def _settle(self, reservation: Reservation, entry: LedgerEntry, usage: Usage | None, *, age_ms: int = 0) -> None:
        caller, running = reservation.caller, reservation.running
        used = booked(usage, entry.outcome)
        if entry.outcome == OK and used is not None and running is not None:
            self.expected.observe(caller.tenant_id, entry.model, used.completion_tokens)
        settlement = settlement_of(
            entry,
            used or _NOTHING,
            bounds=reservation.bounds,
            weights=caller.quota.weights,
            is_request=used is not None,
            age_ms=age_ms,
        )
        self._book(reservation, settlement)

    def _book(self, reservation: Reservation, settlement: Settlement) -> None:
        tenant_id, running = reservation.caller.tenant_id, reservation.running
        on_booked = running.settled if running is not None else _nothing
        if self._slices is not None and settlement.bounds:
            self._slices.settle(tenant_id, settlement, now_ms=_now_ms())
        if settlement.bounds or (settlement.record and self._has_ledger):
            self._settling.book(tenant_id, settlement, on_booked)
        else:
            on_booked()  # there is nothing to tell


def _exact(running: Running, usage: Usage) -> Usage:
    """By the engine's count, where it has come. Only the gateway knows what of it were thoughts."""
    if not running.counted.done():
        return usage
    counted = running.counted.result()
    thoughts = max(counted.reasoning_tokens, usage.reasoning_tokens)
    return replace(counted, reasoning_tokens=min(thoughts, counted.completion_tokens))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _nothing() -> None:
    pass
