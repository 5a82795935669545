"""One trace of one request, put together from what all processes of a real mesh export."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import trustme

from inferway.cli.ports import free_ports
from inferway.trace_export import EXPORT_TIMEOUT_S
from tests.support.client import Answer, send
from tests.support.otlp import CLIENT, SERVER, Collector, chain, one, trace_of
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream
from tests.support.waiting import until

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hello there"}]}
STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
UNSAMPLED = PARENT[:-2] + "00"
FINISH = {"finish": "stop", "usage": {"prompt": 5, "completion": 2}}
BREAK = {"grpc_error": {"code": "INTERNAL", "details": "x"}}
SCRIPTS = {
    "broken": [BREAK],
    "whole": [{"sleep_ms": 200}, {"text": "a"}, {"sleep_ms": 200}, {"text": "b"}, FINISH],
    "endless": [{"text": "t", "repeat": 1000, "gap_ms": 20}, FINISH],
    "breaks": [{"text": "a"}, BREAK],
    "moves": [{"worker": "A", **BREAK}, {"text": "a"}, FINISH],
}


@pytest.fixture(scope="module")
def mesh(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two workers; nothing but what callers and failures ask for is sampled."""
    scripts = tmp_path_factory.mktemp("tracing") / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    traced = ["--otlp-endpoint", collector.endpoint]
    with Mesh(
        workers=[["--engine", "scripted", "--name", name, "--scripts", str(scripts), *traced] for name in "AB"],
        router_args=traced,
        gateway_args=[*traced, "--trace-sample-ratio", "0"],
    ) as running:
        yield running


async def ask(mesh: Mesh, body: Any, request_id: str, *, traceparent: str = PARENT, **headers: str) -> Answer:
    headers |= {"traceparent": traceparent} if traceparent else {}
    return await send(mesh.gateway.address, CHAT, body=body, request_id=request_id, headers=headers)


async def test_a_stream_is_one_trace_through_all_processes(collector: Collector, mesh: Mesh) -> None:
    """Gateway, router and worker each tell their stages, below the one who asked, with usage and first token."""
    answer = await ask(mesh, {**STREAM, "user": "Erika Mustermann"}, "whole.1")
    assert answer.status == 200
    spans = await trace_of(
        collector,
        "whole.1",
        [CHAT, "prepare", "route", "queue", "generate", "choice", "queue", "prefill", "decode", "answer"],
    )
    root = one(spans, CHAT)
    assert root.trace_id == PARENT.split("-")[1]
    assert root.parent_id == PARENT.split("-")[2]
    assert root.seconds >= 0.4
    assert "first_token" in root.events
    told = root.attributes
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == "m-text"
    assert told["gen_ai.usage.input_tokens"] == 5
    assert told["gen_ai.usage.output_tokens"] == 2
    assert told["http.response.status_code"] == 200
    assert told["inferway.outcome"] == "ok"
    assert 0.2 <= told["gen_ai.response.time_to_first_chunk"] <= root.seconds
    assert len(told["enduser.pseudo.id"]) == 16
    services = {(span.service, span.name) for span in spans}
    assert {("inferway-router", "queue"), ("inferway-worker", "queue"), ("inferway-worker", "choice")} <= services
    decision = next(span for span in spans if span.service == "inferway-router")
    assert chain(spans, decision) == ["queue", "route", CHAT]
    assert decision.kind == SERVER
    assert "decided" in decision.events
    assert decision.attributes["inferway.candidates"] == 2
    assert chain(spans, one(spans, "decode")) == ["decode", "choice", "generate", CHAT]
    assert one(spans, "generate").kind == CLIENT
    choice = one(spans, "choice")
    assert choice.attributes["inferway.lease_id"] == decision.attributes["inferway.lease_id"]
    assert choice.events["first_token"] == pytest.approx(one(spans, "decode").start, abs=1e-6)
    assert b"Mustermann" not in b"".join(collector.raw)
    assert b"hello there" not in b"".join(collector.raw)


async def test_a_client_that_leaves_ends_every_span(collector: Collector, mesh: Mesh) -> None:
    """A broken stream has a whole trace, which says who has left; that is no error of ours."""
    headers = {"X-Request-Id": "endless.1", "traceparent": PARENT}
    stream = await EventStream.open(mesh.gateway.address, STREAM, headers=headers)
    await stream.wait_events(3)
    stream.close()
    spans = await trace_of(
        collector,
        "endless.1",
        [CHAT, "prepare", "route", "queue", "generate", "choice", "queue", "prefill", "decode", "answer"],
    )
    root = one(spans, CHAT)
    assert root.attributes["inferway.outcome"] == "client_closed_request"
    assert root.attributes["gen_ai.usage.output_tokens"] >= 1
    assert one(spans, "choice").attributes["inferway.outcome"] == "client_closed_request"
    assert not any(span.is_error for span in spans)


async def test_a_failure_keeps_the_trace_of_who_met_it(collector: Collector, mesh: Mesh) -> None:
    """Without being sampled: the gateway's spans and the failed worker's are there, and say why."""
    answer = await ask(mesh, STREAM, "breaks.1", traceparent=UNSAMPLED)
    assert answer.status == 200
    assert "error" in answer.chunks[-1]
    spans = await trace_of(
        collector, "breaks.1", [CHAT, "prepare", "route", "generate", "answer", "choice", "queue", "prefill", "decode"]
    )
    for name in (CHAT, "generate", "choice"):
        assert one(spans, name).is_error, name
        assert one(spans, name).attributes["error.type"] == "worker_failed"
    assert one(spans, CHAT).attributes["http.response.status_code"] == 200


async def test_a_retried_request_has_a_pair_of_spans_for_each_attempt(collector: Collector, mesh: Mesh) -> None:
    """The trace shows where it was tried first, why that failed, and who has answered."""
    for number in range(1, 20):  # until one of them goes to A first
        request_id = f"moves.{number}"
        assert (await ask(mesh, ASK, request_id)).status == 200
        await until(lambda found=request_id: any(s.name == CHAT for s in collector.of(found)), 10, "the root span")
        if len([span for span in collector.of(request_id) if span.name == "generate"]) == 2:
            break
    names = [CHAT, "prepare", "answer"] + 2 * ["route", "queue", "generate", "choice", "queue"]
    spans = await trace_of(collector, request_id, [*names, "prefill", "prefill", "decode"])
    first, second = (span for span in spans if span.name == "generate")
    assert (first.attributes["inferway.worker_id"], second.attributes["inferway.worker_id"]) == ("A", "B")
    assert first.attributes["error.type"] == "worker_failed"
    assert not second.is_error
    assert first.end <= second.start
    assert one(spans, CHAT).attributes["inferway.attempts"] == 2
    by_parent = {span.parent_id: span.attributes["inferway.outcome"] for span in spans if span.name == "choice"}
    assert by_parent == {first.span_id: "worker_failed", second.span_id: "ok"}


@pytest.mark.slow
async def test_embeddings_have_a_trace_as_well(collector: Collector, mesh: Mesh) -> None:
    """Also of those that fail: the worker's span is below the attempt."""
    headers = {"traceparent": PARENT}
    for request_id, outcome in (("vector.1", "ok"), ("broken.1", "worker_failed")):
        body = {"model": "m-embed", "input": ["one", "two"]}
        address = mesh.gateway.address
        answer = await send(address, "POST /v1/embeddings", body=body, request_id=request_id, headers=headers)
        assert (answer.status == 200) == (outcome == "ok")
        await until(lambda of=request_id: any(span.parent_id == PARENT[36:52] for span in collector.of(of)), 10, "root")
        await until(lambda of=request_id: any(span.name == "embed" for span in collector.of(of)), 10, "the worker's")
        spans = collector.of(request_id)
        root = one(spans, "POST /v1/embeddings")
        assert root.attributes["gen_ai.operation.name"] == "embeddings"
        assert root.attributes["inferway.outcome"] == outcome
        for span in spans:
            if span.name == "embed":
                assert chain(spans, span) == ["embed", "generate", "POST /v1/embeddings"]
                assert span.attributes["inferway.outcome"] == outcome
                assert span.is_error == (outcome != "ok")


@pytest.mark.slow
async def test_what_is_not_sampled_and_does_not_fail_is_not_told(collector: Collector, mesh: Mesh) -> None:
    """Neither by a parent that is not sampled nor by a ratio of 0; refusals of a caller's mistakes are not kept."""
    assert (await ask(mesh, ASK, "quiet.1", traceparent=UNSAMPLED)).status == 200
    assert (await ask(mesh, ASK, "quiet.2", traceparent="")).status == 200
    assert (await ask(mesh, {**ASK, "temperature": 9}, "quiet.3", traceparent="")).status == 400
    assert (await ask(mesh, {**ASK, "temperature": 9}, "loud.1")).status == 400
    refused = await trace_of(collector, "loud.1", [CHAT])
    assert refused[0].attributes["inferway.outcome"] == "invalid_request"
    assert not refused[0].is_error
    assert not [collector.of(f"quiet.{number}") for number in (1, 2, 3) if collector.of(f"quiet.{number}")]


@pytest.mark.slow
async def test_a_worker_that_goes_says_so(collector: Collector, tmp_path: Path) -> None:
    """What it cuts at its drain limit is not its client's doing; its last spans are told before it has ended."""
    (tmp_path / "scripts.json").write_text(json.dumps(SCRIPTS))
    traced = ["--otlp-endpoint", collector.endpoint]
    worker = ["--engine", "scripted", "--scripts", str(tmp_path / "scripts.json"), "--drain-limit-s", "0.2", *traced]
    with Mesh(workers=[worker], router_args=traced, gateway_args=traced) as mesh:
        headers = {"X-Request-Id": "endless.going", "traceparent": PARENT}
        stream = await EventStream.open(mesh.gateway.address, STREAM, headers=headers)
        await stream.wait_events(3)
        assert await asyncio.to_thread(mesh.workers[0].stop) == 0
        assert one(collector.of("endless.going"), "choice").attributes["inferway.outcome"] == "shutting_down"
        stages = ["prepare", "route", "queue", "generate", "choice", "queue", "prefill", "decode", "answer"]
        spans = await trace_of(collector, "endless.going", [CHAT, *stages])
        assert one(spans, CHAT).attributes["error.type"] == "worker_failed"


@pytest.mark.slow
async def test_processes_that_stop_tell_their_last_spans(collector: Collector) -> None:
    """Also those of a request that was answered just before."""
    traced = ["--otlp-endpoint", collector.endpoint]
    with Mesh(workers=[["--engine", "scripted", *traced]], router_args=traced, gateway_args=traced) as mesh:
        assert (await ask(mesh, ASK, "whole.last")).status == 200
        processes = [mesh.gateway, *mesh.routers, *mesh.workers]
        assert await asyncio.gather(*(asyncio.to_thread(process.stop) for process in processes)) == [0, 0, 0]
    assert {span.service for span in collector.of("whole.last")} == {
        "inferway-gateway",
        "inferway-router",
        "inferway-worker",
    }


@pytest.mark.slow
async def test_a_collector_that_comes_late_gets_what_is_asked_then(tmp_path: Path) -> None:
    """All processes find it, and the gateway tells when it has lost spans and when that was over."""
    address = f"127.0.0.1:{free_ports({'collector': 0})['collector']}"
    traced = ["--otlp-endpoint", f"http://{address}"]
    with Mesh(workers=[["--engine", "scripted", *traced]], router_args=traced, gateway_args=traced) as mesh:
        assert (await ask(mesh, ASK, "early.1")).status == 200
        await until(lambda: mesh.gateway.events("traces_fail"), 20, "spans are lost")
        with Collector(address) as late:
            for number in range(200):
                assert (await ask(mesh, ASK, f"late.{number}")).status == 200
                if len({span.service for span in late.spans}) == 3:
                    break
                await asyncio.sleep(0.1)
            assert len({span.service for span in late.spans}) == 3
            await until(lambda: mesh.gateway.events("traces_work_again"), 10, "it is told")


@pytest.mark.slow
async def test_a_collector_with_tls_of_an_authority_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every service checks it by the authority that its environment names, and tells another's nothing."""
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("localhost")
    tls = (certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())
    with Collector(tls=tls) as collector:
        flags = ["--otlp-endpoint", collector.endpoint]
        for name, each in (("other", other), ("own", authority)):
            each.cert_pem.write_to_path(tmp_path / name)
            monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", str(tmp_path / name))
            with Mesh(workers=[["--engine", "scripted", *flags]], router_args=flags, gateway_args=flags) as mesh:
                assert (await ask(mesh, ASK, f"tls.{name}")).status == 200
                if name == "own":
                    await until(lambda: len({span.service for span in collector.of("tls.own")}) == 3, 10, "all three")
        # Processes that end have told what they could.
        assert not collector.of("tls.other")


@pytest.mark.slow
async def test_an_absent_collector_costs_nothing() -> None:
    """Requests are served, the loss is counted and told once, and the process leaves without waiting for it."""
    with socket.socket() as taken:
        # Listens and never answers: worse than a port that is closed.
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        endpoint = f"http://127.0.0.1:{taken.getsockname()[1]}"
        args = ["--otlp-endpoint", endpoint, "--trace-sample-ratio", "1", "--drain-delay-s", "0"]
        with Mesh(gateway_args=args, with_router=False) as mesh:
            answers = await asyncio.gather(*(ask(mesh, ASK, f"absent.{n}", traceparent="") for n in range(20)))
            assert {answer.status for answer in answers} == {200}
            assert await asyncio.to_thread(mesh.gateway.stop) == 0
            (draining,), (closed,) = mesh.gateway.events("draining"), mesh.gateway.events("closed")
            waited = datetime.fromisoformat(closed["time"]) - datetime.fromisoformat(draining["time"])
            # Not even one trial of the exporter was waited for to its end.
            assert waited.total_seconds() < EXPORT_TIMEOUT_S
