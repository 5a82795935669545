"""gateway/core/sse.py"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.sse import DONE, HEARTBEAT, Answer, ChoiceText, ChunkEncoder, Usage, error_event, whole_answer

ANSWER = Answer("chatcmpl-1", 1700000000, 'model "x"', "fp_1")


def decode(frame: bytes) -> dict[str, Any]:
    """The JSON of one event; fails when the frame is not exactly one event."""
    text = frame.decode()
    assert text.startswith("data: ")
    assert text.endswith("\n\n")
    assert text.count("\n") == 2
    decoded: dict[str, Any] = json.loads(text[len("data: ") :])
    return decoded


@given(st.text(alphabet=st.characters(codec="utf-8")), st.integers(0, 3))
def test_content_survives_the_round_trip(text: str, index: int) -> None:
    """Any text is one event whose delta holds exactly that text."""
    chunk = decode(ChunkEncoder(ANSWER, n=4).content(index, text))
    assert chunk["choices"] == [{"index": index, "delta": {"content": text}, "logprobs": None, "finish_reason": None}]


def test_every_chunk_says_the_same_of_the_answer() -> None:
    """Id, object, created, model and fingerprint are alike in every kind of chunk."""
    encoder = ChunkEncoder(ANSWER, n=2, include_usage=True)
    usage = Usage(3, 2, 1)
    frames = [
        encoder.opening(0),
        encoder.content(1, "a"),
        encoder.content(0, "b", usage),
        encoder.reasoning(0, "c"),
        encoder.finish(1, "stop"),
        encoder.usage(usage),
    ]
    for frame in frames:
        chunk = decode(frame)
        assert {key: chunk[key] for key in ("id", "object", "created", "model", "system_fingerprint")} == {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1700000000,
            "model": 'model "x"',
            "system_fingerprint": "fp_1",
        }


def test_shapes() -> None:
    """Role, reasoning and finish chunks have the deltas of the contract."""
    encoder = ChunkEncoder(ANSWER)
    assert decode(encoder.opening(0))["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert decode(encoder.reasoning(0, "t"))["choices"][0]["delta"] == {"reasoning_content": "t"}
    finish = decode(encoder.finish(0, "length"))["choices"][0]
    assert finish == {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "length"}
    assert decode(error_event({"error": {"message": "m"}})) == {"error": {"message": "m"}}
    assert DONE == b"data: [DONE]\n\n"
    assert HEARTBEAT.startswith(b":")
    assert HEARTBEAT.endswith(b"\n\n")


@pytest.mark.parametrize("include_usage", [False, True])
def test_usage_is_null_until_the_usage_chunk(include_usage: bool) -> None:
    """With include_usage every chunk but the last has "usage": null; without it none names usage."""
    encoder = ChunkEncoder(ANSWER, include_usage=include_usage)
    for frame in (encoder.opening(0), encoder.content(0, "a"), encoder.finish(0, "stop")):
        chunk = decode(frame)
        assert ("usage" in chunk) is include_usage
        assert chunk.get("usage") is None
    last = decode(encoder.usage(Usage(5, 2, cached_tokens=4, reasoning_tokens=1)))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 5,
        "completion_tokens": 2,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 1},
    }


def test_whole_answer() -> None:
    """An answer in one piece has its choices in order and usage always."""
    body = json.loads(
        whole_answer(ANSWER, [ChoiceText("one", "stop"), ChoiceText("two", "length", "why")], Usage(5, 2))
    )
    assert body["object"] == "chat.completion"
    assert [choice["index"] for choice in body["choices"]] == [0, 1]
    assert body["choices"][0]["message"] == {"role": "assistant", "content": "one", "refusal": None}
    assert body["choices"][1]["message"]["reasoning_content"] == "why"
    assert body["choices"][1]["finish_reason"] == "length"
    assert body["usage"]["total_tokens"] == 7
