"""Strict tools under a free choice: engines enforce them where they can, and callers are told where not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.support.json_lines import JsonLines
from tests.support.processes import Mesh
from tests.support.tool_forms import ARGUMENTS, CALLS, REQUEST, document

pytestmark = pytest.mark.timeout(120)

CALL = CALLS["hermes"].replace("NAME", "weather").replace("DAYS", "3")


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("strict") / "record.jsonl"


@pytest.fixture(scope="module")
def mesh(record: Path) -> Iterator[Mesh]:
    scripts = {
        "call": [{"text": f"<think>Rome it is.</think>I look it up. {CALL}"}, {"finish": "stop"}],
        "json": [{"text": "{}"}, {"finish": "stop"}],
    }
    file = record.with_name("scripts.json")
    file.write_text(json.dumps(scripts))
    worker = ["--engine", "scripted", "--scripts", str(file), "--record", str(record)]
    with Mesh(workers=[[*worker, "--capability", "constraint.structural_tag=true"]]) as mesh:
        yield mesh


async def ask(mesh: Mesh, model: str, script: str, **fields: Any) -> tuple[Any, str]:
    """The answer's message, and what is said to be ignored."""
    async with AsyncOpenAI(base_url=mesh.url("/v1"), api_key="any", max_retries=0) as client:
        body = {**REQUEST, "model": model, **fields}
        raw = await client.chat.completions.with_raw_response.create(
            **body, extra_headers={"X-Request-Id": f"{script}.{model}"}
        )
        return raw.parse().choices[0].message, raw.headers.get("x-inferway-ignored", "")


def constraint(record: Path) -> Any:
    """What the engine was asked to enforce last."""
    return [line for line in JsonLines(record).read() if line["event"] == "generate"][-1]["constraint"]


async def test_the_engine_enforces(mesh: Mesh, record: Path) -> None:
    """Text and thoughts stay free, and calls are read as ever."""
    message, ignored = await ask(mesh, "m-think-hermes", "call")
    asked = constraint(record)
    assert (asked["kind"], json.loads(asked["text"])) == ("structural_tag", json.loads(document("hermes")))
    assert (message.reasoning_content, message.content) == ("Rome it is.", "I look it up. ")
    assert [(call.function.name, call.function.arguments) for call in message.tool_calls] == [("weather", ARGUMENTS)]
    assert ignored == ""


@pytest.mark.parametrize("model", ["m-qwen3coder", "m-gemma4"])
async def test_what_cannot_be_enforced_is_told(mesh: Mesh, record: Path, model: str) -> None:
    """An engine without the style of the format, and a format without a grammar."""
    _, ignored = await ask(mesh, model, "json")
    assert constraint(record) is None
    assert ignored == "tools[].function.strict"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tool_choice": "none"}, None),
        ({"tool_choice": "required"}, "json_schema"),
        ({"response_format": {"type": "json_object"}}, "json_schema"),
        ({"tools": [REQUEST["tools"][1]]}, None),
    ],
    ids=["no calls", "forced calls", "another format", "no strict tool"],
)
async def test_where_nothing_is_to_be_done(mesh: Mesh, record: Path, fields: dict[str, Any], kind: str | None) -> None:
    _, ignored = await ask(mesh, "m-hermes", "json", **fields)
    asked = constraint(record)
    assert (asked and asked["kind"]) == kind
    assert ignored == ""
