"""Handed cases on traces, on an installation whose processes all export to a collector; and no key in what they do."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import ASK, CHAT, STREAM, first_event, log_line
from tests.support.otlp import Collector, Seen
from tests.support.processes import Mesh
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

KEY = "sk-CANARY-123"
AUTHORIZED = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def traced(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("traced")
    record, tenants = folder / "record.jsonl", folder / "tenants.yaml"
    tenants.write_text(f"tenants: {{t: {{keys: {{k: {{sha256: {hashlib.sha256(KEY.encode()).hexdigest()}}}}}}}}}")
    export = ["--otlp-endpoint", collector.endpoint, "--log-level", "debug"]
    worker = ["--engine", "scripted", "--name", "A", "--scripts", str(CASES_FILE), "--record", str(record), *export]
    gateway = ["--tenants", str(tenants), "--trace-sample-ratio", "1", *export]
    with Mesh(workers=[worker], router_args=export, gateway_args=gateway) as mesh:
        yield Installation(mesh, record)


async def spans_of(collector: Collector, request_id: str, name: str, count: int = 1) -> list[Seen]:
    """All spans of the request, once so many of this name are there."""

    def found() -> bool:
        return len([span for span in collector.of(request_id) if span.name == name]) >= count

    await until(found, 10, f"{count} spans {name} of {request_id}")
    return collector.of(request_id)


def named(spans: list[Seen], name: str) -> Seen:
    (found,) = (span for span in spans if span.name == name)
    return found


@case("TRC-06")
async def test_the_trace_goes_on_through_the_stream(case: Any, traced: Installation, collector: Collector) -> None:
    """The engine is told the gateway's client span; the server span lasts as long as the stream, also a broken one."""
    headers = {**case["input"]["headers"], **AUTHORIZED}
    body = case["input"]["body"]
    answer = await traced.send(CHAT, body=body, request_id="TRC-06.1", headers=headers)
    assert answer.status == 200
    spans = await spans_of(collector, "TRC-06.1", CHAT)
    server, client = named(spans, CHAT), named(spans, "generate")
    (record,) = traced.engine_saw("TRC-06.1")
    assert record["traceparent"] == f"00-4bf92f3577b34da6a3ce929d0e0e4736-{client.span_id}-01"
    assert client.parent_id == server.span_id
    assert server.parent_id == "00f067aa0ba902b7"
    assert server.seconds >= 1.0
    assert server.start <= server.events["first_token"] <= server.end
    assert server.attributes["gen_ai.usage.input_tokens"] == 5
    assert server.attributes["gen_ai.usage.output_tokens"] == 2
    leaver = await traced.open(body, "TRC-06.2", **headers)
    await until(lambda: traced.engine_saw("TRC-06.2"), 5, "the engine has it")
    leaver.close()
    spans = await spans_of(collector, "TRC-06.2", CHAT)
    assert named(spans, CHAT).attributes["inferway.outcome"] == "client_closed_request"


@case("TRC-07")
async def test_cancelling_is_what_it_was(case: Any, traced: Installation, collector: Collector) -> None:
    """With traces on, the engine is told within a second that a client has left, for one choice and for four."""
    during_prefill = await traced.open(STREAM, "DSC-01.1", **AUTHORIZED)
    await until(lambda: traced.engine_saw("DSC-01.1"), 5, "the engine has it")
    during_prefill.close()
    await until(lambda: traced.engine_saw("DSC-01.1", "abort"), 1, "abort within a second")
    await until(lambda: traced.engine_load() == 0, 1, "slot free within a second")
    assert (await log_line(traced, "DSC-01.1"))["status"] == 499
    four = await traced.open({**STREAM, "n": 4}, "DSC-08.1", **AUTHORIZED)
    await first_event(four)
    four.close()
    await until(lambda: len(traced.engine_saw("DSC-08.1", "abort")) == 4, 1, "four aborts")
    spans = await spans_of(collector, "DSC-08.1", "choice", 4)
    assert {span.attributes["inferway.choice_index"] for span in spans if span.name == "choice"} == {0, 1, 2, 3}
    assert "Traceback" not in traced.gateway_log


async def test_no_key_is_told(traced: Installation, collector: Collector) -> None:
    """Of requests that are right, wrong, unknown and failing: the collector gets the key's name, never the key."""
    wrong = {"Authorization": f"Bearer {KEY}-wrong"}
    requests = [
        ("canary.ok", ASK, AUTHORIZED, 200),
        ("canary.key", ASK, wrong, 401),
        ("canary.bad", {**ASK, "temperature": 9}, AUTHORIZED, 400),
        ("canary.model", {**ASK, "model": "unknown"}, AUTHORIZED, 404),
        ("ERR-01.canary", ASK, AUTHORIZED, 0),
    ]
    for request_id, body, headers, status in requests:
        answer = await traced.send(CHAT, body=body, request_id=request_id, headers=headers)
        assert not status or answer.status == status, answer.body
        root = named(await spans_of(collector, request_id, CHAT), CHAT)
        assert root.attributes["http.response.status_code"] == answer.status
        assert root.attributes.get("inferway.key_id") == (None if headers is wrong else "k")
    told = b"".join(collector.raw)
    assert b"canary.key" in told
    assert b"CANARY" not in told
