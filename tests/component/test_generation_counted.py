"""What a request has produced, known to the token also where it was stopped: the gateway's parts, a real worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.core.generation_fields import Sampling
from gateway.core.logprobs import ScoredToken
from gateway.core.sse import FinishReason, Usage
from gateway.generation import Generation, Plan
from gateway.generation_group import GenerationGroup
from gateway.metrics import Metrics
from gateway.router_client import Ask
from gateway.routing import Routing
from gateway.worker_messages import Orphan
from gateway.worker_sessions import WorkerSession, WorkerSessions
from inferway.errors import ApiError, Reason
from inferway.grpc_util import InternalToken
from inferway.metrics import Registry
from tests.support.json_lines import JsonLines
from tests.support.waiting import until
from tests.support.worker_harness import Mesh, Session, running

pytestmark = pytest.mark.timeout(60)

PROMPT = [5, 6, 7, 8]


class Sink:
    """Keeps how many tokens it was shown, by choice."""

    def __init__(self) -> None:
        self.tokens: dict[int, int] = {}

    def on_text(self, index: int, text: str, tokens: int) -> None:
        self.tokens[index] = self.tokens.get(index, 0) + tokens

    def on_scores(self, index: int, scores: Sequence[ScoredToken]) -> None: ...

    def on_finish(self, index: int, text: str, tokens: int, reason: FinishReason) -> None:
        self.on_text(index, text, tokens)

    def on_silence(self) -> None: ...

    def on_tick(self) -> None: ...


class Gateway:
    """The part of a gateway that generates, connected to workers and to no router."""

    def __init__(self, *workers: str, gateway_id: str = "g") -> None:
        token = InternalToken()
        self._metrics = Metrics(Registry("gateway"))
        self.orphans: list[Orphan] = []
        self.sessions = WorkerSessions(gateway_id, token, lambda: None, self._take)
        self._routing = Routing([], workers, gateway_id, token, self.sessions, self._metrics)

    def _take(self, session: WorkerSession, orphans: Sequence[Orphan]) -> None:
        self.orphans += orphans
        session.orphans_booked([orphan.orphan_id for orphan in orphans])

    def generation(self, script: str, sink: Sink | None = None, *, n: int = 1, **fields: Any) -> Generation:
        now = time.monotonic()
        (session,) = self.sessions.connected()
        ask = Ask(script, "m-text", "t", 5, len(PROMPT), 100, (), n, now + 20)
        plan = Plan(
            ask=ask,
            description=session.models["m-text"],
            prompt_token_ids=PROMPT,
            sampling=fields.pop("sampling", Sampling()),
            cache_salt=b"",
            traceparent="",
            logprobs=None,
            prompt_logprobs=False,
            received=now,
            deadline=now + 60,
            stall_s=60,
            heartbeat_s=60,
            **fields,
        )
        return Generation(plan, sink or Sink(), self._routing, self.sessions, self._metrics)


@asynccontextmanager
async def connected(*workers: str, gateway_id: str = "g") -> AsyncIterator[Gateway]:
    gateway = Gateway(*workers, gateway_id=gateway_id)
    task = asyncio.create_task(gateway.sessions.run())
    try:
        await until(lambda: len(gateway.sessions.connected()) == len(workers))
        yield gateway
    finally:
        task.cancel()
        await asyncio.wait({task})


@asynccontextmanager
async def installed(tmp_path: Path, **options: Any) -> AsyncIterator[tuple[Mesh, Gateway]]:
    async with running(tmp_path, record_ends=True, **options) as mesh, connected(mesh.app.address) as gateway:
        yield mesh, gateway


def made(tmp_path: Path) -> int:
    """Tokens, by the engine's own record."""
    lines = JsonLines(tmp_path / "record.jsonl").read()
    return sum(line["tokens"] for line in lines if line["event"] in ("abort", "end"))


@pytest.mark.parametrize("n", [1, 3])
async def test_an_answer_that_its_client_left(tmp_path: Path, n: int) -> None:
    """After `close` the count is not there yet; it comes with the engine's answer and is the engine's own."""
    async with installed(tmp_path) as (_, gateway):
        sink = Sink()
        generation = gateway.generation("drip", sink, n=n)
        generation.start()
        await until(lambda: len(sink.tokens) == n and min(sink.tokens.values()) >= 3)
        generation.close()
        assert not generation.counted.done()
        shown = sum(sink.tokens.values())
        async with asyncio.timeout(10):
            counted = await generation.counted
        assert counted == Usage(len(PROMPT), made(tmp_path))
        assert counted.completion_tokens >= shown
        assert generation.usage == counted


async def test_a_finished_answer(tmp_path: Path) -> None:
    """It is counted when it has ended, and `close` changes nothing."""
    async with installed(tmp_path) as (_, gateway):
        generation = gateway.generation("hello", n=2)
        generation.start()
        await generation.ended
        assert generation.counted.result() == generation.usage == Usage(5, 4)
        generation.close()
        assert generation.counted.result() == Usage(5, 4)


async def test_one_that_no_worker_has_taken(tmp_path: Path) -> None:
    """Waiting, refused, or wrong: nothing was produced, and that is known at once."""
    async with installed(tmp_path, context_length=50) as (mesh, gateway):
        never = gateway.generation("hello")
        never.close()
        assert never.counted.result() == Usage(0, 0)
        wrong = gateway.generation("hello", n=2, sampling=Sampling(logit_bias={9_999_999: 1.0}))
        wrong.start()
        with pytest.raises(ApiError):
            await wrong.ended
        async with asyncio.timeout(10):
            assert await wrong.counted == Usage(0, 0)
        mesh.app.runtime.refuse_new()
        refused = gateway.generation("hello")
        refused.start()
        await asyncio.wait({refused.ended}, timeout=1)
        refused.close()
        assert refused.counted.result() == Usage(0, 0)


async def test_one_that_failed(tmp_path: Path) -> None:
    """What the engine made before it failed counts, that of the choices beside the failed one included."""
    async with installed(tmp_path) as (_, gateway):
        generation = gateway.generation("broken", n=2)
        generation.start()
        with pytest.raises(ApiError) as caught:
            await generation.ended
        assert caught.value.reason is Reason.WORKER_FAILED
        async with asyncio.timeout(10):
            assert await generation.counted == Usage(len(PROMPT), made(tmp_path))


async def test_a_worker_that_is_lost(tmp_path: Path) -> None:
    """What it was known to have produced counts: of what runs, and of what was being stopped."""
    async with breakable(tmp_path) as (gateway, lose):
        sinks = Sink(), Sink()
        runs, stopped = (gateway.generation("drip", sink) for sink in sinks)
        for generation in (runs, stopped):
            generation.start()
        await until(lambda: all(sum(sink.tokens.values()) >= 3 for sink in sinks))
        stopped.close()
        await lose()
        async with asyncio.timeout(10):
            for generation, sink in zip((runs, stopped), sinks, strict=True):
                usage = await generation.counted
                assert usage.prompt_tokens == len(PROMPT)
                assert usage.completion_tokens >= sum(sink.tokens.values()) >= 3
        with pytest.raises(ApiError):
            runs.ended.result()


@asynccontextmanager
async def breakable(tmp_path: Path) -> AsyncIterator[tuple[Gateway, Callable[[], Awaitable[None]]]]:
    """A gateway, and what breaks its session."""
    async with running(tmp_path) as mesh:
        gateway = Gateway(mesh.app.address)
        task = asyncio.create_task(gateway.sessions.run())
        await until(gateway.sessions.connected)

        async def lose() -> None:
            task.cancel()
            await asyncio.wait({task})

        yield gateway, lose


async def test_a_group_counts_all_of_its_prompts(tmp_path: Path) -> None:
    """Finished and stopped ones together, when the last of them is counted."""
    async with installed(tmp_path) as (_, gateway):
        sink = Sink()
        group = GenerationGroup([gateway.generation("hello"), gateway.generation("drip", sink)])
        group.start()
        await until(lambda: sum(sink.tokens.values()) >= 3)
        group.close()
        async with asyncio.timeout(10):
            counted = await group.counted
        assert counted == Usage(5 + len(PROMPT), made(tmp_path))


async def test_what_is_settled_is_not_told_again(tmp_path: Path) -> None:
    """Stopped and finished ones leave nothing behind; those that are not come back, and are booked."""
    async with running(tmp_path, record_ends=True) as mesh:
        async with connected(mesh.app.address, gateway_id="own") as first:
            scripts = {name: Sink() for name in ("drip.settled", "drip.left", "hello.settled", "hello.left")}
            generations = {
                name: first.generation(name, sink, settlement=name.encode()) for name, sink in scripts.items()
            }
            for generation in generations.values():
                generation.start()
            await until(lambda: all(sum(sink.tokens.values()) >= 2 for sink in scripts.values()))
            for generation in generations.values():
                generation.close()
            counted = {name: await generation.counted for name, generation in generations.items()}
            generations["drip.settled"].settled()
            generations["hello.settled"].settled()
            # They go with the next message, or within a second.
            last = first.generation("hello")
            last.start()
            await last.ended
        async with connected(mesh.app.address, gateway_id="own") as second:
            await until(lambda: len(second.orphans) == 2)
            told = {orphan.settlement.decode(): orphan for orphan in second.orphans}
            assert {name: orphan.usage for name, orphan in told.items()} == {
                name: counted[name] for name in ("drip.left", "hello.left")
            }
            assert len({orphan.part for orphan in second.orphans}) == 2
            assert {orphan.gateway_id for orphan in second.orphans} == {"own"}
        third = Session(mesh.stub)
        await third.send(gateway_id="own")
        await third.send([settled := mesh.generate("hello")])
        await third.end_of(settled.key)
        assert third.orphans == []
        await third.close()


async def test_settled_is_told_without_another_message(tmp_path: Path) -> None:
    """A gateway that has nothing else to say tells it all the same."""
    async with installed(tmp_path) as (mesh, gateway):
        generation = gateway.generation("hello", settlement=b"s")
        generation.start()
        await generation.ended
        async with aiohttp.ClientSession() as http:
            assert await _unsettled(http, mesh) == 1
        generation.settled()
        async with aiohttp.ClientSession() as http, asyncio.timeout(10):
            while await _unsettled(http, mesh):
                await asyncio.sleep(0.05)


async def _unsettled(http: aiohttp.ClientSession, mesh: Mesh) -> float:
    async with http.get(f"http://{mesh.app.ops_address}/metrics") as response:
        lines = (await response.text()).splitlines()
    return float(next(line for line in lines if line.startswith("inferway_worker_unsettled ")).split()[1])
