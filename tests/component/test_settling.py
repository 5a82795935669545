"""Settlements reach a real store exactly once: while it is away, slow, restarted, and when processes are killed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from gateway.core.quota.calls import Settlement
from gateway.quota.file_ledger import FiledBooks, FileLedger
from gateway.quota.memory_books import MemoryBooks
from gateway.quota.redis_books import RedisBooks
from gateway.quota.settling import Settling, SettlingMetrics
from gateway.quota.spool import Spool, Spooled
from gateway.quota.store import Booking, Books
from inferway.cli.ledger_streams import file_entries
from inferway.ledger import LedgerEntry, entry_of, stream_key
from inferway.metrics import Registry
from tests.support.processes import ROOT
from tests.support.settlements import redis_books, settlement
from tests.support.valkey import Valkey
from tests.support.waiting import until, wait_until


@pytest.fixture
def valkey() -> Iterator[Valkey]:
    with Valkey(is_durable=True) as found:
        yield found


def ledger(valkey: Valkey, tenant: str = "acme") -> list[LedgerEntry]:
    client = redis.Redis.from_url(valkey.url)
    try:
        entries = client.xrange(stream_key("inferway", tenant))
        return [entry_of({name.decode(): text.decode() for name, text in fields.items()}) for _, fields in entries]
    finally:
        client.close()


def names(valkey: Valkey) -> list[str]:
    return [entry.reservation_id for entry in ledger(valkey)]


class Run:
    """A Settling that runs, and what it has called back, in order."""

    def __init__(self, books: Books, spool: Spool | None, **options: Any) -> None:
        self.registry = Registry("gateway")
        self.settling = Settling(books, spool, SettlingMetrics(self.registry), retry_s=0.2, **options)
        self.booked: list[str] = []
        self.is_closed = False

    def book(self, told: Settlement) -> None:
        self.settling.book("acme", told, lambda: self.booked.append(told.reservation_id))

    def counted(self, event: str) -> int:
        name = "inferway_gateway_settlements_total"
        return int(self.registry.collectors.get_sample_value(name, {"event": event}) or 0)

    def gauge(self, name: str) -> int:
        return int(self.registry.collectors.get_sample_value(f"inferway_gateway_{name}") or 0)


@contextlib.asynccontextmanager
async def running(books: Books, spool: Spool | None = None, **options: Any) -> AsyncIterator[Run]:
    run = Run(books, spool, **options)
    task = asyncio.create_task(run.settling.run())
    try:
        yield run
    finally:
        if not run.is_closed:
            await run.settling.close(5)
        await asyncio.wait([task])


@pytest.fixture
async def books(valkey: Valkey) -> AsyncIterator[RedisBooks]:
    async with redis_books(valkey.url) as found:
        yield found


async def test_all_are_booked_in_order(valkey: Valkey, books: RedisBooks) -> None:
    """While the store is well nothing touches a disk, and who books does not wait."""
    async with running(books) as run:
        wanted = [f"r-{number}" for number in range(1000)]
        for name in wanted:
            run.book(settlement(name))
        assert run.booked == []
        await until(lambda: len(run.booked) == 1000)
        assert run.booked == names(valkey) == wanted
        run.book(settlement("r-7"))
        await until(lambda: len(run.booked) == 1001)
        assert run.counted("duplicate") == 1
    assert names(valkey) == wanted


async def test_an_outage_is_bridged_by_the_spool(valkey: Valkey, books: RedisBooks, tmp_path: Path) -> None:
    """Kept on disk while the store is away, replayed once in order, with the ages that they have by then."""
    async with running(books, Spool(tmp_path, "gw", 1 << 20)) as run:
        run.book(settlement("before"))
        await until(lambda: run.booked == ["before"])
        valkey.stop()
        wanted = [f"r-{number}" for number in range(300)]
        first_ms = time.time() * 1000
        for name in wanted:
            run.book(settlement(name))
        last_ms = time.time() * 1000
        await until(lambda: len(run.booked) == 301)
        assert run.counted("spooled") == 300
        assert run.gauge("spool_bytes") > 0
        await asyncio.sleep(0.5)
        valkey.start()
        await until(lambda: len(names(valkey)) == 301)
        assert names(valkey) == ["before", *wanted]
        # The store's clock is that of this process. An entry is given its age, and booked a little later.
        slack_ms = 400
        assert all(first_ms - 5 <= entry.finished_ms <= last_ms + slack_ms for entry in ledger(valkey)[1:])
        await until(lambda: not list(tmp_path.glob("*.spool")))
        run.book(settlement("after"))
        await until(lambda: names(valkey)[-1] == "after")
        assert run.counted("spooled") == 300


async def test_what_is_in_doubt_is_told_again(valkey: Valkey, books: RedisBooks, tmp_path: Path) -> None:
    """A store that takes a call and does not answer in time books it once all the same."""
    async with running(books, Spool(tmp_path, "gw", 1 << 20)) as run:
        run.book(settlement("before"))
        await until(lambda: run.booked == ["before"])
        valkey.pause()
        wanted = [f"r-{number}" for number in range(100)]
        for name in wanted:
            run.book(settlement(name))
        await until(lambda: len(run.booked) == 101)
        assert run.counted("in_doubt") >= 100
        valkey.resume()
        await until(lambda: run.counted("booked") + run.counted("duplicate") == 101)
        assert sorted(names(valkey)) == sorted(["before", *wanted])
        assert run.counted("duplicate") > 0


async def test_without_a_spool_memory_holds_them(
    valkey: Valkey, books: RedisBooks, caplog: pytest.LogCaptureFixture
) -> None:
    """Up to its bound, of which is told beforehand; what is above is lost, loudly."""
    async with running(books, None, max_pending=50) as run:
        valkey.stop()
        for number in range(50):
            assert run.settling.has_room
            run.book(settlement(f"r-{number}"))
        assert not run.settling.has_room
        run.book(settlement("lost"))
        assert run.counted("lost") == 1
        [line] = [record for record in caplog.records if record.message == "settlement_lost"]
        assert line.fields["record"]["reservation_id"] == "lost"  # type: ignore[attr-defined]
        valkey.start()
        await until(lambda: len(run.booked) == 50)
        assert run.settling.has_room
    assert names(valkey) == [f"r-{number}" for number in range(50)]


async def test_a_full_spool_leaves_the_rest_in_memory(valkey: Valkey, books: RedisBooks, tmp_path: Path) -> None:
    """The oldest stay on disk, the newest in memory, an alarm is up, and all are booked in the end."""
    async with running(books, Spool(tmp_path, "gw", 40_000)) as run:
        valkey.stop()
        wanted = [f"r-{number}" for number in range(300)]
        for name in wanted:
            run.book(settlement(name))
        await until(lambda: run.gauge("spool_failed") == 1)
        kept = len(run.booked)
        assert 0 < kept < 300
        assert run.gauge("settlements_pending") == 300 - kept
        valkey.start()
        await until(lambda: len(run.booked) == 300)
        await until(lambda: len(names(valkey)) == 300)
        assert sorted(names(valkey)) == sorted(wanted)


async def test_a_disk_that_fails_is_tried_again(valkey: Valkey, books: RedisBooks, tmp_path: Path) -> None:
    """A folder that is no folder any more keeps nothing; once it is back it does."""
    folder = tmp_path / "volume"
    async with running(books, Spool(folder, "gw", 1 << 20)) as run:
        valkey.stop()
        shutil.rmtree(folder)
        folder.touch()
        run.book(settlement("r"))
        await until(lambda: run.gauge("spool_failed") == 1)
        assert run.booked == []
        folder.unlink()
        folder.mkdir()
        await until(lambda: run.booked == ["r"])
        assert run.gauge("spool_failed") == 0
        valkey.start()
        await until(lambda: names(valkey) == ["r"])


async def test_a_close_leaves_nothing_in_memory(valkey: Valkey, books: RedisBooks, tmp_path: Path) -> None:
    """What the store does not take goes to disk, and the next process books it."""
    async with running(books, Spool(tmp_path, "gw", 1 << 20)) as run:
        valkey.pause()
        for number in range(400):
            run.book(settlement(f"r-{number}"))
        run.is_closed = True
        assert await run.settling.close(4) == 0
        assert len(run.booked) == 400
    valkey.resume()
    async with running(books, Spool(tmp_path, "next", 1 << 20)):
        await until(lambda: len(names(valkey)) == 400)
    assert len(set(names(valkey))) == 400


async def test_a_settlement_that_the_store_refuses_does_not_stop_the_others(
    valkey: Valkey, books: RedisBooks, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is set aside, with all that is needed to book it by hand."""

    class Picky:
        async def settle_many(self, bookings: Sequence[Booking]) -> Sequence[bool]:
            if any(told.reservation_id == "poison" for _, told in bookings):
                raise ValueError("no such thing")
            return await books.settle_many(bookings)

    async with running(Picky(), Spool(tmp_path, "gw", 1 << 20)) as run:
        for name in ("a", "poison", "b"):
            run.book(settlement(name))
        await until(lambda: names(valkey) == ["a", "b"])
        await until(lambda: len(run.booked) == 3)
        assert run.counted("set_aside") == 1
        [line] = [record for record in caplog.records if record.message == "settlement_set_aside"]
        assert line.fields["record"]["completion_tokens"] == "7"  # type: ignore[attr-defined]
        # Alone it might be the store's fault: it waits for company, on disk.
        run.book(settlement("poison"))
        await until(lambda: run.counted("spooled") == 1)
        run.book(settlement("c"))
        await until(lambda: "c" in names(valkey))


async def test_a_tenant_whose_ledger_is_broken_does_not_stop_the_others(
    valkey: Valkey, books: RedisBooks, tmp_path: Path
) -> None:
    """What cannot be booked is set aside; the spool does not grow behind it."""
    redis.Redis.from_url(valkey.url).set(stream_key("inferway", "broken"), "no stream")
    async with running(books, Spool(tmp_path, "gw", 1 << 20)) as run:
        run.settling.book("broken", settlement("0"))
        await until(lambda: run.counted("spooled") == 1)
        for number in range(1, 300):
            run.book(settlement(str(number)))
        await until(lambda: run.counted("set_aside") == 1)
        await until(lambda: len(run.booked) == 299 and run.gauge("spool_bytes") == 0)
    assert sorted(names(valkey)) == sorted(str(number) for number in range(1, 300))


async def test_an_end_in_the_future_has_no_age(valkey: Valkey, books: RedisBooks, tmp_path: Path) -> None:
    """A wall clock that was set back between spool and replay makes nothing younger than new."""
    before = Spool(tmp_path, "before", 1 << 20)
    before.append([Spooled("acme", settlement("r"), round(time.time() * 1000) + 3_600_000)])
    before.close()
    async with running(books, Spool(tmp_path, "gw", 1 << 20)):
        await until(lambda: names(valkey) == ["r"])
    assert ledger(valkey)[0].finished_ms <= time.time() * 1000


@contextlib.contextmanager
def process(valkey: Valkey, folder: Path, name: str, count: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.support.settling_process", valkey.url, str(folder), name, str(count)]
    with (folder.parent / f"{name}.out").open("w") as out:
        popen = subprocess.Popen(command, cwd=ROOT, stdout=out, text=True)
    try:
        yield popen
    finally:
        popen.kill()
        popen.wait()


def told(folder: Path, name: str) -> list[int]:
    """What a process has said cannot be lost."""
    return [int(line) for line in (folder.parent / f"{name}.out").read_text().split("\n") if line.isdecimal()]


def test_killed_processes_and_an_outage_lose_nothing(valkey: Valkey, tmp_path: Path) -> None:
    """kill -9 in an outage of the store, and in the replay after it: what was told as booked is in the ledger, once."""
    folder = tmp_path / "spool"
    folder.mkdir()
    with process(valkey, folder, "p0", 1_000_000) as popen:
        wait_until(lambda: len(told(folder, "p0")) > 200)
        valkey.kill()
        enough = len(told(folder, "p0")) + 2000
        wait_until(lambda: len(told(folder, "p0")) > enough)
        popen.kill()
    assert list(folder.glob("p0.*"))
    valkey.start()
    with process(valkey, folder, "p1", 1_000_000) as popen:
        # It has begun to replay what the other has left, and books its own beside that.
        wait_until(lambda: len(told(folder, "p1")) > 200)
        time.sleep(random.Random(7).random() / 10)
        popen.kill()
    with process(valkey, folder, "last", 100) as popen:
        wait_until(lambda: len(told(folder, "last")) == 100 and not list(folder.glob("*.spool")))
        popen.send_signal(signal.SIGTERM)
        assert popen.wait(10) == 0
    assert (tmp_path / "last.out").read_text().endswith("lost 0\n")
    found = Counter(names(valkey))
    assert set(found.values()) == {1}
    for name in ("p0", "p1", "last"):
        missing = [number for number in told(folder, name) if f"{name}-{number}" not in found]
        assert missing == []


async def test_without_a_store_the_ledger_is_a_file(tmp_path: Path) -> None:
    """An entry for each, with the end that its age says, in files by day; a disk that fails gets it later."""
    now = 1_796_050_000.0
    folder = tmp_path / "ledger"
    kept = FileLedger(folder, "gw", clock=lambda: now)
    books = MemoryBooks(write=kept.write, clock=lambda: round(now * 1000))
    async with running(FiledBooks(books, kept)) as run:
        for number in range(3):
            run.book(settlement(f"r-{number}"))
        await until(lambda: len(run.booked) == 3)
        run.book(settlement("r-1"))
        await until(lambda: len(run.booked) == 4)
        shutil.rmtree(folder)
        folder.touch()
        run.book(settlement("late"))
        await until(lambda: len(run.booked) == 5)
        folder.unlink()
        folder.mkdir()
        run.book(settlement("later"))
        await until(lambda: len(run.booked) == 6)
    assert [path.name for path in folder.iterdir()] == ["2026-11-30.gw.ledger"]
    entries = list(file_entries(folder))
    assert [entry.reservation_id for entry in entries if entry is not None] == ["late", "later"]
    assert all(entry is not None and 0 <= now * 1000 - entry.finished_ms < 20_000 for entry in entries)
