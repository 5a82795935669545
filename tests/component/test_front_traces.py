"""One trace from Envoy to the engine, put together from what all processes export, behind the real proxy."""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from multidict import CIMultiDict

from inferway.cli.ports import free_ports
from tests.support.client import send
from tests.support.fronts import Front, need
from tests.support.otlp import SERVER, Collector, Seen
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hello there"}]}
STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
CALLER = "00f067aa0ba902b7"
FINISH = {"finish": "stop", "usage": {"prompt": 5, "completion": 2}}
SCRIPTS = {
    "whole": [{"text": "a"}, {"sleep_ms": 50}, {"text": "b"}, FINISH],
    "endless": [{"text": "t", "repeat": 1000, "gap_ms": 20}, FINISH],
    "breaks": [{"text": "a"}, {"grpc_error": {"code": "INTERNAL", "details": "x"}}],
    "silent": [{"sleep_ms": 20_000}, {"text": "a"}],
}
# Every span by the way to it, for a request whose engine has made a token.
FRONT = "front"
GATEWAY = f"{FRONT} > gateway"
WORKER = f"{GATEWAY} > generate > worker choice"
ANSWERED = [
    FRONT,
    GATEWAY,
    *(f"{GATEWAY} > {stage}" for stage in ("answer", "generate", "prepare", "route")),
    f"{GATEWAY} > route > router queue",
    WORKER,
    *(f"{WORKER} > {stage}" for stage in ("decode", "prefill", "queue")),
]


class Traced(NamedTuple):
    """`front` keeps what callers say, and nothing else; the gateway behind it would keep everything."""

    mesh: Mesh
    front: Front
    collector: Collector


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    need("envoy")
    folder = tmp_path_factory.mktemp("front-traces")
    (folder / "scripts.json").write_text(json.dumps(SCRIPTS))
    export = ["--otlp-endpoint", collector.endpoint]
    worker = ["--engine", "scripted", "--name", "A", "--scripts", str(folder / "scripts.json"), *export]
    with (
        Mesh(workers=[worker], router_args=export, gateway_args=[*export, "--trace-sample-ratio", "1"]) as mesh,
        Front("envoy", folder, [mesh.gateway.address], *export, "--trace-sample-ratio", "0") as front,
    ):
        yield Traced(mesh, front, collector)


def new_trace(*, is_sampled: bool = True) -> tuple[str, str]:
    """A trace id, and the traceparent of a caller."""
    trace_id = secrets.token_hex(16)
    return trace_id, f"00-{trace_id}-{CALLER}-0{int(is_sampled)}"


def by_path(spans: Sequence[Seen]) -> list[tuple[str, Seen]]:
    """Each span behind the names from the root to it. A server's span has its service's name, as all here serve."""
    by_id = {span.span_id: span for span in spans}
    assert len(by_id) == len(spans)

    def path(span: Seen) -> str:
        above = by_id.get(span.parent_id)
        service = span.service.removeprefix("inferway-")
        if above is not None and above.service == span.service:
            name = span.name
        else:
            name = service if service in ("front", "gateway") else f"{service} {span.name}"
        return f"{path(above)} > {name}" if above is not None else name

    return sorted(((path(span), span) for span in spans), key=lambda pair: pair[0])


async def whole_trace(traced: Traced, trace_id: str, request_id: str, expected: Sequence[str]) -> dict[str, Seen]:
    """The spans of a trace by their paths, once they are these; each has the request's id and a time within reason."""
    collector = traced.collector
    await until(
        lambda: len(collector.trace(trace_id)) >= len(expected),
        10,
        f"{expected}, got {[path for path, _ in by_path(collector.trace(trace_id))]}",
    )
    found = by_path(collector.trace(trace_id))
    assert [path for path, _ in found] == sorted(expected)
    assert {span.attributes["inferway.request_id"] for _, span in found} == {request_id}
    spans = dict(found)
    for path, span in spans.items():
        above, _, _ = path.rpartition(" > ")
        # Of one machine, so that clocks are compared to the rounding of the epoch.
        assert not above or span.start >= spans[above].start - 0.01, path
        assert span.end >= span.start
    return spans


async def test_a_stream_is_one_trace_from_the_front_to_the_engine(traced: Traced) -> None:
    """Below the caller's span stands Envoy's, and below that everybody's; the gateway follows Envoy's flag."""
    trace_id, traceparent = new_trace()
    answer = await send(
        traced.front.address,
        f"{CHAT}?api_key=sk-CANARY",
        body=STREAM,
        request_id="whole.front",
        headers={"traceparent": traceparent, "tracestate": "a=b", "Authorization": "Bearer sk-CANARY"},
    )
    assert answer.status == 200
    spans = await whole_trace(traced, trace_id, "whole.front", ANSWERED)
    front = spans[FRONT]
    assert front.name == spans[GATEWAY].name == CHAT
    assert front.kind == SERVER
    assert front.parent_id == CALLER
    assert front.trace_state == "a=b"
    assert front.attributes["http.status_code"] == "200"
    assert front.attributes["url.path"] == "/v1/chat/completions"
    assert not any(span.is_error for span in spans.values())
    assert front.end >= spans[GATEWAY].start
    assert b"CANARY" not in b"".join(traced.collector.raw)
    assert b"hello there" not in b"".join(traced.collector.raw)


async def test_a_client_that_leaves_has_a_whole_trace(traced: Traced) -> None:
    """All spans end, and none is an error: Envoy says that it was the client."""
    trace_id, traceparent = new_trace()
    headers = {"X-Request-Id": "endless.front", "traceparent": traceparent}
    stream = await EventStream.open(traced.front.address, STREAM, headers=headers)
    await stream.wait_events(3)
    stream.close()
    spans = await whole_trace(traced, trace_id, "endless.front", ANSWERED)
    assert spans[FRONT].attributes["response_flags"] == "DC"
    assert spans[GATEWAY].attributes["inferway.outcome"] == "client_closed_request"
    assert not any(span.is_error for span in spans.values())


async def test_a_stream_that_breaks_has_a_whole_trace(traced: Traced) -> None:
    """The failed spans say so; Envoy has passed on an answer of 200 and knows of nothing."""
    trace_id, traceparent = new_trace()
    answer = await send(
        traced.front.address, CHAT, body=STREAM, request_id="breaks.front", headers={"traceparent": traceparent}
    )
    assert "error" in answer.chunks[-1]
    spans = await whole_trace(traced, trace_id, "breaks.front", ANSWERED)
    failed = {path for path, span in spans.items() if span.is_error}
    assert failed == {GATEWAY, f"{GATEWAY} > generate", WORKER}


async def test_what_the_gateway_refuses_has_a_trace_of_two(traced: Traced) -> None:
    """A caller's mistake is no error of ours, in neither span."""
    trace_id, traceparent = new_trace()
    body = {**ASK, "temperature": 9}
    answer = await send(
        traced.front.address, CHAT, body=body, request_id="refused.front", headers={"traceparent": traceparent}
    )
    assert answer.status == 400
    spans = await whole_trace(traced, trace_id, "refused.front", [FRONT, GATEWAY])
    assert spans[FRONT].attributes["http.status_code"] == "400"
    assert spans[GATEWAY].attributes["http.response.status_code"] == 400
    assert not any(span.is_error for span in spans.values())


async def test_what_is_not_sampled_is_told_by_those_who_failed_only(traced: Traced) -> None:
    """The front decides: a gateway that would keep everything keeps nothing, but for the failures that it meets."""
    trace_id, unsampled = new_trace(is_sampled=False)
    for request_id, headers in (("quiet.parent", {"traceparent": unsampled}), ("quiet.none", {})):
        answer = await send(traced.front.address, CHAT, body=ASK, request_id=request_id, headers=headers)
        assert answer.status == 200
    answer = await send(
        traced.front.address, CHAT, body=STREAM, request_id="breaks.quiet", headers={"traceparent": unsampled}
    )
    assert "error" in answer.chunks[-1]
    # Later on the same way to the collector: what was not told by now will not be.
    trace_id_of_last, last = new_trace()
    await send(traced.front.address, "GET /v1/models", headers={"traceparent": last})
    await until(lambda: traced.collector.trace(trace_id_of_last), 10, "the front's last span")
    # Of the gateway, which has no parent here, and of the worker.
    told = [path.removeprefix(f"{FRONT} > ") for path in ANSWERED if path != FRONT and "router" not in path]
    spans = await whole_trace(traced, trace_id, "breaks.quiet", told)
    assert spans["gateway"].parent_id != CALLER
    assert not traced.collector.of("quiet.parent") + traced.collector.of("quiet.none")


BAD_PARENTS = {
    "uppercase": "00-4BF92F3577B34DA6A3CE929D0E0E4736-00F067AA0BA902B7-01",
    "version-ff": "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
    "no-trace": "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
    "no-span": "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
    "longer": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
    "shorter": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
    "no-hex": "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
    "shifted": "00-4bf92f3577b34da6a3ce929d0e0e47-3600f067aa0ba902b7-01",
    "huge": "x" * 9000,
    "empty": "",
}


@pytest.mark.slow
async def test_what_is_no_traceparent_begins_a_trace(traced: Traced, collector: Collector, tmp_path: Path) -> None:
    """Envoy and the gateway agree on what is none, two headers included: a whole trace, and not the caller's."""
    flags = ("--otlp-endpoint", collector.endpoint, "--trace-sample-ratio", "1")

    async def one_trace(address: str, request_id: str, parents: Sequence[str]) -> None:
        headers = [("traceparent", parent) for parent in parents]
        answer = await send(address, CHAT, body=ASK, request_id=request_id, headers=CIMultiDict(headers))
        assert answer.status == 200, request_id
        await until(lambda: len(collector.of(request_id)) >= len(ANSWERED), 10, request_id)
        found = by_path(collector.of(request_id))
        assert [path for path, _ in found] == sorted(ANSWERED), request_id
        assert dict(found)[FRONT].parent_id == ""
        assert dict(found)[FRONT].trace_id not in "".join(parents)

    with Front("envoy", tmp_path, [traced.mesh.gateway.address], *flags) as front:
        for name, parent in BAD_PARENTS.items():
            await one_trace(front.address, f"whole.{name}", [parent])
        two = [new_trace()[1], new_trace()[1]]
        await one_trace(front.address, "whole.two", two)
        # Without a front the gateway judges alone.
        answer = await send(
            traced.mesh.gateway.address,
            CHAT,
            body=ASK,
            request_id="whole.alone",
            headers=CIMultiDict([("traceparent", parent) for parent in two]),
        )
        assert answer.status == 200
        await until(lambda: len(collector.of("whole.alone")) >= len(ANSWERED) - 1, 10, "the gateway's trace")
        assert collector.of("whole.alone")[0].trace_id not in "".join(two)


@pytest.mark.slow
async def test_a_huge_tracestate_is_dropped_and_its_trace_is_kept(traced: Traced) -> None:
    """Whatever a caller sends, spans stay small and the request is served."""
    trace_id, traceparent = new_trace()
    headers = {"traceparent": traceparent, "tracestate": f"a={'b' * 8000}"}
    answer = await send(traced.front.address, CHAT, body=ASK, request_id="whole.state", headers=headers)
    assert answer.status == 200
    spans = await whole_trace(traced, trace_id, "whole.state", ANSWERED)
    assert spans[FRONT].trace_state == ""


@pytest.mark.slow
async def test_a_client_that_leaves_before_its_answer_is_no_error_either(traced: Traced) -> None:
    """There is no status then; all spans end without one of them being marked as failed."""
    trace_id, traceparent = new_trace()
    headers = {"X-Request-Id": "silent.left", "traceparent": traceparent}
    stream = await EventStream.open(traced.front.address, STREAM, headers=headers)
    await asyncio.sleep(0.5)
    stream.close()
    expected = [path for path in ANSWERED if not path.endswith(("decode", "prefill", "worker choice > queue"))]
    spans = await whole_trace(traced, trace_id, "silent.left", [*expected, f"{WORKER} > queue and prefill"])
    assert spans[FRONT].attributes["response_flags"] == "DC"
    assert not any(span.is_error for span in spans.values())


@pytest.mark.slow
async def test_a_path_that_a_caller_made_up_is_cut(traced: Traced) -> None:
    """And is no span's name: of those there are few."""
    trace_id, traceparent = new_trace()
    path = f"/v1/models/{'x' * 2000}"
    await send(traced.front.address, f"GET {path}", request_id="path.1", headers={"traceparent": traceparent})
    await until(lambda: traced.collector.trace(trace_id), 10, "the front's span")
    (span,) = traced.collector.trace(trace_id)
    assert span.name == "GET"
    assert span.attributes["url.path"] == path[:256]


@pytest.mark.slow
async def test_two_requests_of_one_id_are_two_traces(traced: Traced) -> None:
    """Each is whole: nothing joins spans by the id that a caller may choose twice."""
    made = [new_trace() for _ in range(2)]
    answers = await asyncio.gather(
        *(
            send(traced.front.address, CHAT, body=ASK, request_id="whole.twice", headers={"traceparent": traceparent})
            for _, traceparent in made
        )
    )
    assert [answer.status for answer in answers] == [200, 200]
    for trace_id, _ in made:
        await whole_trace(traced, trace_id, "whole.twice", ANSWERED)


@pytest.mark.slow
async def test_a_worker_that_is_killed_leaves_the_rest_of_the_trace(traced: Traced) -> None:
    """What it knew is lost with it; everybody else's spans are there, and the attempt says what was wrong."""
    trace_id, traceparent = new_trace()
    headers = {"X-Request-Id": "endless.killed", "traceparent": traceparent}
    stream = await EventStream.open(traced.front.address, STREAM, headers=headers)
    await stream.wait_events(3)
    await asyncio.to_thread(traced.mesh.workers[0].kill)
    await asyncio.wait_for(stream.done, 20)
    spans = await whole_trace(traced, trace_id, "endless.killed", [path for path in ANSWERED if WORKER not in path])
    assert spans[f"{GATEWAY} > generate"].attributes["error.type"] == "worker_failed"
    assert {path for path, span in spans.items() if span.is_error} == {GATEWAY, f"{GATEWAY} > generate"}
    await asyncio.to_thread(traced.mesh.start_worker_again, 0)
    await asyncio.to_thread(traced.mesh.wait_ready)


@pytest.mark.slow
async def test_what_reaches_no_gateway_has_the_front_alone(collector: Collector, tmp_path: Path) -> None:
    """A failure that nobody else can tell of."""
    need("envoy")
    nobody = f"127.0.0.1:{free_ports({'gateway': 0})['gateway']}"
    trace_id, traceparent = new_trace()
    with Front("envoy", tmp_path, [nobody], "--otlp-endpoint", collector.endpoint) as front:
        answer = await send(front.address, CHAT, body=ASK, request_id="nobody.1", headers={"traceparent": traceparent})
        assert answer.status == 503
        await until(lambda: collector.trace(trace_id), 10, "the front's span")
    (span,) = collector.trace(trace_id)
    assert span.is_error
    assert span.attributes["http.status_code"] == "503"
    assert b"service.instance.id" in collector.raw[-1]


@pytest.mark.slow
async def test_callers_that_are_not_trusted(traced: Traced, collector: Collector, tmp_path: Path) -> None:
    """With --ignore-caller-traces nobody chooses ids, and nobody what is kept."""
    flags = ("--otlp-endpoint", collector.endpoint, "--ignore-caller-traces", "--trace-sample-ratio")
    gateways = [traced.mesh.gateway.address]
    with (
        Front("envoy", tmp_path, gateways, *flags, "1") as all_of_them,
        Front("envoy", tmp_path, gateways, *flags, "0") as none_of_them,
    ):
        trace_id, traceparent = new_trace(is_sampled=False)
        headers = {"traceparent": traceparent}
        await send(all_of_them.address, CHAT, body=ASK, request_id="whole.theirs", headers=headers)
        await until(lambda: len(collector.of("whole.theirs")) == len(ANSWERED), 10, "kept, whatever the caller says")
        assert not collector.trace(trace_id)
        trace_id, traceparent = new_trace()
        headers = {"traceparent": traceparent}
        await send(none_of_them.address, CHAT, body=ASK, request_id="whole.mine", headers=headers)
        await send(all_of_them.address, CHAT, body=ASK, request_id="whole.last")
        await until(lambda: len(collector.of("whole.last")) == len(ANSWERED), 10, "later than that")
        await asyncio.sleep(1)
        assert not collector.of("whole.mine") + collector.trace(trace_id)


@pytest.mark.slow
async def test_probes_are_not_told(traced: Traced, collector: Collector, tmp_path: Path) -> None:
    """Of what is asked every few seconds whether the proxy lives nothing is kept."""
    flags = ("--otlp-endpoint", collector.endpoint, "--trace-sample-ratio", "1")
    with Front("envoy", tmp_path, [traced.mesh.gateway.address], *flags) as front:
        for number in range(5):
            answer = await send(front.address, "GET /health", request_id=f"probe.{number}")
            assert answer.status == 200
        await send(front.address, "GET /v1/models", request_id="probe.models")
        await until(lambda: collector.of("probe.models"), 10, "a span of the front")
    assert [span.name for span in collector.of("probe.models")] == ["GET /v1/models"]
    assert not [found for number in range(5) if (found := collector.of(f"probe.{number}"))]


@pytest.mark.slow
async def test_a_collector_with_tls_and_a_token(traced: Traced, tmp_path: Path) -> None:
    """It is checked by the authority that is given, and gets the headers; another's certificate gets no spans."""
    authority, other = trustme.CA(), trustme.CA()
    certificate = authority.issue_cert("localhost")
    tls = (certificate.private_key_pem.bytes(), certificate.cert_chain_pems[0].bytes())
    for name, each in (("own", authority), ("other", other)):
        each.cert_pem.write_to_path(tmp_path / f"{name}.pem")
    with Collector(tls=tls) as collector:
        for name in ("other", "own"):
            flags = (
                "--otlp-endpoint",
                collector.endpoint,
                "--otlp-headers",
                "X-Token=100%25PROTOCOL%25%20x",
                "--otlp-ca-file",
            )
            with Front(
                "envoy", tmp_path, [traced.mesh.gateway.address], *flags, str(tmp_path / f"{name}.pem")
            ) as front:
                headers = {"traceparent": new_trace()[1]}
                await send(front.address, "GET /v1/models", request_id=f"tls.{name}", headers=headers)
                if name == "own":
                    await until(lambda: collector.of("tls.own"), 10, "the span")
                else:
                    await asyncio.sleep(1.5)
        assert not collector.of("tls.other")
        assert collector.headers["x-token"] == "100%PROTOCOL% x"


@pytest.mark.slow
async def test_a_collector_that_is_away_hangs_or_comes_late(traced: Traced, tmp_path: Path) -> None:
    """No request is held up or lost, and when it comes it gets the spans of what is asked from then on."""
    gateways = [traced.mesh.gateway.address]
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        # Accepts in the kernel and never answers.
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Front("envoy", tmp_path, gateways, "--otlp-endpoint", endpoint, "--trace-sample-ratio", "1") as front:
            for _ in range(4):
                answers = await asyncio.gather(*(send(front.address, CHAT, body=ASK) for _ in range(20)))
                assert {answer.status for answer in answers} == {200}
                await asyncio.sleep(0.5)
    address = f"127.0.0.1:{free_ports({'collector': 0})['collector']}"
    flags = ("--otlp-endpoint", f"http://{address}", "--trace-sample-ratio", "1")
    with Front("envoy", tmp_path, gateways, *flags) as front:
        assert (await send(front.address, CHAT, body=ASK, request_id="whole.early")).status == 200
        await asyncio.sleep(1)
        with Collector(address) as late:
            for number in range(200):
                assert (await send(front.address, "GET /v1/models", request_id=f"late.{number}")).status == 200
                if late.spans:
                    break
                await asyncio.sleep(0.1)
            assert late.spans
