"""A real worker with the scripted engine, spoken to over gRPC."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import aiohttp
import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tokenizers import Tokenizer

from inferway.api.v1 import types_pb2, worker_pb2, worker_pb2_grpc
from inferway.config import Secret
from inferway.grpc_util import InternalToken, channel
from inferway.lifecycle import StopSignals
from tests.support.worker_harness import LIMIT_S, SCRIPTS, Mesh, Session, running
from worker.app import App
from worker.config import Config
from worker.engines.scripted import ScriptedEngine
from worker.service import SERVICE_NAME


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[Mesh]:
    async with running(tmp_path) as one:
        yield one


@pytest.fixture
async def session(mesh: Mesh) -> AsyncIterator[Session]:
    one = Session(mesh.stub)
    yield one
    await one.close()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not condition():
            await asyncio.sleep(0.01)


def recorded(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "record.jsonl").read_text().splitlines()]


async def test_a_script_streams_its_text_with_usage_first_and_last(mesh: Mesh, session: Session) -> None:
    """The first delta tells prompt tokens, the last one the finish reason and all counts."""
    generate = mesh.generate("hello.1")
    await session.send([generate])
    last = await session.end_of(generate.key)
    first = session.deltas[generate.key][0]
    assert session.text_of(generate.key) == "Hello"
    assert first.usage.prompt_tokens == 5
    assert last.finish_reason == types_pb2.FINISH_REASON_STOP
    assert (last.usage.prompt_tokens, last.usage.completion_tokens) == (5, 2)


async def test_without_a_script_the_last_user_message_is_echoed(mesh: Mesh, session: Session) -> None:
    """The echo has the message's tokens, is cut by max_tokens, and both vocabularies work."""
    whole = mesh.generate("none", prompt="Größe 👋 matters")
    cut = mesh.generate("none", prompt="one two three", sampling=types_pb2.Sampling(max_tokens=1))
    other = mesh.generate("none", prompt="Größe 👋 matters", model="m-hermes")
    await session.send([whole, cut, other])
    for generate in (whole, other):
        assert (await session.end_of(generate.key)).finish_reason == types_pb2.FINISH_REASON_STOP
        assert session.text_of(generate.key) == "Größe 👋 matters"
    last = await session.end_of(cut.key)
    assert (last.finish_reason, last.usage.completion_tokens) == (types_pb2.FINISH_REASON_LENGTH, 1)
    assert list(whole.prompt_token_ids) != list(other.prompt_token_ids)


async def test_characters_are_never_split_between_deltas(mesh: Mesh, session: Session) -> None:
    """A character whose bytes come in two tokens arrives whole."""
    generate = mesh.generate("split")
    await session.send([generate])
    await session.end_of(generate.key)
    assert session.text_of(generate.key) == " šíp"
    assert all("\ufffd" not in delta.text for delta in session.deltas[generate.key])


async def test_a_stop_string_ends_the_choice_and_the_engines_work(mesh: Mesh, session: Session, tmp_path: Path) -> None:
    """The match is not shown, usage counts to it, and the engine is told at once."""
    generate = mesh.generate("stop", sampling=types_pb2.Sampling(stop=["END"]))
    await session.send([generate])
    last = await session.end_of(generate.key)
    assert session.text_of(generate.key) == "a "
    assert (last.finish_reason, last.usage.completion_tokens) == (types_pb2.FINISH_REASON_STOP, 3)
    await eventually(lambda: mesh.app.runtime.load().num_requests_running == 0)
    assert [line["event"] for line in recorded(tmp_path)] == ["generate", "abort"]


async def test_text_held_back_for_a_stop_string_comes_at_the_end(mesh: Mesh, session: Session) -> None:
    """Nothing is lost when a stop string that has begun never completes."""
    generate = mesh.generate("held", sampling=types_pb2.Sampling(stop=["THREE\nBBBB"]))
    await session.send([generate])
    await session.end_of(generate.key)
    assert session.text_of(generate.key) == "ONE TWO THREE"


async def test_an_abort_is_answered_and_frees_the_slot(mesh: Mesh, session: Session, tmp_path: Path) -> None:
    """The last delta says aborted and what was produced; unknown keys are ignored."""
    generate = mesh.generate("drip")
    await session.send([generate])
    await session.until(lambda: len(session.text_of(generate.key)) >= 2)
    await session.send(aborts=[generate.key, 999_999])
    last = await session.end_of(generate.key)
    assert last.finish_reason == types_pb2.FINISH_REASON_ABORTED
    assert last.usage.completion_tokens == len(session.text_of(generate.key))
    assert mesh.app.runtime.load().num_requests_running == 0
    generated, aborted = recorded(tmp_path)
    assert (generated["event"], aborted["event"]) == ("generate", "abort")
    assert aborted["tokens"] == last.usage.completion_tokens


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("", "client_closed_request"),
        ("killed", "killed"),
        ("from_a_later_version", "client_closed_request"),
    ],
)
async def test_an_abort_may_say_why(mesh: Mesh, session: Session, reason: str, outcome: str) -> None:
    """Without a reason, or with one that is not known, the caller has left; a label of a metric is none of a peer's."""
    generate = mesh.generate("never")
    reasons = {generate.key: reason} if reason else {}
    await session.send([generate], aborts=[generate.key], abort_reasons=reasons)
    await session.end_of(generate.key)
    page = await _metrics(mesh.app)
    assert [line for line in page.splitlines() if line.startswith("inferway_worker_outcomes_total")] == [
        f'inferway_worker_outcomes_total{{outcome="{outcome}"}} 1.0'
    ]


async def test_ends_are_recorded_where_asked_for(tmp_path: Path) -> None:
    """One line for each choice, with all tokens that were made for it: at a script's end, an error, a stop string."""
    async with running(tmp_path, record_ends=True) as mesh:
        session = Session(mesh.stub)
        whole, broken = mesh.generate("hello"), mesh.generate("broken")
        stopped = mesh.generate("stop", sampling=types_pb2.Sampling(stop=["END"]))
        await session.send([whole, broken, stopped])
        for generate in (whole, broken, stopped):
            await session.end_of(generate.key)
        await session.close()
    lines = [line for line in recorded(tmp_path) if line["event"] != "generate"]
    assert sorted((line["request_id"], line["event"], line["tokens"]) for line in lines) == [
        ("broken", "end", 1),
        ("hello", "end", 2),
        ("stop", "abort", 3),
    ]


async def test_a_session_that_breaks_takes_its_requests_with_it(mesh: Mesh) -> None:
    """Everything of a lost gateway is aborted; another gateway's requests go on."""
    lost, kept = Session(mesh.stub), Session(mesh.stub)
    await lost.send([mesh.generate("never") for _ in range(5)])
    other = mesh.generate("short")
    await kept.send([other])
    await eventually(lambda: mesh.app.runtime.load().num_requests_running == 6)
    await lost.close()
    await eventually(lambda: mesh.app.runtime.load().num_requests_running <= 1)
    assert (await kept.end_of(other.key)).finish_reason == types_pb2.FINISH_REASON_STOP
    await kept.close()


async def test_equal_keys_of_two_sessions_never_meet(mesh: Mesh) -> None:
    """Keys belong to their session: one that is left behind says nothing to the next."""
    first, second = Session(mesh.stub), Session(mesh.stub)
    ids = mesh.chat("mine")
    await first.send([worker_pb2.Generate(key=1, request_id="drip", model="m-text", prompt_token_ids=ids)])
    await second.send([worker_pb2.Generate(key=1, request_id="x", model="m-text", prompt_token_ids=ids)])
    await second.end_of(1)
    assert second.text_of(1) == "mine"
    await first.close()
    third = Session(mesh.stub)
    await third.send([worker_pb2.Generate(key=1, request_id="y", model="m-text", prompt_token_ids=ids)])
    await third.end_of(1)
    assert third.text_of(1) == "mine"
    await second.close()
    await third.close()


@pytest.mark.parametrize(
    ("change", "reason", "param"),
    [
        ({"model": "m-none"}, "model_not_found", "model"),
        ({"prompt_token_ids": []}, "invalid_request", "prompt_token_ids"),
        ({"prompt_token_ids": [1, 50_000_000]}, "invalid_request", "prompt_token_ids"),
        ({"prompt_token_ids": [1] * 300}, "context_length_exceeded", "prompt_token_ids"),
        ({"priority": 10}, "invalid_request", "priority"),
        ({"sampling": types_pb2.Sampling(stop=["x"] * 5)}, "invalid_request", "stop"),
        ({"sampling": types_pb2.Sampling(stop=["ok", ""])}, "invalid_request", "stop[1]"),
        ({"sampling": types_pb2.Sampling(temperature=2.5)}, "invalid_request", "temperature"),
        ({"sampling": types_pb2.Sampling(logit_bias={9_999_999: 1.0})}, "invalid_request", "logit_bias"),
    ],
)
async def test_bad_requests_get_an_error_delta_and_harm_nobody(
    tmp_path: Path, change: dict[str, Any], reason: str, param: str
) -> None:
    """Each refusal names the field; the session and its other requests go on; the engine never hears of it."""
    async with running(tmp_path, context_length=200) as mesh:
        session = Session(mesh.stub)
        bad = worker_pb2.Generate(**{"key": 7, "request_id": "x", "model": "m-text", "prompt_token_ids": [1], **change})
        good = mesh.generate("hello")
        good.key = 8
        await session.send([bad, good])
        error = (await session.end_of(7)).error
        assert (error.reason, error.param) == (reason, param)
        await session.end_of(8)
        assert session.text_of(8) == "Hello"
        assert [line["request_id"] for line in recorded(tmp_path)] == ["hello"]
        await session.close()


async def test_a_key_that_is_in_use_is_refused_and_its_owner_ends(mesh: Mesh, session: Session) -> None:
    """Two requests never share a key's deltas."""
    generate = mesh.generate("drip")
    await session.send([generate])
    await session.until(lambda: generate.key in session.deltas)
    await session.send([generate])
    error = (await session.end_of(generate.key)).error
    assert (error.reason, error.param) == ("invalid_request", "key")
    await eventually(lambda: mesh.app.runtime.load().num_requests_running == 0)


async def test_max_tokens_is_capped_to_the_context(tmp_path: Path) -> None:
    """A request for more than the context leaves ends with length."""
    async with running(tmp_path, context_length=200) as mesh:
        session = Session(mesh.stub)
        prompt = [*mesh.chat("hi")]
        generate = mesh.generate("none", prompt=prompt, sampling=types_pb2.Sampling(max_tokens=10_000, ignore_eos=True))
        await session.send([generate])
        last = await session.end_of(generate.key)
        assert last.finish_reason == types_pb2.FINISH_REASON_LENGTH
        assert last.usage.completion_tokens == 200 - len(prompt)
        await session.close()


async def test_above_its_limits_a_worker_says_overloaded(tmp_path: Path) -> None:
    """What does not fit into slots and queue is refused at once, with a time for the next try."""
    async with running(tmp_path, max_running=2, max_waiting=1) as mesh:
        session = Session(mesh.stub)
        generates = [mesh.generate("never") for _ in range(4)]
        await session.send(generates)
        error = (await session.end_of(generates[3].key)).error
        assert error.reason == "overloaded"
        assert error.retry_after_ms >= 1000
        load = mesh.app.runtime.load()
        assert (load.num_requests_running, load.num_requests_waiting) == (2, 1)
        await session.close()


@pytest.mark.parametrize(
    ("script", "reason"), [("broken", "worker_failed"), ("lost", "worker_failed"), ("full", "overloaded")]
)
async def test_engine_failures_are_errors_without_engine_text(
    mesh: Mesh, session: Session, script: str, reason: str
) -> None:
    """A failed choice has an error with a sentence for callers, after the text that came before."""
    generate = mesh.generate(script)
    await session.send([generate])
    error = (await session.end_of(generate.key)).error
    assert error.reason == reason
    assert "oom" not in error.message
    assert "queue" not in error.message
    assert session.text_of(generate.key) == ("" if script == "full" else "par")


async def test_large_texts_come_in_messages_under_the_limit(mesh: Mesh, session: Session) -> None:
    """Six megabytes of text arrive whole, no message above 256 KiB."""
    generate = mesh.generate("big")
    await session.send([generate])
    await session.end_of(generate.key)
    assert session.text_of(generate.key) == "x" * 6_000_000
    assert max(batch.ByteSize() for batch in session.batches) <= 256 << 10


async def test_a_session_that_is_not_read_holds_up_nobody(mesh: Mesh, session: Session) -> None:
    """Another gateway's requests are answered while megabytes wait for one that does not read."""
    stuck = mesh.stub.Session()
    await stuck.write(worker_pb2.SessionRequest(gateway_id="stuck", generates=[mesh.generate("big") for _ in range(3)]))
    await eventually(lambda: mesh.app.runtime.load().num_requests_running == 0 and mesh.app.runtime.steps > 50)
    generate = mesh.generate("hello")
    await session.send([generate])
    await session.end_of(generate.key)
    assert session.text_of(generate.key) == "Hello"
    stuck.cancel()


async def test_a_prompt_of_a_million_and_a_half_tokens_is_taken(mesh: Mesh, session: Session) -> None:
    """Message limits leave room for the longest prompts."""
    generate = mesh.generate("hello", prompt=[5] * 1_500_000)
    await session.send([generate])
    assert (await session.end_of(generate.key)).finish_reason == types_pb2.FINISH_REASON_STOP


async def test_describe_and_get_tokenizer_agree(mesh: Mesh) -> None:
    """Each tokenizer comes whole under its digest, and fits the model that names it."""
    description = await mesh.stub.Describe(worker_pb2.DescribeRequest())
    models = {model.name: model for model in description.models}
    assert {"m-text", "m-hermes", "m-llama3", "m-gemma", "m-harmony"} <= set(models)
    assert description.worker_id.startswith("scripted-")
    assert description.publishes_kv_events
    assert models["m-text"].tokenizer_digest != models["m-hermes"].tokenizer_digest
    for model in models.values():
        stream = mesh.stub.GetTokenizer(worker_pb2.GetTokenizerRequest(digest=model.tokenizer_digest))
        data = b"".join([piece.data async for piece in stream])
        assert hashlib.sha256(data).hexdigest() == model.tokenizer_digest
        assert Tokenizer.from_str(data.decode()).get_vocab_size() == model.vocab_size
        assert model.created > 0


async def test_an_unknown_tokenizer_is_not_found(mesh: Mesh) -> None:
    """A digest of no model is NOT_FOUND."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in mesh.stub.GetTokenizer(worker_pb2.GetTokenizerRequest(digest="0" * 64)):
            pass
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_before_the_engine_is_loaded_peers_are_told_so(tmp_path: Path) -> None:
    """The listener is open, health says NOT_SERVING, Describe is UNAVAILABLE, a generate is model_not_ready."""
    app = App(Config(engine="scripted", listen="127.0.0.1:0", ops_listen="127.0.0.1:0"))
    await app.listen()
    link = channel(app.address)
    try:
        stub = worker_pb2_grpc.WorkerStub(link)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Describe(worker_pb2.DescribeRequest())
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert await _health(link) == health_pb2.HealthCheckResponse.NOT_SERVING
        assert await _get(app, "/health/ready") == (503, {"status": "starting: the engine is loading its model"})
        session = Session(stub)
        await session.send([worker_pb2.Generate(key=1, request_id="x", model="m-text", prompt_token_ids=[1])])
        assert (await session.end_of(1)).error.reason == "model_not_ready"
        await app.load()
        await stub.Describe(worker_pb2.DescribeRequest())
        assert await _health(link) == health_pb2.HealthCheckResponse.SERVING
        assert await _get(app, "/health/ready") == (200, {"status": "ok"})
        await session.close()
    finally:
        await link.close()
        await app.close()


async def _health(link: grpc.aio.Channel) -> Any:
    reply = await health_pb2_grpc.HealthStub(link).Check(health_pb2.HealthCheckRequest(service=SERVICE_NAME))
    return reply.status


async def _get(app: App, path: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as client, client.get(f"http://{app.ops_address}{path}") as response:
        return response.status, await response.json()


async def _metrics(app: App) -> str:
    async with aiohttp.ClientSession() as client, client.get(f"http://{app.ops_address}/metrics") as response:
        return await response.text()


async def test_watch_reports_load_and_its_fall_after_an_abort(mesh: Mesh, session: Session) -> None:
    """A full report at once, then the load as it changes; leases are listed while they run."""
    reports: list[worker_pb2.WorkerReport] = []
    stream = mesh.stub.Watch(worker_pb2.WatchRequest(router_id="r"))

    async def read() -> None:
        async for report in stream:
            reports.append(report)

    reader = asyncio.create_task(read())
    await eventually(lambda: bool(reports))
    assert reports[0].num_requests_running == 0
    assert reports[0].kv_event_seq == 1
    assert {event.WhichOneof("event") for event in reports[0].kv_events} == {"cleared"}
    generate = mesh.generate("never", lease_id=77)
    await session.send([generate])
    await eventually(lambda: reports[-1].num_requests_running == 1 and list(reports[-1].lease_ids) == [77])
    await session.send(aborts=[generate.key])
    await eventually(lambda: reports[-1].num_requests_running == 0 and not reports[-1].lease_ids)
    steps = [report.step for report in reports]
    assert steps == sorted(steps)
    stream.cancel()
    await asyncio.wait({reader})


async def test_watch_tells_the_cache_and_a_repeated_prompt_finds_it(mesh: Mesh, session: Session) -> None:
    """Stored blocks carry the shared hashes; the second time the prompt is cached; a late watcher learns it too."""
    from inferway.blocks import block_hashes

    prompt = [10 + n % 200 for n in range(64 * 3 + 5)]
    hashes = block_hashes(prompt, 64, b"salt")
    first, second, salted = (
        mesh.generate("hello2", prompt=prompt, cache_salt=salt) for salt in (b"salt", b"salt", b"other")
    )
    stored: list[int] = []
    numbers: list[tuple[int, int]] = []
    stream = mesh.stub.Watch(worker_pb2.WatchRequest(router_id="r"))

    async def read(target: Any, into: list[int]) -> None:
        async for report in target:
            if report.kv_events:
                numbers.append((report.kv_event_seq, len(report.kv_events)))
            for event in report.kv_events:
                into.extend(event.stored.block_hashes)

    reader = asyncio.create_task(read(stream, stored))
    await eventually(lambda: bool(numbers))
    await session.send([first])
    await session.end_of(first.key)
    await session.send([second, salted])
    await session.end_of(second.key)
    await session.end_of(salted.key)
    assert session.deltas[first.key][0].usage.cached_tokens == 0
    assert session.deltas[second.key][0].usage.cached_tokens == 64 * 3
    assert session.deltas[salted.key][0].usage.cached_tokens == 0
    await eventually(lambda: set(hashes) <= set(stored))
    assert all(start + count == following for (start, count), (following, _) in pairwise(numbers))
    late: list[int] = []
    late_stream = mesh.stub.Watch(worker_pb2.WatchRequest(router_id="late"))
    late_reader = asyncio.create_task(read(late_stream, late))
    await eventually(lambda: set(hashes) <= set(late))
    for one in (stream, late_stream):
        one.cancel()
    await asyncio.wait({reader, late_reader})


async def test_a_draining_worker_finishes_what_it_has(tmp_path: Path) -> None:
    """Readiness off, new requests refused, the running one completes, then the streams end."""
    async with running(tmp_path) as mesh:
        session = Session(mesh.stub)
        reports: list[worker_pb2.WorkerReport] = []
        stream = mesh.stub.Watch(worker_pb2.WatchRequest(router_id="r"))

        async def read() -> None:
            async for report in stream:
                reports.append(report)

        reader = asyncio.create_task(read())
        old, new = mesh.generate("short"), mesh.generate("hello")
        await session.send([old])
        await eventually(lambda: mesh.app.runtime.load().num_requests_running == 1)
        drain = asyncio.create_task(mesh.app.drain())
        await eventually(lambda: bool(reports) and reports[-1].draining)
        assert await _get(mesh.app, "/health/ready") == (503, {"status": "shutting_down"})
        assert await _health(mesh.link) == health_pb2.HealthCheckResponse.NOT_SERVING
        await session.send([new])
        assert (await session.end_of(new.key)).error.reason == "shutting_down"
        await drain
        await mesh.app.close()
        assert (await session.end_of(old.key)).finish_reason == types_pb2.FINISH_REASON_STOP
        assert session.text_of(old.key) == "done"
        await session.closed()
        async with asyncio.timeout(LIMIT_S):
            await reader


async def test_a_drain_ends_at_its_limit(tmp_path: Path) -> None:
    """A request that does not finish cannot hold the process."""
    async with running(tmp_path, drain_limit_s=0.1) as mesh:
        session = Session(mesh.stub)
        await session.send([mesh.generate("never")])
        await eventually(lambda: mesh.app.runtime.load().num_requests_running == 1)
        async with asyncio.timeout(LIMIT_S):
            await mesh.app.drain()
        await session.close()


class BreakingEngine(ScriptedEngine):
    """Fails for good when it is told to."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def wait_failed(self) -> str | None:
        return await self.failure


async def test_a_worker_ends_with_its_engine(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Readiness and health go off, every choice ends in worker_failed, the streams end, and the status is 1."""
    scripts = tmp_path / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    engine = BreakingEngine(scripts_path=str(scripts))
    app = App(Config(engine="scripted", listen="127.0.0.1:0", ops_listen="127.0.0.1:0"), engine)
    await app.listen()
    link = channel(app.address)
    try:
        serving = asyncio.create_task(app.serve(StopSignals()))
        stub = worker_pb2_grpc.WorkerStub(link)
        async with asyncio.timeout(LIMIT_S):
            while await _health(link) != health_pb2.HealthCheckResponse.SERVING:
                await asyncio.sleep(0.01)
        session = Session(stub)
        one, two, late = (
            worker_pb2.Generate(key=key, request_id=name, model="m-text", prompt_token_ids=[1])
            for key, name in ((1, "never"), (2, "lost"), (3, "never"))
        )
        await session.send([one, two])
        await eventually(lambda: app.runtime.load().num_requests_running >= 1)
        engine.failure.set_result("the device is gone")
        async with asyncio.timeout(LIMIT_S):
            assert await serving == 1
        assert (await session.end_of(1)).error.reason == "worker_failed"
        assert (await session.end_of(2)).error.reason == "worker_failed"
        assert await _health(link) == health_pb2.HealthCheckResponse.NOT_SERVING
        status = {"status": "the engine has failed: the device is gone"}
        assert await _get(app, "/health/ready") == (503, status)
        await session.send([late])
        assert (await session.end_of(3)).error.reason == "shutting_down"
        failed = [record for record in caplog.records if record.getMessage() == "engine_failed"]
        assert [(record.levelname, record.__dict__["fields"]) for record in failed] == [
            ("ERROR", {"error": "the device is gone"})
        ]
        await app.close()
        await session.closed()
    finally:
        await link.close()
        await app.close()


async def test_without_the_internal_token_nothing_is_answered(tmp_path: Path) -> None:
    """A wrong or missing token is UNAUTHENTICATED on every method; health checks need none."""
    async with running(tmp_path, internal_token=Secret("right")) as mesh:
        for token in (InternalToken(), InternalToken("wrong")):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await mesh.stub.Describe(worker_pb2.DescribeRequest(), metadata=token.metadata())
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            session = Session(mesh.stub, token.metadata())
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await session.closed()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        assert await _health(mesh.link) == health_pb2.HealthCheckResponse.SERVING
        right = InternalToken("right").metadata()
        assert (await mesh.stub.Describe(worker_pb2.DescribeRequest(), metadata=right)).models


async def test_the_record_tells_what_reached_the_engine(mesh: Mesh, session: Session, tmp_path: Path) -> None:
    """A line has the prompt with its special tokens, the sampling that was set, salt, priority and lease."""
    generate = mesh.generate(
        "hello.7",
        prompt="hi",
        priority=9,
        cache_salt=b"\x01\xff",
        lease_id=3,
        traceparent="00-a-b-01",
        sampling=types_pb2.Sampling(temperature=0.0, max_tokens=2),
    )
    await session.send([generate])
    await session.end_of(generate.key)
    (line,) = recorded(tmp_path)
    assert line["prompt"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert line["token_ids"] == list(generate.prompt_token_ids)
    assert line["sampling"] == {"temperature": 0.0, "max_tokens": 2}
    assert (line["cache_salt"], line["priority"], line["lease_id"]) == ("01ff", 9, 3)
    assert (line["request_id"], line["traceparent"]) == ("hello.7", "00-a-b-01")


async def test_metrics_count_tokens_and_outcomes(mesh: Mesh, session: Session) -> None:
    """The ops listener serves the counters under their documented names."""
    generate = mesh.generate("hello")
    await session.send([generate])
    await session.end_of(generate.key)
    text = await _metrics(mesh.app)
    for name in (
        "inferway_worker_num_requests_running",
        "inferway_worker_num_requests_waiting",
        'inferway_worker_completion_tokens_total{model="m-text"}',
        'inferway_worker_prompt_tokens_total{model="m-text"}',
        'inferway_worker_cached_tokens_total{model="m-text"}',
        "inferway_worker_step_seconds_bucket",
        'inferway_worker_outcomes_total{outcome="ok"}',
        'inferway_worker_grammar_cache_total{outcome="hit"}',
        'inferway_worker_grammar_cache_total{outcome="miss"}',
    ):
        assert name in text


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (worker_pb2.CONSTRAINT_KIND_JSON_SCHEMA, "json_schema"),
        (worker_pb2.CONSTRAINT_KIND_REGEX, "regex"),
        (worker_pb2.CONSTRAINT_KIND_EBNF, "ebnf"),
    ],
)
async def test_constraints_reach_the_engine(
    mesh: Mesh, session: Session, tmp_path: Path, kind: worker_pb2.ConstraintKind, name: str
) -> None:
    """As the gateway wrote them; tokens are those of the script all the same."""
    constrained = mesh.generate("hello", constraint=worker_pb2.Constraint(kind=kind, text='{"é": 1}'))
    free = mesh.generate("hello")
    await session.send([constrained, free])
    for generate in (constrained, free):
        assert (await session.end_of(generate.key)).finish_reason == types_pb2.FINISH_REASON_STOP
        assert session.text_of(generate.key) == "Hello"
    assert [line["constraint"] for line in recorded(tmp_path)] == [{"kind": name, "text": '{"é": 1}'}, None]


@pytest.mark.parametrize(
    ("request_id", "kind", "text", "reason", "part"),
    [
        ("hello", worker_pb2.CONSTRAINT_KIND_REGEX, "a" * 262_145, "invalid_request", "262144 bytes, got 262145"),
        ("hello", worker_pb2.CONSTRAINT_KIND_REGEX, "", "invalid_request", "got 0"),
        ("hello", worker_pb2.CONSTRAINT_KIND_UNSPECIFIED, "a", "unsupported_value", "m-text"),
        ("hello", 99, "a", "unsupported_value", "m-text"),
        ("loose", worker_pb2.CONSTRAINT_KIND_REGEX, "a", "unsupported_value", "grammars"),
    ],
)
async def test_constraints_that_are_refused(
    mesh: Mesh, session: Session, request_id: str, kind: Any, text: str, reason: str, part: str
) -> None:
    """Before any token, by the field, and the session goes on."""
    refused = mesh.generate(request_id, constraint=worker_pb2.Constraint(kind=kind, text=text))
    await session.send([refused])
    last = await session.end_of(refused.key)
    assert (last.error.reason, last.error.param) == (reason, "constraint")
    assert part in last.error.message
    after = mesh.generate("hello")
    await session.send([after])
    assert (await session.end_of(after.key)).finish_reason == types_pb2.FINISH_REASON_STOP


async def test_a_worker_without_grammars(tmp_path: Path) -> None:
    """`--capability grammar=false` takes every kind away, from what is reported and from what is taken."""
    async with running(tmp_path, capability=("grammar=false",)) as mesh:
        (model, *_) = (await mesh.stub.Describe(worker_pb2.DescribeRequest())).models
        assert not [name for name in model.capabilities if "constraint" in name or "grammar" in name]
        session = Session(mesh.stub)
        constraint = worker_pb2.Constraint(kind=worker_pb2.CONSTRAINT_KIND_JSON_SCHEMA, text="{}")
        refused = mesh.generate("hello", constraint=constraint)
        await session.send([refused])
        assert (await session.end_of(refused.key)).error.reason == "unsupported_value"
        await session.close()
