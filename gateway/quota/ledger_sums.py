"""Sums of a tenant's ledger, for the admin API; for long ones there is `python -m inferway usage`."""

from __future__ import annotations

from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster

from inferway.ledger import entry_of, stream_key
from inferway.usage import Sums

# Of some 80 µs each: what one turn of the loop may take.
_CHUNK = 100


async def add_ledger(redis: Redis | RedisCluster, prefix: str, tenant: str, sums: Sums, *, most: int = 100_000) -> bool:
    """Add what a tenant has used to `sums`; False: there are more than `most` entries, and these are the first.

    What has been exported and trimmed is not among them. `redis` returns bytes. Raises redis.RedisError, UnknownEntry.
    """
    key = stream_key(prefix, tenant)
    client: Any = redis
    # An entry's id is the time at which it was booked, never before its request's end.
    least = "-" if sums.since_ms is None else str(max(0, sums.since_ms))
    seen = 0
    while chunk := await client.xrange(key, least, "+", count=_CHUNK):
        for entry_id, fields in chunk:
            if seen == most:
                return False
            seen += 1
            least = f"({entry_id.decode()}"
            sums.add(entry_of({name.decode(): text.decode(errors="replace") for name, text in fields.items()}))
    return True
