"""Settlements for tests of what keeps them, and the books that they are for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from gateway.core.ledger import settlement_of
from gateway.core.quota.calls import Settlement
from gateway.core.quota.policy import Bound, Kind, TokenWeights
from gateway.core.sse import Usage
from gateway.quota.redis_books import RedisBooks
from inferway.ledger import LedgerEntry
from tests.support.waiting import PATIENCE_S

BOUNDS = (Bound("t", Kind.TOKENS_PER_MINUTE, 10_000_000), Bound("k:laptop", Kind.PARALLEL_REQUESTS, 9))


def settlement(name: str, tenant: str = "acme", tokens: int = 7) -> Settlement:
    """Of 100 + `tokens` tokens."""
    entry = LedgerEntry(reservation_id=name, tenant=tenant, key="laptop", model="chat", outcome="ok")
    return settlement_of(entry, Usage(100, tokens), bounds=BOUNDS, weights=TokenWeights())


@contextlib.asynccontextmanager
async def redis_books(url: str, name: str = "gw") -> AsyncIterator[RedisBooks]:
    """Those of a gateway of this name, once they are up."""
    books = RedisBooks(url, gateway_id=name, timeout_ms=200)
    task = asyncio.create_task(books.run())
    try:
        await books.wait_up(PATIENCE_S)
        yield books
    finally:
        task.cancel()
        await asyncio.wait([task])
