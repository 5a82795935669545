"""The decision log as a file: read back by the simulator, moved away, not writable, too slow."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from inferway.errors import ApiError, Reason
from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, Reject, ReleaseOutcome, Request, Ticket, WorkerInfo
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from router.core.records import Records
from router.decision_log import DecisionLog
from router.simulate.trace import TraceRequest, read_trace
from tests.support.waiting import until

BLOCK = 4
# As large as a hash can be.
HASHES = [2**64 - 1, 2**63, 1]


class Source:
    """Decisions of a real dispatcher, recorded into a log; `counted` are its lines by what became of them."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.counted: Counter[str] = Counter()
        self.log = DecisionLog(str(path), self._count, **options)
        self.records = Records(10, ended=self.log.add)
        self._machine = Dispatcher(routing=routing_of("default"), rng=Random(1), first_lease_id=1, limits=QueueLimits())
        self._machine.worker_up(WorkerInfo("a", "1", "a:1", {"m": BLOCK}, 100, 0, None, 1000.0))
        self._numbers = 0

    def _count(self, outcome: str, lines: int) -> None:
        self.counted[outcome] += lines

    def request(self, *, at: float = 0.0) -> Request:
        self._numbers += 1
        number = self._numbers
        return Request(Ticket(1, number), f"r{number}", "m", "t", 7, 13, 4, HASHES, at, at + 100.0)

    def dispatched(self, *, at: float = 0.0) -> int:
        """The lease of a request that has come and gone to a worker at this time."""
        self._machine.submit(self.request(at=at), now=at)
        (action,) = self._machine.tick(now=at)
        assert isinstance(action, Dispatch)
        self.records.decided(action, now=at)
        return action.lease_id

    def finished(self, *, at: float = 0.0) -> None:
        """A request that came at this time, with four cached tokens of 13 and nine new ones."""
        lease_id = self.dispatched(at=at)
        self.records.first_token(lease_id, 4, now=at + 1.0)
        self.records.released(lease_id, ReleaseOutcome.OK, 9, now=at + 2.0)

    async def written(self, lines: int) -> None:
        await until(lambda: self.counted["written"] == lines)


@asynccontextmanager
async def logging_to(path: Path, **options: Any) -> AsyncIterator[Source]:
    source = Source(path, **options)
    writer = asyncio.create_task(source.log.run())
    try:
        yield source
    finally:
        writer.cancel()
        await asyncio.wait({writer})
        await source.log.close()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_the_simulator_reads_it_back(tmp_path: Path) -> None:
    """Requests that ran, as far apart as they came, with their hashes; those that never ran are skipped."""
    path = tmp_path / "decisions.jsonl"
    async with logging_to(path) as source:
        source.finished(at=3.0)
        refused = source.dispatched(at=4.0)
        source.records.released(refused, ReleaseOutcome.REFUSED, 0, now=4.1)
        source.records.decided(Reject(source.request(at=4.5), ApiError(Reason.OVERLOADED, "full")), now=5.0)
        source.records.cancelled(source.request(at=4.5), now=5.0)
        source.records.abandoned(source.dispatched(at=4.6), now=5.0)
        source.finished(at=5.5)
    assert [line["outcome"] for line in lines(path)] == ["ok", "refused", "overloaded", "cancelled", "unknown", "ok"]
    trace = read_trace(path.read_text().splitlines(), block_size=BLOCK)
    assert (trace.skipped, trace.recorded_hit_ratio) == (4, 8 / 26)
    assert list(trace.requests) == [
        TraceRequest(pytest.approx(at, abs=0.001), 13, 9, HASHES, "t", 7)  # type: ignore[arg-type]
        for at in (0.0, 2.5)
    ]


async def test_what_it_says_beside_that(tmp_path: Path) -> None:
    """Predictions beside what came, by request id and worker."""
    path = tmp_path / "decisions.jsonl"
    async with logging_to(path) as source:
        source.finished(at=3.0)
    (line,) = lines(path)
    assert {name: line[name] for name in ("request_id", "worker_id", "predicted_cached_tokens", "cached_tokens")} == {
        "request_id": "r1",
        "worker_id": "a",
        "predicted_cached_tokens": 0,
        "cached_tokens": 4,
    }
    assert (line["queue_ms"], line["predicted_ttft_ms"], line["ttft_ms"], line["lease_ms"]) == (0, 13, 1000, 2000)


async def test_a_file_that_was_moved_is_opened_anew(tmp_path: Path) -> None:
    """Lines go to the file of that name, whoever rotates it; none is lost between."""
    path, old = tmp_path / "decisions.jsonl", tmp_path / "old.jsonl"
    async with logging_to(path) as source:
        source.finished()
        await source.written(1)
        path.rename(old)
        source.finished()
        await source.written(2)
        path.unlink()
        source.finished()
        await source.written(3)
    assert [line["request_id"] for line in lines(old)] == ["r1"]
    assert [line["request_id"] for line in lines(path)] == ["r3"]


async def test_a_file_that_cannot_be_written_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Lines are counted as lost and nothing fails; when the place is there again, lines go on and that is told."""
    caplog.set_level(logging.INFO)
    path = tmp_path / "missing" / "decisions.jsonl"
    async with logging_to(path) as source:
        for lost in (1, 2):
            source.finished()
            await until(lambda lost=lost: source.counted["lost"] == lost)
        path.parent.mkdir()
        source.finished()
        await source.written(1)
    assert [line["request_id"] for line in lines(path)] == ["r3"]
    told = [record.getMessage() for record in caplog.records if record.name == "router.decision_log"]
    assert told == ["decision_log_fails", "decision_log_works_again"]


async def test_the_buffer_is_bounded(tmp_path: Path) -> None:
    """What comes faster than it is written, beyond the buffer, is lost and counted; whole lines remain."""
    path = tmp_path / "decisions.jsonl"
    async with logging_to(path, buffer_bytes=1_000) as source:
        for _ in range(50):
            source.finished()
        await until(lambda: source.counted.total() == 50)
    assert 1 <= source.counted["written"] < 50
    assert len(lines(path)) == source.counted["written"]


async def test_a_full_disk_leaves_whole_lines() -> None:
    """The error of the device is told like any other."""
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    async with logging_to(full) as source:
        source.finished()
        await until(lambda: source.counted["lost"] == 1)


async def test_what_is_left_is_written_at_the_end(tmp_path: Path) -> None:
    """Closing writes what was gathered, also when the writer never came to it."""
    path = tmp_path / "decisions.jsonl"
    source = Source(path)
    source.finished()
    await source.log.close()
    assert len(lines(path)) == 1


async def test_it_is_told_before_any_request(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong path shows at the start; a right one is there at the start."""
    for path, told in ((tmp_path / "missing" / "x.jsonl", True), (tmp_path / "x.jsonl", False)):
        caplog.clear()
        async with logging_to(path) as source:
            await until(lambda path=path: path.exists() or caplog.records)
            assert [record.getMessage() == "decision_log_fails" for record in caplog.records] == [True] * told
        assert not source.counted
        assert path.exists() is not told
