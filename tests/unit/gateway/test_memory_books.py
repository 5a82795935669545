"""Books in memory, for a mesh of one gateway."""

from __future__ import annotations

from gateway.core.quota.calls import Reserve, Settlement
from gateway.core.quota.policy import Bound, Kind
from gateway.quota.memory_books import MemoryBooks, Record

NOW = 1_796_025_600_000
PAR = Bound("t", Kind.PARALLEL_REQUESTS, 1)


async def test_tenants_have_books_of_their_own() -> None:
    """What one holds is nothing to another, until it is forgotten."""
    books = MemoryBooks(clock=lambda: NOW)
    granted = [(await books.reserve(tenant, Reserve("a", (PAR,), 0, 1000))).is_granted for tenant in ("acme", "other")]
    assert granted == [True, True]
    assert not (await books.reserve("acme", Reserve("b", (PAR,), 0, 1000))).is_granted
    await books.forget("acme")
    assert (await books.standings("acme", (PAR,)))[0].used == 0
    assert (await books.standings("other", (PAR,)))[0].used == 1


async def test_the_ledger_is_written_once_a_settlement() -> None:
    """With the time at which the request ended."""
    written: list[tuple[str, Record]] = []
    books = MemoryBooks(clock=lambda: NOW, write=lambda tenant, record: written.append((tenant, record)))
    told = Settlement("a", (), 5, age_ms=250, record=(("model", "m"),))
    silent = Settlement("b", (), 5)
    assert await books.settle_many([("acme", told), ("acme", told), ("acme", silent)]) == [True, False, True]
    assert written == [("acme", (("model", "m"), ("finished_ms", str(NOW - 250))))]


async def test_its_size_is_bounded() -> None:
    """Of too many tenants those that asked for nothing for longest begin anew."""
    books = MemoryBooks(clock=lambda: NOW, most_tenants=2)
    for tenant in ("one", "two", "one", "three"):
        await books.reserve(tenant, Reserve("a", (PAR,), 0, 1000))
    assert (await books.standings("one", (PAR,)))[0].used == 1
    assert (await books.standings("two", (PAR,)))[0].used == 0


async def test_it_is_never_away() -> None:
    """Whoever asks as of Redis is told that all is well, and of one gateway."""
    books = MemoryBooks()
    await books.run()
    assert (await books.wait_up(0), books.away, books.gateways) == (True, "", 1)
