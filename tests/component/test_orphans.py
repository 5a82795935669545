"""What requests produced whose gateway is gone: real workers, and sessions that break."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from inferway.api.v1 import worker_pb2, worker_pb2_grpc
from inferway.grpc_util import channel
from tests.support.json_lines import JsonLines
from tests.support.lone_gateway import FINISHED, GATEWAY_ID, PROMPT, RUNNING
from tests.support.probes import metric
from tests.support.processes import Process, start_worker
from tests.support.waiting import until
from tests.support.worker_harness import SCRIPTS, Mesh, Session, running
from worker.core.orphans import OWN_S

pytestmark = pytest.mark.timeout(120)


def by_settlement(session: Session) -> dict[str, worker_pb2.Orphan]:
    told = {orphan.settlement.decode(): orphan for orphan in session.orphans}
    assert len(told) == len(session.orphans), "each is told once"
    return told


def settled_by(generate: worker_pb2.Generate, settlement: bytes) -> worker_pb2.Generate:
    generate.settlement = settlement
    return generate


async def test_a_gateway_killed_with_everything_unsettled(tmp_path: Path) -> None:
    """Another gateway is told, to the token, what its running and its finished requests have produced, once."""
    scripts, record = tmp_path / "scripts.json", tmp_path / "record.jsonl"
    scripts.write_text(json.dumps(SCRIPTS))
    flags = ["--engine", "scripted", "--scripts", str(scripts), "--record", str(record), "--record-ends"]
    with start_worker(*flags) as worker:
        link = channel(worker.address)
        other = Session(worker_pb2_grpc.WorkerStub(link))
        await other.send(gateway_id="other")
        with Process("tests.support.lone_gateway", worker.address, wait=False) as doomed:
            doomed.wait_for_event("busy")
            doomed.kill()
        names = {*RUNNING, *FINISHED}
        await until(lambda: len(other.orphans) == len(names), what="an orphan of each request")
        made: Counter[str] = Counter()
        for line in JsonLines(record).read():
            if line["event"] in ("abort", "end"):
                made[line["request_id"]] += line["tokens"]
        orphans = by_settlement(other)
        assert {name: orphan.usage.completion_tokens for name, orphan in orphans.items()} == made
        assert all(made[name] >= 3 * choices for name, choices in RUNNING.items())
        assert made["hello.2"] == 2 * made["hello.1"] == 4
        for name, orphan in orphans.items():
            assert orphan.gateway_id == GATEWAY_ID
            assert orphan.outcome == ("ok" if name in FINISHED else "client_closed_request")
            # The script of the finished ones counts the prompt itself.
            assert orphan.usage.prompt_tokens == (5 if name in FINISHED else len(PROMPT))
            assert orphan.age_ms >= OWN_S * 1000 - 50, "clocks are cut to milliseconds"
        page = f"http://{worker.ops_address}/metrics"
        assert metric(page, "inferway_worker_orphans_waiting") == len(names)
        await other.send(orphans_booked=[orphan.orphan_id for orphan in other.orphans])
        await until(lambda: metric(page, "inferway_worker_orphans_waiting") == 0)
        assert metric(page, 'inferway_worker_orphans_total{event="booked"}') == len(names)
        await other.close()
        await link.close()


async def _lost(mesh: Mesh, gateway_id: str, *settlements: bytes) -> None:
    """A session that finishes a request for each settlement, and breaks."""
    session = Session(mesh.stub)
    generates = [settled_by(mesh.generate("hello"), settlement) for settlement in settlements]
    await session.send(generates, gateway_id=gateway_id)
    for generate in generates:
        await session.end_of(generate.key)
    await session.close()


async def test_a_gateway_that_has_lost_a_connection_only(tmp_path: Path) -> None:
    """It is told of its own when it is back, before any other; what it answers is not told again."""
    async with running(tmp_path) as mesh:
        other = Session(mesh.stub)
        await other.send(gateway_id="other")
        await _lost(mesh, "own", b"one", b"two")
        own = Session(mesh.stub)
        await own.send(gateway_id="own")
        await until(lambda: len(own.orphans) == 2)
        assert set(by_settlement(own)) == {"one", "two"}
        await own.send(orphans_booked=[by_settlement(own)["one"].orphan_id])
        await own.send([settled := mesh.generate("hello")])  # whatever came before this has been read
        await own.end_of(settled.key)
        await own.close()
        await until(lambda: len(other.orphans) == 1)
        assert set(by_settlement(other)) == {"two"}
        await other.close()


async def test_what_is_settled_or_has_no_settlement_is_nobodys(tmp_path: Path) -> None:
    """Of finished, running and aborted requests alike; the one that is left shows that the others are not."""
    async with running(tmp_path) as mesh:
        session = Session(mesh.stub)
        plain, finished, drip, aborted = (mesh.generate(name) for name in ("hello", "hello", "drip", "drip"))
        left = settled_by(mesh.generate("hello"), b"left")
        await session.send(
            [plain, settled_by(finished, b"f"), settled_by(drip, b"r"), settled_by(aborted, b"a"), left],
            gateway_id="mine",
        )
        for generate in (plain, finished, left):
            await session.end_of(generate.key)
        await session.until(lambda: bool(session.text_of(drip.key)))
        await session.send(aborts=[aborted.key], settled=[finished.key, drip.key, aborted.key, 99_999])
        await session.end_of(aborted.key)
        await session.close()
        await until(lambda: mesh.app.runtime.load().num_requests_running == 0)
        again = Session(mesh.stub)
        await again.send(gateway_id="mine")
        await until(lambda: bool(again.orphans))
        assert set(by_settlement(again)) == {"left"}
        await again.close()


async def test_a_settlement_that_is_too_long(tmp_path: Path) -> None:
    """It is refused by name and limit; the longest is taken, and comes back whole."""
    async with running(tmp_path) as mesh:
        session = Session(mesh.stub)
        too_long, longest = (settled_by(mesh.generate("hello"), b"x" * size) for size in (2049, 2048))
        await session.send([too_long, longest], gateway_id="own")
        error = (await session.end_of(too_long.key)).error
        assert (error.reason, error.param) == ("invalid_request", "settlement")
        assert "2048" in error.message
        assert "2049" in error.message
        await session.end_of(longest.key)
        await session.close()
        again = Session(mesh.stub)
        await again.send(gateway_id="own")
        await until(lambda: bool(again.orphans))
        assert [orphan.settlement for orphan in again.orphans] == [b"x" * 2048]
        await again.close()


async def test_many_at_once_keep_below_the_size_of_a_message(tmp_path: Path) -> None:
    """More than one session's window of the longest settlements all arrive, as they are booked, in bounded messages."""
    async with running(tmp_path) as mesh:
        await _lost(mesh, "own", *(b"%04d" % number * 256 for number in range(300)))
        own = Session(mesh.stub)
        await own.send(gateway_id="own")
        await until(lambda: len(own.orphans) == 256)
        await own.send(orphans_booked=[orphan.orphan_id for orphan in own.orphans])
        await until(lambda: len(own.orphans) == 300)
        assert len(by_settlement(own)) == 300
        assert max(batch.ByteSize() for batch in own.batches) <= 256 << 10
        await own.close()
