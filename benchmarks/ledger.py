"""What a ledger costs: telling the books, keeping on disk, exporting and summing, for each entry.

    python -m benchmarks.ledger [--entries 50000]

Books are told by a task of one process whose store answers at once, so that its own cost is seen; the spool is on the
folder for temporary files, with its real fsync; exports and sums read from a real Valkey.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from benchmarks.report import write_report
from gateway.core.ledger import settlement_of
from gateway.core.quota.calls import Settlement
from gateway.core.quota.policy import Bound, Kind, TokenWeights
from gateway.core.sse import Usage
from gateway.quota.settling import Settling, SettlingMetrics
from gateway.quota.spool import Spool, Spooled
from gateway.quota.store import Booking
from inferway.cli import usage
from inferway.ledger import LedgerEntry, stream_key
from inferway.metrics import Registry
from tests.support.valkey import Valkey

_BOUNDS = (Bound("t", Kind.TOKENS_PER_MINUTE, 10_000_000), Bound("k:laptop", Kind.REQUESTS_PER_MINUTE, 1000))
_SPOOL_BATCH = 128
_LIMIT = 1 << 40


def made(rng: random.Random) -> Settlement:
    """One request's, as a gateway makes it."""
    entry = LedgerEntry(
        reservation_id=str(uuid.UUID(int=rng.getrandbits(128))),
        request_id=str(uuid.UUID(int=rng.getrandbits(128))),
        tenant="acme",
        project="search",
        key="laptop",
        model="llama-3.3-70b",
        endpoint="/v1/chat/completions",
        outcome="ok",
        priority=5,
        is_stream=True,
        worker=f"worker-{rng.randrange(20)}",
        received_ms=1_796_050_000_000,
        first_token_ms=1_796_050_000_500,
    )
    counts = Usage(rng.randrange(1000, 5000), rng.randrange(900), rng.randrange(1000))
    return settlement_of(entry, counts, bounds=_BOUNDS, weights=TokenWeights(cached=0.1))


class AtOnce:
    """A store that answers in the next turn of the loop."""

    async def settle_many(self, bookings: Sequence[Booking]) -> Sequence[bool]:
        await asyncio.sleep(0)
        return [True] * len(bookings)


async def settle(settlements: Sequence[Settlement], at_once: int) -> None:
    """So many are booked in one turn of the loop, and then those that come with the next."""
    settling = Settling(AtOnce(), None, SettlingMetrics(Registry("gateway")))
    task = asyncio.create_task(settling.run())
    await asyncio.sleep(0)
    for start in range(0, len(settlements), at_once):
        some = settlements[start : start + at_once]
        booked = asyncio.Event()
        for settlement in some[:-1]:
            settling.book("acme", settlement)
        settling.book("acme", some[-1], booked.set)
        await booked.wait()
    await settling.close(1)
    await task


def append(spool: Spool, settlements: Sequence[Settlement]) -> None:
    for start in range(0, len(settlements), _SPOOL_BATCH):
        spool.append([Spooled("acme", settlement, 0) for settlement in settlements[start : start + _SPOOL_BATCH]])


def replay(spool: Spool) -> None:
    while spool.head(_SPOOL_BATCH):
        spool.done()


def fill(client: Any, settlements: Sequence[Settlement]) -> float:
    """Bytes that an entry takes there."""
    before = client.info("memory")["used_memory"]
    now_ms = round(time.time() * 1000)
    with client.pipeline(transaction=False) as pipe:
        for settlement in settlements:
            pipe.xadd(stream_key("inferway", "acme"), {**dict(settlement.record), "finished_ms": str(now_ms)})
        pipe.execute()
    return float(client.info("memory")["used_memory"] - before) / len(settlements)


def command(*arguments: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        assert usage.main({}, arguments) == 0


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--entries", type=int, default=50_000)
    count = parser.parse_args().entries
    rng = random.Random(0)
    rows: list[dict[str, Any]] = []

    def timed(name: str, work: Callable[[], object], entries: int = count, **more: float) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        work()
        spent = {
            "cpu_us": (time.process_time() - cpu) * 1e6 / entries,
            "us": (time.perf_counter() - wall) * 1e6 / entries,
        }
        rows.append({"what": name, "bytes": "-"} | {key: round(value, 1) for key, value in (spent | more).items()})

    settlements: list[Settlement] = []
    timed("make a settlement", lambda: settlements.extend(made(rng) for _ in range(count)))
    few = settlements[: count // 10]
    timed("book, 1 at a time", lambda: asyncio.run(settle(few, 1)), len(few))
    timed("book, 10 at a time", lambda: asyncio.run(settle(settlements, 10)))
    with tempfile.TemporaryDirectory() as folder, Valkey() as valkey, contextlib.ExitStack() as stack:
        spool = Spool(Path(folder) / "spool", "bench", _LIMIT)
        stack.callback(spool.close)
        timed(f"spool, {_SPOOL_BATCH} at a time", lambda: append(spool, settlements))
        rows[-1]["bytes"] = round(spool.size_bytes / count, 1)
        timed("replay from the spool", lambda: replay(spool))
        client = stack.enter_context(redis.Redis.from_url(valkey.url))
        stored = fill(client, settlements)
        timed("sum a stream", lambda: command("--redis", valkey.url), bytes=stored)
        for file_format in ("parquet", "csv"):
            kept = Path(folder) / file_format
            to = ("--to", str(kept), "--format", file_format)
            timed(f"export to {file_format}", lambda to=to: command("export", "--redis", valkey.url, *to))
            files = [path for path in kept.rglob(f"*.{file_format}") if path.is_file()]
            rows[-1]["bytes"] = round(sum(path.stat().st_size for path in files) / count, 1)
            timed(f"sum {file_format}", lambda kept=kept: command("--exported", str(kept)))
    write_report("ledger", rows)


if __name__ == "__main__":
    main()
