"""Books what requests came to, whatever becomes of them and of the store.

States of a settlement: pending (in memory), booked (the store has it, now or from before), spooled (on disk, until it
is booked). `book` makes it pending and returns; one task takes it on, several at a time. What was told to the store
without an answer is in doubt, and told again: the store knows what it has by the id.

While the store is away what is pending goes to the spool, and stays in memory where there is none, or where it is full
or cannot be written. When memory is full, too, nothing more is kept: `has_room` says so beforehand.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Literal, NamedTuple, TypeVar, get_args

from inferway import logs
from inferway.lifecycle import wait_for
from inferway.metrics import Registry

from ..core.quota.calls import Settlement
from .spool import Spool, Spooled
from .store import Booking, Books
from .wire import StoreAway, StoreRefused

log = logging.getLogger(__name__)

T = TypeVar("T")

# Told to the store in one call; 128 take it some 5 ms.
_BATCH = 128
_CLOSING_RETRY_S = 0.05
# How often files of processes that are gone are looked for.
_ADOPT_EVERY_S = 10.0


# duplicate: had been booked before; in_doubt: the first that got no answer, and are told again; set_aside: the store
# takes all but this one; lost: there was no place to keep it.
Event = Literal["booked", "duplicate", "in_doubt", "spooled", "set_aside", "lost"]


class SettlingMetrics:
    def __init__(self, registry: Registry) -> None:
        counter = registry.counter("settlements", "Settlements by what happened to them.", "event")
        self.settlements = {event: counter.labels(event) for event in get_args(Event)}
        self.pending = registry.gauge("settlements_pending", "Settlements that are only in memory.")
        self.spool_bytes = registry.gauge("spool_bytes", "Size of the files of settlements that wait for the store.")
        self.spool_failed = registry.gauge("spool_failed", "1 while the spool is full or cannot be written.")


class _Pending(NamedTuple):
    tenant_id: str
    settlement: Settlement
    # Monotonic seconds, the age that it came with taken off.
    ended: float
    on_booked: Callable[[], None]

    def age_ms(self) -> int:
        return max(0, round((time.monotonic() - self.ended) * 1000))


def _nothing() -> None:
    pass


class Settling:
    """`run` it as a task; `close` ends it, and sees to it that nothing is left in memory."""

    def __init__(
        self,
        books: Books,
        spool: Spool | None,
        metrics: SettlingMetrics,
        *,
        max_pending: int = 100_000,
        retry_s: float = 1.0,
    ) -> None:
        """A store that did not answer, or a disk that took nothing, is left alone for `retry_s`."""
        self._books = books
        self._spool = spool
        self._metrics = metrics
        self._max_pending = max_pending
        self._retry_s = retry_s
        self._pending: deque[_Pending] = deque()
        self._wake = asyncio.Event()
        self._is_closing = False
        self._task: asyncio.Task[object] | None = None
        self._ended = asyncio.Event()
        self._ended.set()
        # Whether the store did not answer when it was last asked, and from when it may be asked again.
        self._is_away = False
        self._ask_at = 0.0
        self._disk_at = 0.0
        self._adopt_at = 0.0
        # Calls of the spool, one after the other, also where one that waits for them is cancelled.
        self._disk = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spool")

    @property
    def has_room(self) -> bool:
        """False: what is booked now would be lost. Requests should be refused until the store or the disk is back."""
        return len(self._pending) < self._max_pending

    def book(self, tenant_id: str, settlement: Settlement, on_booked: Callable[[], None] = _nothing) -> None:
        """Never blocks or raises. `on_booked` is called once it can no longer be lost: by the store, or on disk.

        Without room it is logged as lost, and `on_booked` is not called.
        """
        if not self.has_room:
            self._tell("lost")
            self._shout("settlement_lost", tenant_id, settlement)
            return
        ended = time.monotonic() - settlement.age_ms / 1000
        self._pending.append(_Pending(tenant_id, settlement, ended, on_booked))
        self._wake.set()

    async def run(self) -> None:
        """Until `close`."""
        if self._is_closing:
            return
        self._ended.clear()
        self._task = asyncio.current_task()
        try:
            while not self._is_closing or (self._pending and (not self._is_away or self._spool is None)):
                self._wake.clear()
                if not await self._step():
                    # Cheaper than a timeout: this is passed once a request.
                    timer = asyncio.get_running_loop().call_later(self._idle_s(), self._wake.set)
                    await self._wake.wait()
                    timer.cancel()
        finally:
            self._ended.set()

    async def close(self, limit_s: float) -> int:
        """Book or spool what is pending, within about this time; how many are lost with this process.

        `run` returns meanwhile, or is cancelled. Call it once, when nobody books any more.
        """
        self._is_closing = True
        self._wake.set()
        deadline = time.monotonic() + limit_s
        # With a spool there must be time left to write it.
        store_s = limit_s if self._spool is None else limit_s / 2
        if not await wait_for(self._ended, store_s) and self._task is not None:
            self._task.cancel()
            await self._ended.wait()
        while self._pending and self._spool is not None:
            if not await self._keep(self._take()):
                if time.monotonic() >= deadline:
                    break
                await asyncio.sleep(_CLOSING_RETRY_S)
        lost = len(self._pending)
        for each in self._pending:
            self._tell("lost")
            self._shout("settlement_lost", each.tenant_id, each.settlement)
        self._pending.clear()
        if self._spool is not None:
            await self._on_disk(lambda spool: spool.close())
        self._disk.shutdown(wait=False)
        return lost

    async def _step(self) -> bool:
        """Do what can be done now; whether anything was."""
        now = time.monotonic()
        if self._spool is not None and now >= self._adopt_at:
            await self._adopt()
        may_ask = not self._is_away or now >= self._ask_at
        has_spooled = self._spool is not None and not self._spool.is_empty
        done = False
        # After an outage the oldest are the first to see whether the store is back.
        if may_ask and has_spooled and (self._is_away or not self._pending):
            done = await self._replay()
            may_ask = not self._is_away
        if self._pending and may_ask:
            batch = self._take()
            done = await self._settle(batch) or done
            if done and has_spooled and not self._is_away:
                await self._replay()
        if self._pending and self._is_away and self._spool is not None and now >= self._disk_at:
            done = bool(await self._keep(self._take())) or done
        self._measure()
        return done

    def _idle_s(self) -> float:
        now = time.monotonic()
        waits = [_ADOPT_EVERY_S]
        if self._is_away and (self._pending or (self._spool is not None and not self._spool.is_empty)):
            waits.append(self._ask_at - now)
        if self._is_away and self._pending and self._spool is not None:
            waits.append(self._disk_at - now)
        return max(0.001, min(waits))

    def _take(self) -> list[_Pending]:
        return [self._pending.popleft() for _ in range(min(_BATCH, len(self._pending)))]

    def _put_back(self, batch: Sequence[_Pending]) -> None:
        self._pending.extendleft(reversed(batch))

    # The store.

    async def _settle(self, batch: Sequence[_Pending]) -> bool:
        """Whether the store has taken them; else they are pending again."""
        try:
            bookings = [Booking(each.tenant_id, _aged(each.settlement, each.age_ms())) for each in batch]
            is_taken = await self._told(bookings)
        except BaseException:
            self._put_back(batch)
            raise
        if not is_taken:
            self._put_back(batch)
            return False
        self._call_back(batch)
        return True

    async def _replay(self) -> bool:
        """Whether the oldest of the spool have been taken."""
        assert self._spool is not None
        try:
            spooled = await self._on_disk(lambda spool: spool.head(_BATCH))
        except OSError as error:
            self._disk_failed(error)
            return False
        if not spooled:
            return True
        now_ms = round(time.time() * 1000)
        bookings = [Booking(each.tenant_id, _aged(each.settlement, max(0, now_ms - each.ended_ms))) for each in spooled]
        if not await self._told(bookings):
            return False
        await self._on_disk(lambda spool: spool.done())
        if self._spool.is_empty:
            logs.event(log, "spool_replayed")
        return True

    async def _told(self, bookings: Sequence[Booking]) -> bool:
        """Whether the store is done with all of them."""
        try:
            self._count(await self._books.settle_many(bookings))
        except StoreRefused:
            return await self._told_apart(bookings)
        except StoreAway as error:
            self._went_away(str(error), len(bookings))
            return False
        except Exception:
            log.exception("settling_failed")
            return await self._told_apart(bookings)
        if self._is_away:
            logs.event(log, "store_back")
        self._is_away = False
        return True

    async def _told_apart(self, bookings: Sequence[Booking]) -> bool:
        """One after the other: what the store refuses while it takes others is set aside, or nothing would go on."""
        refused = []
        problem = ""
        for booking in bookings:
            try:
                self._count(await self._books.settle_many([booking]))
            except StoreRefused as error:
                problem = error.reason
                refused.append(booking)
            except StoreAway as error:
                self._went_away(str(error), len(bookings))
                return False
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
                refused.append(booking)
        if len(refused) == len(bookings):
            self._went_away(problem, len(bookings))
            return False
        for tenant_id, settlement in refused:
            self._tell("set_aside")
            self._shout("settlement_set_aside", tenant_id, settlement)
        return True

    def _went_away(self, problem: str, in_doubt: int) -> None:
        if not self._is_away:
            logs.event(log, "store_away", level=logging.WARNING, problem=problem, in_doubt=in_doubt)
            self._tell("in_doubt", in_doubt)
        self._is_away = True
        self._ask_at = time.monotonic() + self._retry_s

    # The disk.

    async def _keep(self, batch: Sequence[_Pending]) -> int:
        """How many of them are on disk; the others are pending again."""
        now_ms = round(time.time() * 1000)
        spooled = [Spooled(each.tenant_id, each.settlement, now_ms - each.age_ms()) for each in batch]
        kept = 0
        try:
            kept = await self._on_disk(lambda spool: spool.append(spooled))
            if kept < len(batch):
                self._disk_failed("it is full")
            else:
                self._metrics.spool_failed.set(0)
        except OSError as error:
            self._disk_failed(error)
        finally:
            # Those on disk when this is cancelled are told twice, and booked once.
            self._put_back(batch[kept:])
        self._tell("spooled", kept)
        self._call_back(batch[:kept])
        return kept

    async def _adopt(self) -> None:
        self._adopt_at = time.monotonic() + _ADOPT_EVERY_S
        try:
            await self._on_disk(lambda own: own.adopt())
        except OSError as error:
            self._disk_failed(error)

    def _disk_failed(self, problem: object) -> None:
        self._disk_at = time.monotonic() + self._retry_s
        self._metrics.spool_failed.set(1)
        pending = len(self._pending)
        logs.event(log, "spool_failed", level=logging.ERROR, problem=str(problem), in_memory=pending)

    async def _on_disk(self, work: Callable[[Spool], T]) -> T:
        assert self._spool is not None
        return await asyncio.get_running_loop().run_in_executor(self._disk, work, self._spool)

    # What is told.

    def _call_back(self, batch: Sequence[_Pending]) -> None:
        for each in batch:
            try:
                each.on_booked()
            except Exception:
                log.exception("on_booked_failed")

    def _count(self, answers: Sequence[bool]) -> None:
        booked = sum(answers)
        self._tell("booked", booked)
        self._tell("duplicate", len(answers) - booked)

    def _tell(self, event: Event, count: int = 1) -> None:
        if count:
            self._metrics.settlements[event].inc(count)

    def _measure(self) -> None:
        self._metrics.pending.set(len(self._pending))
        if self._spool is not None:
            self._metrics.spool_bytes.set(self._spool.size_bytes)

    @staticmethod
    def _shout(name: str, tenant_id: str, settlement: Settlement) -> None:
        """Everything that is needed to book it by hand."""
        logs.event(
            log,
            name,
            level=logging.ERROR,
            tenant=tenant_id,
            reservation_id=settlement.reservation_id,
            part=settlement.part,
            units=settlement.units,
            record=dict(settlement.record),
        )


def _aged(settlement: Settlement, age_ms: int) -> Settlement:
    return settlement if settlement.age_ms == age_ms else replace(settlement, age_ms=age_ms)
