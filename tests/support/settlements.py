"""Settlements for tests of what keeps them, and books in a real Valkey that know no limits."""

from __future__ import annotations

from collections.abc import Sequence

import redis.asyncio
from redis.exceptions import RedisError

from gateway.core.ledger import settlement_of
from gateway.core.quota.calls import Settlement
from gateway.core.quota.policy import Bound, Kind, TokenWeights
from gateway.core.sse import Usage
from gateway.quota.store import Booking, StoreAway
from inferway.ledger import LedgerEntry, stream_key

BOUNDS = (Bound("t", Kind.TOKENS_PER_MINUTE, 10_000_000), Bound("k:laptop", Kind.PARALLEL_REQUESTS, 9))


def settlement(name: str, tenant: str = "acme", tokens: int = 7) -> Settlement:
    """Of 100 + `tokens` tokens."""
    entry = LedgerEntry(reservation_id=name, tenant=tenant, key="laptop", model="chat", outcome="ok")
    return settlement_of(entry, Usage(100, tokens), bounds=BOUNDS, weights=TokenWeights())


class StreamBooks:
    """Books each settlement once, by its id, and writes its entry; in one script, as the books of quotas do."""

    _SCRIPT = """
    if redis.call('ZADD', KEYS[1], 'NX', 0, ARGV[1]) == 0 then return 0 end
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('XADD', KEYS[2], '*', 'finished_ms', string.format('%d', now - ARGV[2]), unpack(ARGV, 3))
    return 1
    """

    def __init__(self, url: str, timeout_s: float = 0.2) -> None:
        self.client = redis.asyncio.Redis.from_url(
            url, socket_timeout=timeout_s, socket_connect_timeout=timeout_s, retry=None
        )

    async def settle_many(self, bookings: Sequence[Booking]) -> Sequence[bool]:
        try:
            async with self.client.pipeline(transaction=False) as pipe:
                for tenant, told in bookings:
                    keys = [f"inferway:{{{tenant}}}:settled", stream_key("inferway", tenant)]
                    record = [text for pair in told.record for text in pair]
                    name = f"{told.reservation_id}/{told.part}" if told.part else told.reservation_id
                    pipe.eval(self._SCRIPT, 2, *keys, name, told.age_ms, *record)
                answers: list[int] = await pipe.execute()
        except (RedisError, OSError) as error:
            raise StoreAway(f"{type(error).__name__}: {error}") from error
        return [bool(answer) for answer in answers]

    async def close(self) -> None:
        await self.client.aclose()
