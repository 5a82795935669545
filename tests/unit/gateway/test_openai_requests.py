"""gateway.core.chat_request.py"""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.chat_request import ChatRequest, parse_chat
from inferway.errors import ApiError, Reason

HI = [{"role": "user", "content": "hi"}]


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"model": "m", "messages": HI, **fields}).encode())


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert caught.value.status == 400
    return caught.value


NULLABLE = (
    "max_tokens max_completion_tokens temperature top_p stop tools tool_choice response_format stream_options "
    "logit_bias seed user n logprobs top_logprobs stream metadata parallel_tool_calls prediction audio"
).split()


def test_null_is_absent() -> None:
    """A body with every optional field null equals the body without them."""
    assert parse(**dict.fromkeys(NULLABLE)) == parse()


REFUSED_FIELDS: list[tuple[dict[str, Any], str, str]] = [
    ({"lora_request": {"lora_name": "fr", "lora_path": "/x"}}, "lora_request", "'lora_path'"),
    ({"lora_request": {"lora_name": 3}}, "lora_request", "got a number"),
    ({"lora_request": 3}, "lora_request", "got 'int'"),
    ({"temperature": 9}, "temperature", "between 0 and 2, got 9"),
    ({"temperature": -0.1}, "temperature", "between 0 and 2, got -0.1"),
    ({"top_p": 0}, "top_p", "above 0 and at most 1, got 0"),
    ({"top_k": -2}, "top_k", "between 0 and 4294967295, got -2"),
    ({"top_k": 2**33}, "top_k", "got 8589934592"),
    ({"min_tokens": 2**32}, "min_tokens", "got 4294967296"),
    ({"max_tokens": 2**32}, "max_tokens", "got 4294967296"),
    ({"min_p": 1.5}, "min_p", "between 0 and 1, got 1.5"),
    ({"frequency_penalty": 2.5}, "frequency_penalty", "between -2 and 2"),
    ({"presence_penalty": -3}, "presence_penalty", "between -2 and 2"),
    ({"repetition_penalty": 0}, "repetition_penalty", "above 0 and at most 2"),
    ({"n": 0}, "n", "between 1 and 128, got 0"),
    ({"n": 129}, "n", "between 1 and 128, got 129"),
    ({"n": True}, "n", "got 'bool'"),
    ({"max_tokens": "1000"}, "max_tokens", "got 'str'"),
    ({"max_tokens": 10.5}, "max_tokens", "got 'float'"),
    ({"max_tokens": 0}, "max_tokens", "between 1 and 4294967295, got 0"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "between 1 and"),
    ({"max_tokens": 9, "max_completion_tokens": 2}, "max_tokens", "contradicts"),
    ({"min_tokens": 3, "max_tokens": 2}, "min_tokens", "at most 'max_tokens' (2), got 3"),
    ({"seed": 2**63}, "seed", "between -9"),
    ({"stop": ["a", "b", "c", "d", "e"]}, "stop", "at most 4 strings, got 5"),
    ({"stop": ["a", "x" * 65]}, "stop[1]", "1 to 64 characters, got 65"),
    ({"stop": ""}, "stop[0]", "1 to 64 characters, got 0"),
    ({"logit_bias": {"x": 1}}, "logit_bias", "token ids, got 'x'"),
    ({"logit_bias": {"5": 101}}, "logit_bias.5", "between -100 and 100"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "'stream' is true"),
    ({"top_logprobs": 2}, "top_logprobs", "needs 'logprobs'"),
    ({"top_logprobs": 21, "logprobs": True}, "top_logprobs", "between 0 and 20"),
    ({"priority": 10}, "priority", "between 0 and 9, got 10"),
    ({"messages": []}, "messages", "at least 1 item, got 0"),
    ({"service_tier": "gold"}, "service_tier", "one of auto, default, scale, flex, priority, fast, got 'gold'"),
    ({"service_tier": "flex", "priority": 3}, "service_tier", "send one of them"),
    ({"messages": "x"}, "messages", "got 'str'"),
    ({"messages": 123}, "messages", "got 'int'"),
    ({"messages": None}, "messages", "required"),
    ({"model": None}, "model", "required"),
    ({"messages": [{"role": "pirate", "content": "x"}]}, "messages[0].role", "got 'pirate'"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "required"),
    ({"messages": [{"role": "assistant", "content": None}]}, "messages[0].content", "required"),
    ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content", "got 'int'"),
    ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "required"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
        "messages[0].content[0].text",
        "a number",
    ),
    ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", "at most 16 pairs, got 17"),
    ({"tools": [{"type": "function"}]}, "tools[0]", "type 'function'"),
    ({"tool_choice": "required"}, "tool_choice", "needs 'tools'"),
    ({"response_format": {"type": "yaml"}}, "response_format.type", "one of"),
]


@pytest.mark.parametrize(
    ("fields", "param", "words"), REFUSED_FIELDS, ids=[str(case[0])[:50] for case in REFUSED_FIELDS]
)
def test_a_refusal_names_field_limit_and_value(fields: dict[str, Any], param: str, words: str) -> None:
    """A bad field is a 400 whose param is the field and whose message has the limit and the observed value."""
    error = refusal(json.dumps({"model": "m", "messages": HI, **fields}).encode())
    assert error.reason is Reason.INVALID_REQUEST
    assert error.param == param
    assert words in error.message


@pytest.mark.parametrize(
    ("adapter", "model"),
    [("fr", "m:fr"), ({"lora_name": "fr"}, "m:fr"), ({"name": "fr"}, "m:fr"), (None, "m"), ("", "m")],
)
def test_lora_request_names_an_adapter_of_the_model(adapter: Any, model: str) -> None:
    """A name, or an object as other servers take it; null and "" are the model as it is."""
    body = {"model": "m", "messages": HI, "lora_request": adapter}
    assert parse_chat(json.dumps(body).encode()).model == model


UNSUPPORTED: list[tuple[dict[str, Any], str]] = [
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x", "format": "wav"}}, "audio"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
    ),
]


@pytest.mark.parametrize(("fields", "param"), UNSUPPORTED, ids=[case[1] for case in UNSUPPORTED])
def test_what_would_change_the_answer_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Fields that no model honours yet are a 400 unsupported_value, never dropped."""
    error = refusal(json.dumps({"model": "m", "messages": HI, **fields}).encode())
    assert error.reason is Reason.UNSUPPORTED_VALUE
    assert error.param == param


MALFORMED: list[tuple[str, bytes, str | None]] = [
    ("empty body", b"", None),
    ("not JSON", b"hello", None),
    ("truncated", b'{"model":"m","messages":[', None),
    ("trailing text", b'{"model":"m"}x', None),
    ("an array", b"[]", None),
    ("NaN", b'{"model":"m","messages":[],"temperature":NaN}', "temperature"),
    ("a number beyond all floats", b'{"model":"m","messages":[],"temperature":-1e999}', "temperature"),
    ("an integer without end", b'{"model":"m","messages":[],"logit_bias":{"5":' + b"1" * 5000 + b"}}", "logit_bias.5"),
    ("NaN in another mistake", b'{"model":"m","messages":[],"temperature":NaN', None),
    ("NaN alone", b"NaN", None),
    ("invalid UTF-8", b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', None),
    ("nested without end", b'{"model":' + b"[" * 100_000, None),
    (
        "half a pair in content",
        b'{"model":"m","messages":[{"role":"user","content":"smile \\ud83d"}]}',
        "messages[0].content",
    ),
    (
        "half a pair in a name",
        b'{"model":"m","messages":[{"role":"user","name":"\\udc4b","content":"a"}]}',
        "messages[0].name",
    ),
    ("half a pair in stop", b'{"model":"m","messages":[{"role":"user","content":"a"}],"stop":["\\ud83d"]}', "stop[0]"),
]


@pytest.mark.parametrize(("case", "body", "param"), MALFORMED, ids=[case[0] for case in MALFORMED])
def test_malformed_bodies(case: str, body: bytes, param: str | None) -> None:
    """What is not JSON is a 400; half a surrogate pair names the field that holds it."""
    assert refusal(body).param == param


def test_a_whole_surrogate_pair_is_a_character() -> None:
    """An escaped pair is one character."""
    body = b'{"model":"m","messages":[{"role":"user","content":"\\ud83d\\ude00"}]}'
    assert parse_chat(body).messages[0]["content"] == "\N{GRINNING FACE}"


def test_messages_become_plain_data_for_the_template() -> None:
    """Parts are joined, developer becomes system, tool calls keep arguments, extras are dropped."""
    chat = parse_chat(
        json.dumps(
            {
                "model": "m",
                "messages": [
                    {"role": "developer", "content": [{"type": "text", "text": "S"}]},
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
                        "zz": 1,
                    },
                    {
                        "role": "assistant",
                        "content": None,
                        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                    },
                    {"role": "tool", "tool_call_id": "c1", "content": "Sunny"},
                    {"role": "assistant", "content": "ok", "tool_calls": None},
                ],
            }
        ).encode()
    )
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat.messages == [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "Sunny", "tool_call_id": "c1"},
        {"role": "assistant", "content": "ok"},
    ]
    assert chat.ignored == ["messages[].zz"]


def test_what_is_ignored_is_named() -> None:
    """Harmless and unknown fields are accepted and listed; names that could not stand in a header are not."""
    chat = parse(store=True, metadata={"a": "b"}, service_tier="auto", user="u", x_trace="1", **{"bad name\r\n": 1})
    assert chat.ignored == ["store", "metadata", "user", "x_trace"]


@pytest.mark.parametrize(
    ("asked", "served"),
    [(None, "default"), ("auto", "default"), ("scale", "default"), ("flex", "flex"), ("fast", "priority")],
)
def test_service_tiers(asked: str | None, served: str) -> None:
    """OpenAI's names are tiers of ours."""
    assert parse(service_tier=asked).service_tier == served


def test_what_belongs_together() -> None:
    """By the cache key, else by the user."""
    assert parse(user="u", prompt_cache_key="k").sticky_key == "k"
    assert parse(user="u").sticky_key == "u"
    assert parse().sticky_key == ""


def test_sampling_fields_in_use() -> None:
    """Zero is a value; absent fields are not in use; -1 means that top_k keeps all candidates."""
    sampling = parse(
        temperature=0, seed=0, top_k=-1, stop="x", logit_bias={"7": -100}, max_completion_tokens=3
    ).sampling
    assert sampling.top_k == 0
    assert sampling.fields_used() == ["temperature", "top_k", "seed", "max_tokens", "stop", "logit_bias"]
    assert sampling.max_tokens == 3
    assert sampling.logit_bias == {7: -100}
    assert sampling.stop == ("x",)
