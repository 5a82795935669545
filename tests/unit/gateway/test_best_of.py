"""best_of: which candidates are kept, and what a request for them is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.core.best_of import best, without_scores
from gateway.core.completion_request import parse_completion
from gateway.core.logprobs import ScoredToken
from gateway.core.sse import ChoiceText
from inferway.errors import ApiError


def choice(text: str, *logprobs: float | None) -> ChoiceText:
    return ChoiceText(text, "stop", scores=[ScoredToken(b"x", logprob) for logprob in logprobs])


def texts(choices: list[ChoiceText]) -> list[str]:
    return [choice.content for choice in choices]


def test_the_likeliest_per_token_are_kept() -> None:
    """A long answer is not punished for its length; of equals the earlier goes first; an empty one is last."""
    candidates = [choice("long", -0.25, -0.25, -0.25), choice("short", -0.5), choice("same", -0.25), choice("none")]
    assert texts(best(candidates, keep=1, prompt_scores=[0])) == ["long"]
    assert texts(best(candidates, keep=4, prompt_scores=[0])) == ["long", "same", "short", "none"]


def test_prompt_by_prompt_and_without_the_prompts_own_scores() -> None:
    candidates = [
        choice("a0", None, -9.0, -0.5),
        choice("a1", None, -9.0, -0.2, -0.4),
        choice("b0", None, -0.3),
        choice("b1", None, -0.9),
    ]
    assert texts(best(candidates, keep=1, prompt_scores=[2, 1])) == ["a1", "b0"]
    assert [one.scores for one in without_scores(candidates)] == [None] * 4


def parse(**fields: Any) -> Any:
    return parse_completion(json.dumps({"model": "m", "prompt": "a", **fields}).encode())


def test_a_request_for_the_best() -> None:
    asked = parse(best_of=3)
    assert (asked.n, asked.keep, asked.logprobs, asked.shows_logprobs) == (3, 1, 0, False)
    asked = parse(best_of=3, n=2, logprobs=4)
    assert (asked.n, asked.keep, asked.logprobs, asked.shows_logprobs) == (3, 2, 4, True)
    asked = parse(best_of=2, n=2, stream=True)
    assert (asked.n, asked.keep, asked.logprobs) == (2, None, None)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"best_of": 1, "n": 2}, "at least 'n' (2), got 1"),
        ({"best_of": 0}, "between 1 and 128, got 0"),
        ({"best_of": 129}, "between 1 and 128, got 129"),
        ({"best_of": 2, "stream": True}, "cannot be streamed"),
    ],
)
def test_refusals(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse(**fields)
    assert (caught.value.status, caught.value.param) == (400, "best_of")
    assert words in caught.value.message
