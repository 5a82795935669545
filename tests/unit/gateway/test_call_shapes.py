"""Calls in answers, as they are encoded and as /openapi.json describes them."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from gateway.core.answer_shapes import ChatCompletion, ChatCompletionChunk
from gateway.core.sse import Answer, ChoiceText, ChunkEncoder, ToolCall, Usage, whole_answer

ANSWER = Answer("chatcmpl-1", 1, "m", "fp_1", "default")
CALLS = [ToolCall("call_1", "f", '{"a": 1}'), ToolCall("call_2", "g", "{", "The call was cut off.")]


def delta(event: bytes) -> Any:
    """Of a chunk that has the described shape."""
    body = event.removeprefix(b"data: ").strip()
    msgspec.json.decode(body, type=ChatCompletionChunk)
    return json.loads(body)["choices"][0]["delta"]


def test_a_streamed_call() -> None:
    """Name and id first, then fragments, then what is wrong with it."""
    encoder = ChunkEncoder(ANSWER, n=2)
    assert delta(encoder.call_start(1, 0, "call_1", "f")) == {
        "tool_calls": [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": ""}}]
    }
    assert delta(encoder.call_arguments(1, 0, '{"a')) == {
        "tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]
    }
    assert delta(encoder.call_mistake(1, 0, "It is wrong.")) == {
        "tool_calls": [{"index": 0, "inferway": {"arguments_error": "It is wrong."}}]
    }
    finish = json.loads(encoder.finish(1, "tool_calls").removeprefix(b"data: "))
    assert finish["choices"] == [{"index": 1, "delta": {}, "logprobs": None, "finish_reason": "tool_calls"}]


def test_a_streamed_function_call() -> None:
    """The older form has no ids and no marks."""
    encoder = ChunkEncoder(ANSWER, is_legacy=True)
    assert delta(encoder.call_start(0, 0, "call_1", "f")) == {"function_call": {"name": "f", "arguments": ""}}
    assert delta(encoder.call_arguments(0, 0, "{}")) == {"function_call": {"arguments": "{}"}}
    assert encoder.call_mistake(0, 0, "It is wrong.") == b""


@pytest.mark.parametrize("is_legacy", [False, True])
def test_calls_in_one_piece(is_legacy: bool) -> None:
    """Content is null beside calls where there is none; the older form has the first call alone."""
    choice = ChoiceText("", "function_call" if is_legacy else "tool_calls", calls=CALLS)
    body = whole_answer(ANSWER, [choice], Usage(1, 2), is_legacy=is_legacy)
    msgspec.json.decode(body, type=ChatCompletion)
    message = json.loads(body)["choices"][0]["message"]
    assert message["content"] is None
    if is_legacy:
        assert message["function_call"] == {"name": "f", "arguments": '{"a": 1}'}
        assert "tool_calls" not in message
    else:
        first, second = message["tool_calls"]
        assert first == {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        assert second["inferway"] == {"arguments_error": "The call was cut off."}


def test_content_beside_calls_stays() -> None:
    body = whole_answer(ANSWER, [ChoiceText("Look:", "tool_calls", calls=CALLS)], Usage(1, 2))
    assert json.loads(body)["choices"][0]["message"]["content"] == "Look:"
