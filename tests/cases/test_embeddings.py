"""Handed cases on POST /v1/embeddings, and what else holds for it."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import log_line, run
from tests.support.probes import metric
from tests.support.waiting import until

EMBEDDINGS = "POST /v1/embeddings"
ASK: dict[str, Any] = {"model": "m-embed", "input": "hi"}


@case("EMB-01")
async def test_floats_and_base64(case: Any, installation: Installation) -> None:
    """Base64 is that of little-endian 32-bit floats; floats are the default; anything else is refused by name."""
    answer = await run(case, installation)
    assert answer.status == 200, answer.body
    assert answer.json["data"][0]["embedding"] == "AAAAPwAAgL8AAABA"
    for encoding in ("float", None):
        answer = await run(case, installation, encoding_format=encoding)
        assert answer.json["data"] == [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0, 2.0]}]
    assert answer.json["object"] == "list"
    assert answer.json["usage"]["prompt_tokens"] == answer.json["usage"]["total_tokens"] > 0
    refused = await run(case, installation, encoding_format="hex")
    assert (refused.status, refused.error["param"]) == (400, "encoding_format")


@case("EMB-03")
async def test_dimensions_are_kept_or_refused(case: Any, installation: Installation) -> None:
    """A model with embeddings of one size refuses by name; another gives as many numbers as were asked for."""
    refused = await run(case, installation)
    assert (refused.status, refused.error["param"]) == (400, "dimensions")
    answer = await installation.send(EMBEDDINGS, body={**ASK, "dimensions": 2})
    assert len(answer.json["data"][0]["embedding"]) == 2


@case("EMB-04")
async def test_what_is_no_number_is_an_error(case: Any, installation: Installation) -> None:
    """JSON with the error object, and the next request is served."""
    answer = await run(case, installation)
    assert answer.status in (500, 502)
    assert answer.error["type"] == "server_error"
    assert json.loads(answer.body)
    assert (await installation.send(EMBEDDINGS, body=ASK)).status == 200


async def test_inputs_keep_their_order(installation: Installation) -> None:
    """Texts and ids, many at once: each has its own vector at its own place, and usage counts them all."""
    texts = [f"text number {number}" for number in range(40)]
    body = {"model": "m-embed", "input": texts}
    answer = await installation.send(EMBEDDINGS, body=body)
    assert answer.status == 200, answer.body
    assert [entry["index"] for entry in answer.json["data"]] == list(range(40))
    single = await installation.send(EMBEDDINGS, body={"model": "m-embed", "input": texts[7]})
    assert answer.json["data"][7]["embedding"] == single.json["data"][0]["embedding"]
    ids = [
        (await installation.send("POST /tokenize", body={"model": "m-embed", "prompt": text})).json for text in texts
    ]
    assert answer.json["usage"]["prompt_tokens"] == sum(one["count"] for one in ids)
    by_ids = await installation.send(EMBEDDINGS, body={"model": "m-embed", "input": [one["tokens"] for one in ids]})
    assert by_ids.json["data"] == answer.json["data"]
    packed = await installation.send(EMBEDDINGS, body={**body, "encoding_format": "base64"})
    for one, other in zip(packed.json["data"], answer.json["data"], strict=True):
        numbers = struct.unpack("<8f", base64.b64decode(one["embedding"]))
        assert list(numbers) == pytest.approx(other["embedding"])
    line = await log_line(installation, answer.headers["x-request-id"])
    assert (line["route"], line["outcome"], line["model"]) == ("/v1/embeddings", "ok", "m-embed")


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"input": ""}, 400, "input"),
        ({"input": []}, 400, "input"),
        ({"input": ["a", ""]}, 400, "input"),
        ({"input": ["a"] * 2049}, 400, "input"),
        ({"input": [5, 99_999_999]}, 400, "input"),
        ({"input": [5, -1]}, 400, "input"),
        ({"input": [["a"]]}, 400, "input"),
        ({"input": None}, 400, "input"),
        ({"input": [[5] * 4_000] * 100}, 400, "input"),
        ({"dimensions": 0}, 400, "dimensions"),
        ({"dimensions": 9}, 400, "dimensions"),
        ({"model": "m-text"}, 400, "model"),
        ({"model": "nowhere"}, 404, "model"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_bad_requests_name_the_field(
    installation: Installation, fields: dict[str, Any], status: int, param: str
) -> None:
    """As everywhere."""
    answer = await installation.send(EMBEDDINGS, body={**ASK, **fields})
    assert (answer.status, answer.error["param"]) == (status, param), answer.body


async def test_an_input_must_fit_the_context(installation: Installation) -> None:
    """The refusal names the input, the limit and what came."""
    models = (await installation.send("GET /v1/models")).json["data"]
    (context,) = (model["max_model_len"] for model in models if model["id"] == "m-embed")
    answer = await installation.send(EMBEDDINGS, body={**ASK, "input": [[5], [5] * (context + 1)]})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    assert f"'input[1]' must have 1 to {context} tokens, got {context + 1}" in answer.error["message"]


async def test_an_embedding_model_generates_nothing(installation: Installation) -> None:
    """Chat and completions with it are refused by name."""
    chat = {"model": "m-embed", "messages": [{"role": "user", "content": "hi"}]}
    for http, body in (
        ("POST /v1/chat/completions", chat),
        ("POST /v1/completions", {"model": "m-embed", "prompt": "a"}),
    ):
        answer = await installation.send(http, body=body)
        assert (answer.status, answer.error["code"]) == (400, "unsupported_value")


async def test_nothing_is_left_of_those_who_leave(installation: Installation) -> None:
    """Callers that go while their inputs are computed hold neither a lease nor a place in the load."""
    assert installation.mesh.router is not None
    leases = f"http://{installation.mesh.router.ops_address}/metrics"
    asked = [asyncio.create_task(installation.send(EMBEDDINGS, body={**ASK, "input": ["x"] * 2000})) for _ in range(5)]
    await asyncio.sleep(0.02)
    for task in asked:
        task.cancel()
    await asyncio.wait(asked)
    await until(lambda: metric(leases, "inferway_router_worker_requests_in_flight") == 0, 10, "no lease is left")
    assert (await installation.send(EMBEDDINGS, body=ASK)).status == 200
