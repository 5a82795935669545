"""best_of on a running mesh: the likeliest of several candidates is answered, all of them are counted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.client import Answer, send
from tests.support.processes import Mesh

pytestmark = pytest.mark.timeout(60)

SCRIPTS = {
    "best": [
        {"tokens": [{"token": "dull", "logprob": -0.75}], "index": 0},
        {"tokens": [{"token": "bright", "logprob": -0.125}, {"token": "er", "logprob": -0.25}], "index": 1},
        {"tokens": [{"token": "odd", "logprob": -3.0}], "index": 2},
        {"finish": "stop"},
    ]
}


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    scripts = tmp_path_factory.mktemp("best") / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    worker = ["--engine", "scripted", "--scripts", str(scripts)]
    with Mesh(workers=[worker], gateway_args=["--max-choices", "4"]) as mesh:
        yield mesh


async def complete(mesh: Mesh, **fields: Any) -> Answer:
    body = {"model": "m-text", "prompt": "say", **fields}
    return await send(mesh.gateway.address, "POST /v1/completions", body=body, request_id="best.1")


async def test_the_likeliest_are_answered_and_all_are_counted(mesh: Mesh) -> None:
    one = (await complete(mesh, best_of=3)).json
    assert [(choice["index"], choice["text"], choice["logprobs"]) for choice in one["choices"]] == [
        (0, "brighter", None)
    ]
    assert one["usage"]["completion_tokens"] == 4
    two = (await complete(mesh, best_of=3, n=2, logprobs=1, echo=True, prompt=["say", "ask"])).json
    assert [choice["text"] for choice in two["choices"]] == ["saybrighter", "saydull", "askbrighter", "askdull"]
    assert [choice["index"] for choice in two["choices"]] == [0, 1, 2, 3]
    assert two["choices"][0]["logprobs"]["token_logprobs"][-2:] == [-0.125, -0.25]
    assert two["usage"]["completion_tokens"] == 8


async def test_a_limit_names_best_of(mesh: Mesh) -> None:
    answer = await complete(mesh, best_of=5)
    assert (answer.status, answer.error["param"]) == (400, "best_of")
    assert "'best_of' may be 4 at most, got 5" in answer.error["message"]
