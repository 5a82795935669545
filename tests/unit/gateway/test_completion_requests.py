"""Completion requests: what is taken, and how it is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.completion_request import parse_completion
from inferway.errors import ApiError, Reason


def parse(**fields: Any) -> Any:
    return parse_completion(json.dumps({"model": "m", **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("hi", ["hi"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
        (["a", [1]], ["a", [1]]),
    ],
)
def test_prompts_are_texts_or_ids_one_or_several(prompt: Any, prompts: list[Any]) -> None:
    """Numbers are the ids of one prompt; everything else in a list is a prompt."""
    assert parse(prompt=prompt).prompts == prompts


def test_fields_have_openais_defaults() -> None:
    """Sixteen tokens, one choice, no echo, whole."""
    asked = parse(prompt="hi")
    assert (asked.sampling.max_tokens, asked.n, asked.echo, asked.stream) == (16, 1, False, False)
    assert parse(prompt="hi", max_tokens=3, n=2, best_of=2, echo=True, lora_request="fr", user="u").ignored == ["user"]


def test_an_echo_may_be_all() -> None:
    """Whoever gets the prompt back need not ask for a token of completion."""
    asked = parse(prompt="hi", echo=True, max_tokens=0, logprobs=2)
    assert (asked.sampling.max_tokens, asked.prompt_logprobs) == (0, True)


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({}, "prompt", "required"),
        ({"prompt": []}, "prompt", "empty list"),
        ({"prompt": ["a"] * 2049}, "prompt", "1 to 2048 items, got 2049"),
        ({"prompt": [[1], []]}, "prompt", "'prompt[1]' must hold at least 1 token id, got 0"),
        ({"prompt": [1, "a"]}, "prompt", "'prompt[1]' must be a token id, got a string"),
        ({"prompt": [1, -1]}, "prompt", "from 0 to 4294967295, got -1"),
        ({"prompt": [1, 1.5]}, "prompt", "got 1.5"),
        ({"prompt": [1, True]}, "prompt", "got a boolean"),
        ({"prompt": ["a", 1]}, "prompt", "'prompt[1]' must be a string or a list of token ids, got a number"),
        ({"prompt": {"text": "a"}}, "prompt", "Expected"),
        ({"prompt": "a", "n": 2, "best_of": 1}, "best_of", "at least 'n' (2), got 1"),
        ({"prompt": "a", "logprobs": 6}, "logprobs", "got 6"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "between 1 and 4294967295, got 0"),
        ({"prompt": "a", "max_tokens": -1, "echo": True}, "max_tokens", "between 1 and 4294967295, got -1"),
        ({"prompt": "a", "max_tokens": 0, "min_tokens": 1, "echo": True}, "min_tokens", "'max_tokens' (0), got 1"),
        ({"prompt": "a", "min_tokens": 17}, "min_tokens", "at most 'max_tokens' (16), got 17"),
        ({"prompt": "a", "n": 129}, "n", "got 129"),
        ({"prompt": "a", "stream_options": {}}, "stream_options", "only allowed"),
    ],
)
def test_a_refusal_names_field_limit_and_value(fields: dict[str, Any], param: str, words: str) -> None:
    """A bad field is a 400 whose param is the field."""
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert (caught.value.reason, caught.value.param) == (Reason.INVALID_REQUEST, param)
    assert words in caught.value.message


@pytest.mark.parametrize(
    "fields",
    [{"suffix": "x"}, {"stop_token_ids": [1]}],
    ids=lambda fields: next(iter(fields)),
)
def test_what_no_model_honours_yet_is_refused_by_name(fields: dict[str, Any]) -> None:
    """Never dropped: the answer would be another."""
    with pytest.raises(ApiError) as caught:
        parse(prompt="a", **fields)
    assert (caught.value.reason, caught.value.param) == (Reason.UNSUPPORTED_VALUE, next(iter(fields)))
