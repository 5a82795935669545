"""What a worker takes and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.errors import ApiError, Reason
from worker.core.admission import check
from worker.engine import Constraint, GenerateRequest, ModelInfo, Sampling

MODEL = ModelInfo(name="m", context_length=100, tokenizer_json=b"", vocab_size=50, capabilities=("constraint.ebnf",))


def request(**changes: Any) -> GenerateRequest:
    fields = {"key": 1, "request_id": "r", "model": "m", "prompt_token_ids": [1, 2], "sampling": Sampling()}
    return GenerateRequest(**{**fields, **changes})


@pytest.mark.parametrize(("asked", "granted"), [(None, 98), (0, 0), (1, 1), (98, 98), (99, 98), (10_000, 98)])
def test_max_tokens_is_what_the_context_leaves_at_most(asked: int | None, granted: int) -> None:
    """Without a limit, or with a larger one, a choice may fill the context and no more."""
    assert check(request(sampling=Sampling(max_tokens=asked)), [], MODEL).max_tokens == granted


def test_values_at_their_bounds_are_taken() -> None:
    """Bounds are inclusive, four stops of 64 characters and priority 9 pass."""
    sampling = Sampling(temperature=0, top_p=1, min_p=1, frequency_penalty=-2, repetition_penalty=2, min_tokens=3)
    constraint = Constraint("ebnf", "é" * 131_072)
    whole = request(priority=9, sampling=sampling, prompt_token_ids=[49] * 99, constraint=constraint)
    check(whole, ["x" * 64] * 4, MODEL)


@pytest.mark.parametrize(
    ("changes", "stop", "reason", "param", "sentence"),
    [
        ({"prompt_token_ids": []}, [], Reason.INVALID_REQUEST, "prompt_token_ids", "got 0"),
        ({"prompt_token_ids": [1] * 100}, [], Reason.CONTEXT_LENGTH_EXCEEDED, "prompt_token_ids", "100 tokens"),
        ({"prompt_token_ids": [1, 50]}, [], Reason.INVALID_REQUEST, "prompt_token_ids", "got 50"),
        ({"priority": 10}, [], Reason.INVALID_REQUEST, "priority", "got 10"),
        ({}, ["a"] * 5, Reason.INVALID_REQUEST, "stop", "got 5"),
        ({}, ["a", "b" * 65], Reason.INVALID_REQUEST, "stop[1]", "got 65"),
        ({"sampling": Sampling(max_tokens=-1)}, [], Reason.INVALID_REQUEST, "max_tokens", "got -1"),
        ({"sampling": Sampling(top_p=0)}, [], Reason.INVALID_REQUEST, "top_p", "above 0"),
        ({"sampling": Sampling(temperature=float("nan"))}, [], Reason.INVALID_REQUEST, "temperature", "nan"),
        ({"sampling": Sampling(top_k=-1)}, [], Reason.INVALID_REQUEST, "top_k", "between 0 and"),
        ({"sampling": Sampling(min_tokens=2**32)}, [], Reason.INVALID_REQUEST, "min_tokens", "between 0 and"),
        ({"sampling": Sampling(min_tokens=3, max_tokens=2)}, [], Reason.INVALID_REQUEST, "min_tokens", "got 3"),
        ({"sampling": Sampling(logit_bias={50: 1.0})}, [], Reason.INVALID_REQUEST, "logit_bias", "token 50"),
        ({"sampling": Sampling(logit_bias={1: 101.0})}, [], Reason.INVALID_REQUEST, "logit_bias.1", "got 101"),
        ({"constraint": Constraint("regex", "a")}, [], Reason.UNSUPPORTED_VALUE, "constraint", "regex"),
        ({"constraint": Constraint("unknown", "a")}, [], Reason.UNSUPPORTED_VALUE, "constraint", "unknown"),
        ({"constraint": Constraint("ebnf", "")}, [], Reason.INVALID_REQUEST, "constraint", "got 0"),
        ({"constraint": Constraint("ebnf", "é" * 131_073)}, [], Reason.INVALID_REQUEST, "constraint", "got 262146"),
    ],
)
def test_refusals_name_field_limit_and_value(
    changes: dict[str, Any], stop: list[str], reason: Reason, param: str, sentence: str
) -> None:
    """A caller learns which field is wrong and what was seen."""
    with pytest.raises(ApiError) as caught:
        check(request(**changes), stop, MODEL)
    assert (caught.value.reason, caught.value.param) == (reason, param)
    assert sentence in caught.value.message
