"""Calls and formats that are forced on the real model: what comes out validates, whatever the model would have said."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from openai import AsyncOpenAI

from tests.support.processes import Mesh

pytestmark = pytest.mark.timeout(600)

MODEL = "smollm2-135m-instruct"
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
        "hours": {"type": "array", "items": {"$ref": "#/$defs/hour"}, "maxItems": 3},
    },
    "required": ["city", "unit", "days", "hours"],
    "additionalProperties": False,
    "$defs": {"hour": {"type": "integer", "minimum": 0, "maximum": 23}},
}
WEATHER: Any = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
TIME: Any = {
    "type": "function",
    "function": {
        "name": "get_time",
        "parameters": {
            "type": "object",
            "properties": {"zone": {"type": "string", "pattern": "^[A-Z]{3}$"}},
            "required": ["zone"],
            "additionalProperties": False,
        },
    },
}
SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in (WEATHER, TIME)}
QUESTIONS = [
    "What is the weather in Paris?",
    "Tell me a joke.",
    "Time in Berlin?",
    "The quick brown fox",
    "¿Qué hora es?",
]


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(workers=[["--engine", "llamacpp"]]) as mesh:
        yield mesh


@pytest.fixture
async def client(mesh: Mesh) -> Any:
    async with AsyncOpenAI(base_url=mesh.url("/v1"), api_key="any", max_retries=0, timeout=300) as client:
        yield client


async def called(client: AsyncOpenAI, number: int, **choice: Any) -> list[tuple[str, str]]:
    """Names and arguments of one answer: every second one streamed, every second one greedy."""
    options: dict[str, Any] = {
        "model": MODEL,
        "messages": [{"role": "user", "content": QUESTIONS[number % len(QUESTIONS)]}],
        "tools": [WEATHER, TIME],
        "temperature": number // 2 % 2,
        "seed": number,
        "max_tokens": 300,
        **choice,
    }
    if number % 2:
        async with client.chat.completions.stream(**options) as stream:
            async for _ in stream:
                pass
            answer = await stream.get_final_completion()
    else:
        answer = await client.chat.completions.create(**options)
    (first,) = answer.choices
    assert first.finish_reason == "tool_calls", answer
    return [(call.function.name, call.function.arguments) for call in first.message.tool_calls or ()]


async def assert_calls_validate(client: AsyncOpenAI, count: int) -> None:
    gate = asyncio.Semaphore(8)

    async def one(number: int) -> None:
        forced: Any = "required" if number % 3 else {"type": "function", "function": {"name": "get_weather"}}
        async with gate:
            ((name, arguments),) = await called(client, number, tool_choice=forced)
        jsonschema_rs.validate(SCHEMAS[name], json.loads(arguments))

    await asyncio.gather(*(one(number) for number in range(count)))


async def test_forced_calls_validate(client: AsyncOpenAI) -> None:
    """Required and named, streamed and whole, greedy and at temperature 1."""
    await assert_calls_validate(client, 12)


@pytest.mark.slow
async def test_a_hundred_forced_calls_validate(client: AsyncOpenAI) -> None:
    """A hundred of a hundred."""
    await assert_calls_validate(client, 100)


async def test_a_loop_on_the_real_model(client: AsyncOpenAI) -> None:
    """A forced call, its result, and an answer in words."""
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
    first = await client.chat.completions.create(
        model=MODEL, messages=messages, tools=[WEATHER], tool_choice="required", temperature=0, max_tokens=300
    )
    message = first.choices[0].message
    assert message.tool_calls
    messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "12 C, rain"} for call in message.tool_calls]
    second = await client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=30)
    assert second.choices[0].message.content
    assert second.choices[0].message.tool_calls is None


async def test_formats_are_held(client: AsyncOpenAI) -> None:
    """A nested schema, a regular expression and a choice, where the free model would say something else."""
    schema = {
        "type": "object",
        "properties": {
            "people": {"type": "array", "items": {"$ref": "#/$defs/person"}, "minItems": 1, "maxItems": 2},
            "mood": {"enum": ["good", "bad"]},
        },
        "required": ["people", "mood"],
        "additionalProperties": False,
        "$defs": {
            "person": {
                "type": "object",
                "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 120}},
                "required": ["name", "age"],
                "additionalProperties": False,
            }
        },
    }
    format_: Any = {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": schema}}
    ask: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Tell me a story."}], "seed": 1}
    for temperature in (0, 1):
        nested, code, choice = await asyncio.gather(
            client.chat.completions.create(**ask, temperature=temperature, response_format=format_, max_tokens=200),
            client.chat.completions.create(
                **ask, temperature=temperature, extra_body={"guided_regex": "[A-Z]{3}-[0-9]{4}"}, max_tokens=30
            ),
            client.chat.completions.create(
                **ask, temperature=temperature, extra_body={"guided_choice": ["yes (sure)", "no."]}, max_tokens=30
            ),
        )
        jsonschema_rs.validate(schema, json.loads(nested.choices[0].message.content or ""))
        assert re.fullmatch("[A-Z]{3}-[0-9]{4}", code.choices[0].message.content or "")
        assert choice.choices[0].message.content in ("yes (sure)", "no.")
        assert [one.choices[0].finish_reason for one in (nested, code, choice)] == ["stop"] * 3


async def test_what_a_grammar_lacks_is_told_by_name(client: AsyncOpenAI) -> None:
    """A valid schema that the engine cannot enforce is a 422 with keyword and field; nobody else is harmed."""
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    format_: Any = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    refused = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[{"role": "user", "content": "x"}], max_tokens=5
    )
    assert refused.status_code == 200
    with pytest.raises(Exception, match="uniqueItems") as caught:
        await client.chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "x"}], response_format=format_, stream=True
        )
    assert caught.value.status_code == 422  # type: ignore[attr-defined]
    assert caught.value.code == "schema_not_supported"  # type: ignore[attr-defined]
    assert caught.value.param == "response_format"  # type: ignore[attr-defined]
