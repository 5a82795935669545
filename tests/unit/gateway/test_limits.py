"""Limits: the tightest holds, and each refusal names field, limit and observed value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.chat_request import parse_chat
from gateway.core.limits import UNLIMITED, Limits, check_items, check_request, completion_tokens, tightest
from inferway.errors import ApiError, Reason


def chat(**fields: Any) -> Any:
    return parse_chat(json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}).encode())


def test_the_tightest_of_each_kind() -> None:
    assert tightest() == UNLIMITED
    assert tightest(
        Limits(max_choices=4, max_temperature=1.0), UNLIMITED, Limits(max_choices=9, max_temperature=0.0, max_top_k=3)
    ) == Limits(max_choices=4, max_temperature=0.0, max_top_k=3)


@pytest.mark.parametrize(
    ("limits", "fields", "param", "limit", "observed"),
    [
        (Limits(max_choices=2), {"n": 3}, "n", "2", "3"),
        (Limits(max_temperature=1.0), {"temperature": 1.25}, "temperature", "1", "1.25"),
        (Limits(max_temperature=0.0), {"temperature": 0.5}, "temperature", "0", "0.5"),
        (Limits(max_top_p=0.9), {"top_p": 0.95}, "top_p", "0.9", "0.95"),
        (Limits(max_top_k=40), {"top_k": 41}, "top_k", "40", "41"),
        (Limits(max_top_k=40), {"top_k": 0}, "top_k", "40", "0"),
        (Limits(max_top_k=40), {"top_k": -1}, "top_k", "40", "0"),
        (Limits(max_output_tokens=100), {"max_tokens": 101}, "max_tokens", "100", "101"),
        (Limits(max_output_tokens=10**7), {"max_tokens": 10**7 + 1}, "max_tokens", "10000000", "10000001"),
        (Limits(max_output_tokens=100), {"max_completion_tokens": 101}, "max_completion_tokens", "100", "101"),
        (Limits(max_stops=1), {"stop": ["a", "b"]}, "stop", "1", "2"),
        (Limits(max_stop_characters=3), {"stop": ["abc", "abcd"]}, "stop[1]", "3", "4"),
    ],
)
def test_refusals(limits: Limits, fields: dict[str, Any], param: str, limit: str, observed: str) -> None:
    with pytest.raises(ApiError) as caught:
        check_request(limits, chat(**fields), body_bytes=100)
    assert caught.value.status == 400
    assert caught.value.param == param
    assert f"'{param}'" in caught.value.message
    assert f" {limit} " in caught.value.message
    assert f"got {observed}" in caught.value.message


def test_at_the_limit_is_within() -> None:
    limits = Limits(
        max_body_bytes=100, max_choices=2, max_temperature=1.0, max_top_p=0.9, max_top_k=40, max_output_tokens=100
    )
    check_request(limits, chat(n=2, temperature=1, top_p=0.9, top_k=40, max_tokens=100), body_bytes=100)
    check_request(limits, chat(), body_bytes=1)


def test_bodies_and_lists() -> None:
    with pytest.raises(ApiError, match="100 bytes at most, got 101") as caught:
        check_request(Limits(max_body_bytes=100), chat(), body_bytes=101)
    assert caught.value.status == 413
    check_items("messages", 3, None)
    check_items("messages", 3, 3)
    with pytest.raises(ApiError, match="'messages' may have 3 items at most, got 4"):
        check_items("messages", 4, 3)


@pytest.mark.parametrize(
    ("limits", "asked", "prompt", "completion"),
    [
        (UNLIMITED, None, 10, None),
        (UNLIMITED, 90, 10, 90),
        (Limits(max_input_tokens=10, max_total_tokens=200), 90, 10, 90),
        # What is not asked for is bounded without a word.
        (Limits(max_output_tokens=50), None, 10, 50),
        (Limits(max_output_tokens=50), None, 70, 30),
        (Limits(max_total_tokens=40), None, 10, 30),
    ],
)
def test_completion_tokens(limits: Limits, asked: int | None, prompt: int, completion: int | None) -> None:
    assert completion_tokens(limits, asked, prompt_tokens=prompt, context_length=100, param="messages") == completion


@pytest.mark.parametrize(
    ("limits", "asked", "prompt", "named"),
    [
        (UNLIMITED, 91, 10, ("maximum context length is 100 tokens", "10 tokens", "91 tokens", "101 in all")),
        (UNLIMITED, None, 100, ("maximum context length is 100 tokens", "100 tokens")),
        (Limits(max_input_tokens=9), None, 10, ("maximum context length", "9 tokens", "10 tokens")),
        (Limits(max_total_tokens=20), 11, 10, ("maximum context length is 20 tokens", "11 tokens", "21 in all")),
    ],
)
def test_too_many_tokens(limits: Limits, asked: int | None, prompt: int, named: tuple[str, ...]) -> None:
    with pytest.raises(ApiError) as caught:
        completion_tokens(limits, asked, prompt_tokens=prompt, context_length=100, param="messages")
    assert caught.value.reason is Reason.CONTEXT_LENGTH_EXCEEDED
    assert caught.value.param == "messages"
    assert all(words in caught.value.message for words in named), caught.value.message
