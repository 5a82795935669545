"""GET /openapi.json, and a mesh that keeps to it: schemathesis makes requests of it and holds answers to it."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import hypothesis
import jsonschema_rs
import pytest
import schemathesis
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    allow_header_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from gateway.app import Gateway
from gateway.config import Config
from gateway.core.worker_choice import EXCLUDED_HEADER, ONLY_HEADER
from gateway.openapi import PATH, document
from tests.support.probes import http_json
from tests.support.processes import Mesh, engine_load
from tests.support.raw_client import EventStream
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)

DOCUMENT = document()
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
    allow_header_conformance,
]


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """The same document, in which answers may have no members but those that are described."""
    closed = copy.deepcopy(document)
    requests = {name for name in closed["components"]["schemas"] if name.endswith("Request")}
    requests |= {"Message", "ContentPart", "Tool", "ToolCall", "StreamOptions"}
    for name, schema in closed["components"]["schemas"].items():
        if name not in requests:
            schema["additionalProperties"] = False
    return closed


# The paths without /v1 have the handlers of those with it.
SCHEMA = schemathesis.openapi.from_dict(strict(DOCUMENT)).exclude(path=["/tokenize", "/detokenize"])


def possible(body: dict[str, Any]) -> dict[str, Any]:
    """A body with the conditions that a schema does not state, so that more of them are answered; never a stream."""
    unlikely = ("modalities", "service_tier", "stream", "stream_options", "top_p", "repetition_penalty")
    body = {name: value for name, value in body.items() if name not in unlikely}
    if isinstance(body.get("model"), str):
        body["model"] = "m-embed" if "input" in body else "m-text"
    if body.get("top_logprobs") is not None:
        body["logprobs"] = True
    if body.get("prompt") is not None and body.get("messages") is not None:
        del body["prompt"]
    for message in body["messages"] if isinstance(body.get("messages"), list) else ():
        if isinstance(message, dict):
            message["content"] = message.get("content") or "hi"
            message["tool_call_id"] = message.get("tool_call_id") or "c1"
    return body


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    worker = ["--engine", "scripted", "--name", "A", "--capability", "max_model_len=2000"]
    with Mesh(workers=[worker], gateway_args=["--choose-workers"]) as mesh:
        yield mesh


def test_the_document_needs_no_key_and_is_the_one_described(mesh: Mesh) -> None:
    """What is served is what the code describes."""
    assert http_json(mesh.url(PATH)) == (200, DOCUMENT)


@SCHEMA.parametrize()
@hypothesis.settings(max_examples=40, derandomize=True, deadline=None, database=None)
def test_answers_keep_to_the_document(case: Any, mesh: Mesh) -> None:
    """Whatever is asked, status, headers and body of the answer are described, and no answer is a fault of ours."""
    if isinstance(case.body, dict):
        case.body = possible(case.body)
    if ONLY_HEADER in case.headers:
        # Most names that there are not would be answered alike.
        case.headers = {**case.headers, ONLY_HEADER: "A"}
        case.headers.pop(EXCLUDED_HEADER, None)
    case.call_and_validate(base_url=mesh.url(), checks=CHECKS)


HI = [{"role": "user", "content": "hi"}]
STREAMS: list[tuple[str, str, dict[str, Any]]] = [
    ("/v1/chat/completions", "ChatCompletionChunk", {"messages": HI, "n": 2, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", "ChatCompletionChunk", {"messages": HI, "model": "m-think"}),
    ("/v1/completions", "Completion", {"prompt": "hi", "logprobs": 2, "echo": True}),
]


@pytest.mark.parametrize(("path", "name", "body"), STREAMS, ids=["choices and logprobs", "thinking", "text"])
async def test_events_keep_to_the_document(path: str, name: str, body: dict[str, Any], mesh: Mesh) -> None:
    """Every event of a stream has the described members and no others."""
    described = {**strict(DOCUMENT), "$ref": f"#/components/schemas/{name}"}
    for options in ({}, {"include_usage": True}, {"continuous_usage_stats": True}):
        asked = {"model": "m-text", **body, "stream": True, **({"stream_options": options} if options else {})}
        stream = await EventStream.open(mesh.gateway.address, asked, path=path)
        await stream.done
        assert stream.status == 200
        assert len(stream.chunks()) > 2
        for chunk in stream.chunks():
            jsonschema_rs.validate(described, chunk)


def test_nothing_is_left_behind(mesh: Mesh) -> None:
    """After all of them nothing runs at the engine, and no process has logged a fault."""
    wait_until(lambda: engine_load(mesh.workers[0]) == 0, what="the engine is idle")
    for process in mesh.processes():
        assert "Traceback" not in process.log_text()


def test_headers_of_requests_are_described() -> None:
    """Every path takes an id and a trace, those that compute a choice of workers too."""
    described = DOCUMENT["components"]["parameters"]
    names = {
        path: {
            described[parameter["$ref"].rpartition("/")[2]]["name"]
            for parameter in operation["parameters"]
            if "$ref" in parameter
        }
        for path, methods in DOCUMENT["paths"].items()
        for operation in methods.values()
    }
    everywhere = {"X-Request-Id", "traceparent"}
    computing = {"/v1/chat/completions", "/v1/completions", "/v1/embeddings"}
    assert {path for path, headers in names.items() if headers == everywhere} == names.keys() - computing
    assert {
        path for path, headers in names.items() if headers == everywhere | {ONLY_HEADER, EXCLUDED_HEADER}
    } == computing


async def test_every_route_is_described() -> None:
    """The document has the paths and methods of the gateway, and no others."""
    gateway = Gateway(Config())
    try:
        assert all(gateway.routes[path] == gateway.routes[f"/v1{path}"] for path in ("/tokenize", "/detokenize"))
        routes = {path: sorted(methods) for path, methods in gateway.routes.items()}
    finally:
        await gateway.close()
    described = {
        path.replace("{model}", ""): sorted(method.upper() for method in methods)
        for path, methods in DOCUMENT["paths"].items()
    }
    assert described == routes
