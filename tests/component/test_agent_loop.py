"""An agent's loop through the official client, in every family's format: call, result, answer."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.support.json_lines import JsonLines
from tests.support.processes import Mesh

pytestmark = pytest.mark.timeout(120)

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

# How each family writes get_weather(city="Paris").
WRITTEN = {
    "m-hermes": '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
    "m-think-hermes": (
        '<think>Look.</think><tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
    ),
    "m-llama3json": '{"name": "get_weather", "parameters": {"city": "Paris"}}',
    "m-pythonic": '[get_weather(city="Paris")]',
    "m-mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Paris"}, "id": "abcDEF123"}]',
    "m-qwen3coder": (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>"
    ),
    "m-deepseek31": (
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{"city": "Paris"}'
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "m-glm": "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
    "m-kimi": (
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
        '{"city": "Paris"}<|tool_call_end|><|tool_calls_section_end|>'
    ),
    "m-gemma4": '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>',
    "m-harmony": (
        "<|channel|>analysis<|message|>Look.<|end|><|start|>assistant<|channel|>commentary to=functions.get_weather "
        '<|constrain|>json<|message|>{"city": "Paris"}<|call|>'
    ),
}
FINAL = {"m-harmony": "<|channel|>final<|message|>It is 12 C.<|return|>"}


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("agent") / "record.jsonl"


@pytest.fixture(scope="module")
def mesh(record: Path) -> Iterator[Mesh]:
    scripts: dict[str, Any] = {}
    for model, text in WRITTEN.items():
        middle = len(text) // 2
        scripts[f"{model}-call"] = [{"text": text[:middle]}, {"text": text[middle:]}, {"finish": "stop"}]
        scripts[f"{model}-answer"] = [{"text": FINAL.get(model, "It is 12 C.")}, {"finish": "stop"}]
        scripts[f"{model}-forced"] = [
            {"text": '[{"name": "get_weather", '},
            {"text": '"parameters": {"city": "Paris"}}]'},
            {"finish": "stop"},
        ]
    file = record.with_name("scripts.json")
    file.write_text(json.dumps(scripts))
    with Mesh(workers=[["--engine", "scripted", "--scripts", str(file), "--record", str(record)]]) as mesh:
        yield mesh


@pytest.mark.parametrize("step", ["call", "forced"])
@pytest.mark.parametrize("model", WRITTEN)
async def test_a_loop_runs_to_its_end(mesh: Mesh, record: Path, model: str, step: str) -> None:
    """Streamed call, its result in the history, then the answer; the model is shown what it called and what came."""
    client = AsyncOpenAI(base_url=mesh.url("/v1"), api_key="any", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": "How is the weather in Paris?"}]
    async with client:
        stream = client.chat.completions.stream(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice="required" if step == "forced" else "auto",
            extra_headers={"X-Request-Id": f"{model}-{step}.1"},
        )
        async with stream as events:
            async for _ in events:
                pass
            first = (await events.get_final_completion()).choices[0]
        assert first.finish_reason == "tool_calls"
        assert first.message.tool_calls is not None
        (call,) = first.message.tool_calls
        assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
        messages += [
            {
                "role": "assistant",
                "content": first.message.content,
                "tool_calls": [call.model_dump(include={"id", "type", "function"})],
            },
            {"role": "tool", "tool_call_id": call.id, "content": "12 C, rain"},
        ]
        second = await client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            extra_headers={"X-Request-Id": f"{model}-answer.{step}"},
        )
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == "It is 12 C."
    assert second.choices[0].message.tool_calls is None
    (seen,) = (
        line["prompt"]
        for line in JsonLines(record).read()
        if line["request_id"] == f"{model}-answer.{step}" and line["event"] == "generate"
    )
    assert "12 C, rain" in seen
    assert seen.count("get_weather") >= 2
    assert "Paris" in seen.split("get_weather", 1)[1]
