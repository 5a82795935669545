"""The books of all tenants in Redis, for all gateways together: three scripts, and who the gateways are.

Keys of one tenant share a hash tag. Calls go over one shared connection, those of a tenant that come while another of
it is under way together (`lanes.py`); what their bounds and their tenant contribute is encoded once and remembered.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from inferway.redis_url import RedisUrl

from ..core.quota.books import EXPIRED_A_CALL, REMEMBER_MS
from ..core.quota.calls import Reserve, Settlement, Standing, Verdict
from ..core.quota.plan import plan_of
from ..core.quota.policy import Bound
from .lanes import Lanes
from .redis_store import RedisStore
from .wire import StoreAway, encode

__all__ = ["RedisBooks", "StoreAway", "TenantKeys"]

TIMEOUT_MS = 100
HEARTBEAT_S = 2.0
_DEAD_MS = 10_000
_SWEEP_S = 10.0
# So many tenants' keys are remembered in encoded form.
_TENANTS = 4096
# Words of a command: EVALSHA, the script and the number of keys; the keys; and what the scripts want for each request.
_HEAD_WORDS = 3
_RESERVE_KEYS, _RESERVE_FIELDS = 4, 5
_SETTLE_KEYS, _SETTLE_FIELDS = 5, 7
# A script takes some thousands of names at one time; what it does is to be short besides.
_BOUNDS_A_CALL = 500
# Settlements that wait for their answers at one time: a spool that is replayed does not hold up requests.
_SETTLE_AT_ONCE = 64

_encode = msgspec.msgpack.encode


class TenantKeys:
    """The keys of one tenant: one hash tag, so that a cluster has them in one place."""

    __slots__ = ("books", "held", "leases", "ledger", "reserve", "settle", "settled")

    def __init__(self, prefix: str, tenant_id: str) -> None:
        tag = f"{prefix}:{{{tenant_id}}}"
        self.books, self.leases, self.held = f"{tag}:books", f"{tag}:leases", f"{tag}:held"
        self.settled, self.ledger = f"{tag}:settled", f"{tag}:ledger"
        self.reserve = b"".join(map(_word, self.all[:_RESERVE_KEYS]))
        self.settle = b"".join(map(_word, self.all))

    @property
    def all(self) -> tuple[str, ...]:
        return self.books, self.leases, self.held, self.settled, self.ledger


class RedisBooks:
    """Raises StoreAway where Redis cannot answer within the timeout; what was asked may then have been done.

    Owned by one task, `run`. A reservation whose call ended in StoreAway is settled all the same, which releases it if
    it was made. `clock` gives the scripts a time, for tests that choose theirs; everybody else goes by the server's.
    """

    def __init__(
        self,
        url: str,
        *,
        gateway_id: str,
        prefix: str = "inferway",
        timeout_ms: int = TIMEOUT_MS,
        remember_ms: int = REMEMBER_MS,
        gateways: int | None = None,
        heartbeat_s: float = HEARTBEAT_S,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._prefix, self._clock, self._heartbeat_s = prefix, clock, heartbeat_s
        self._remember = _word(remember_ms)
        scripts = {name: _script(name) for name in ("reserve", "settle", "heartbeat")}
        self._reserve_head = _evalsha(scripts["reserve"], _RESERVE_KEYS)
        self._settle_head = _evalsha(scripts["settle"], _SETTLE_KEYS)
        self._registry = f"{prefix}:gateways"
        sha = hashlib.sha1(scripts["heartbeat"]).hexdigest()
        self._heartbeat = encode("EVALSHA", sha, 1, self._registry, gateway_id, _DEAD_MS)
        self._farewell = encode("ZREM", self._registry, gateway_id)
        self._store = RedisStore(
            RedisUrl.parse(url),
            timeout_s=timeout_ms / 1000,
            scripts=list(scripts.values()),
            probe_key=f"{prefix}:probe",
        )
        self._reserves, self._settles = Lanes(self._send_reserves), Lanes(self._send_settles)
        self._keys: dict[str, TenantKeys] = {}
        # How many gateways live, as Redis last said it; None: nobody has said it yet.
        self.gateways = gateways

    @property
    def away(self) -> str:
        """Why Redis, or a part of a cluster, cannot be asked: a word; "" where all is well."""
        return self._store.away

    async def wait_up(self, timeout_s: float) -> bool:
        """Whether Redis could be asked within that time."""
        return await self._store.wait_up(timeout_s)

    async def run(self) -> None:
        """Keeps the connection, and tells that this gateway lives, until it is cancelled."""
        async with asyncio.TaskGroup() as group, self._reserves.running(), self._settles.running():
            store = group.create_task(self._store.run())
            sweep = group.create_task(self._sweep())
            try:
                while True:
                    with contextlib.suppress(StoreAway):
                        self.gateways = await self._store.call(self._registry, self._heartbeat)
                    # The first word is said as soon as there is somebody to hear it.
                    if self.gateways is None:
                        await self._store.wait_up(self._heartbeat_s)
                        if not self.away:
                            continue
                    await asyncio.sleep(self._heartbeat_s)
            finally:
                with contextlib.suppress(StoreAway):
                    await self._store.call(self._registry, self._farewell)
                sweep.cancel()
                store.cancel()

    async def _sweep(self) -> None:
        """Leases that ran out are let go with the next call for their tenant; here for those that have none."""
        while True:
            await asyncio.sleep(_SWEEP_S)
            for tenant_id, keys in list(self._keys.items()):
                with contextlib.suppress(StoreAway):
                    # By this clock; a wrong one only makes it earlier or later.
                    count = encode("ZCOUNT", keys.leases, "-inf", time.time_ns() // 1_000_000)
                    expired = await self._store.call(keys.leases, count)
                    for _ in range(0, expired, EXPIRED_A_CALL):
                        await self.standings(tenant_id, ())

    def keys(self, tenant_id: str) -> TenantKeys:
        keys = self._keys.get(tenant_id)
        if keys is None:
            if len(self._keys) >= _TENANTS:
                self._keys.clear()
            keys = self._keys[tenant_id] = TenantKeys(self._prefix, tenant_id)
        return keys

    async def reserve(self, tenant_id: str, call: Reserve) -> Verdict:
        """Hold the request's place under all its bounds, or under none."""
        words = b"".join(
            (
                _blob(plan_of(call.bounds).packed),
                _word(call.reservation_id),
                _word(call.units),
                _word(call.lease_ms),
                _ONE if call.is_shadow else _ZERO,
            )
        )
        return _verdict(await self._reserves.call(tenant_id, words))

    async def standings(self, tenant_id: str, bounds: Sequence[Bound]) -> Sequence[Standing]:
        """As they are now; lets go of leases that ran out."""
        found: list[Standing] = []
        for start in range(0, max(1, len(bounds)), _BOUNDS_A_CALL):
            some = plan_of(bounds[start : start + _BOUNDS_A_CALL])
            words = b"".join((_blob(some.packed), _EMPTY, _ZERO, _ZERO, _ZERO))
            found += _verdict(await self._reserves.call(tenant_id, words)).standings
        return found

    async def settle(self, tenant_id: str, settlement: Settlement) -> bool:
        """Release what was held, book what was used and write the ledger's entry; False where that was done before."""
        record = [text for pair in settlement.record for text in pair]
        words = b"".join(
            (
                _blob(plan_of(settlement.bounds).packed),
                _word(settlement.reservation_id),
                _word(settlement.part) if settlement.part else _EMPTY,
                _word(settlement.units),
                _ONE if settlement.is_request else _ZERO,
                _word(settlement.age_ms),
                _blob(_encode(record)) if record else _EMPTY,
            )
        )
        return bool(await self._settles.call(tenant_id, words))

    async def settle_many(self, settlements: Sequence[tuple[str, Settlement]]) -> list[bool]:
        """The same for several, of tenants by their ids; where one raises StoreAway others may have been settled.

        To settle them all again is no harm.
        """
        done: list[bool] = []
        for start in range(0, len(settlements), _SETTLE_AT_ONCE):
            some = settlements[start : start + _SETTLE_AT_ONCE]
            answers = await asyncio.gather(*(self.settle(*each) for each in some), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                done.append(answer)
        return done

    async def is_settled(self, tenant_id: str, reservation_id: str) -> bool:
        """Whether the gateway that made the reservation has settled it itself."""
        keys = self.keys(tenant_id)
        return await self._store.call(keys.settled, encode("ZSCORE", keys.settled, reservation_id)) is not None

    async def is_living(self, gateway_id: str) -> bool:
        """Whether a gateway has told lately that it lives; each one that tells forgets those that have not."""
        return await self._store.call(self._registry, encode("ZSCORE", self._registry, gateway_id)) is not None

    async def forget(self, tenant_id: str) -> None:
        """Drop a tenant's books, leases and settled ids; the ledger stays until it is exported."""
        keys = self.keys(tenant_id)
        await self._store.call(keys.books, encode("UNLINK", *keys.all[:-1]))

    async def _send_reserves(self, tenant_id: str, calls: Sequence[bytes]) -> Sequence[Any]:
        keys = self.keys(tenant_id)
        head = b"*%d\r\n%b" % (_HEAD_WORDS + _RESERVE_KEYS + 2 + _RESERVE_FIELDS * len(calls), self._reserve_head)
        reply: Sequence[Any] = await self._store.call(
            keys.books, b"".join((head, keys.reserve, self._time(), self._remember, *calls))
        )
        return reply

    async def _send_settles(self, tenant_id: str, calls: Sequence[bytes]) -> Sequence[Any]:
        keys = self.keys(tenant_id)
        head = b"*%d\r\n%b" % (_HEAD_WORDS + _SETTLE_KEYS + 2 + _SETTLE_FIELDS * len(calls), self._settle_head)
        reply: Sequence[Any] = await self._store.call(
            keys.books, b"".join((head, keys.settle, self._time(), self._remember, *calls))
        )
        return reply

    def _time(self) -> bytes:
        return _EMPTY if self._clock is None else _word(self._clock())


def _verdict(answer: Sequence[int]) -> Verdict:
    failed = answer[1]
    standings = [Standing(answer[place], answer[place + 1]) for place in range(3, len(answer), 2)]
    return Verdict(answer[0] == 1, standings, failed - 1 if failed else None, answer[2])


def _script(name: str) -> bytes:
    folder = Path(__file__).parent
    text = (folder / f"{name}.lua").read_text()
    return (text if name == "heartbeat" else (folder / "books.lua").read_text() + text).encode()


def _word(value: str | int) -> bytes:
    text = str(value).encode()
    return b"$%d\r\n%b\r\n" % (len(text), text)


def _blob(packed: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(packed), packed)


_ZERO, _ONE, _EMPTY = _word(0), _word(1), _word("")


def _evalsha(script: bytes, num_keys: int) -> bytes:
    """The words before the keys."""
    return _word("EVALSHA") + _word(hashlib.sha1(script).hexdigest()) + _word(num_keys)
