"""Handed cases on POST /v1/completions, and what else holds for its answers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import run, variants
from tests.support.client import Answer

COMPLETIONS = "POST /v1/completions"


def assert_well_formed(answer: Answer) -> None:
    """What holds for every stream of a completion: order, one id, texts, one finish a choice, [DONE]."""
    assert answer.status == 200, answer.body
    assert answer.body.endswith(b"data: [DONE]\n\n")
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in answer.chunks}) == 1
    assert answer.chunks[0]["id"].startswith("cmpl-")
    assert {chunk["object"] for chunk in answer.chunks} == {"text_completion"}
    for choice in answer.choices:
        assert set(choice) == {"index", "text", "logprobs", "finish_reason"}
    for index in {choice["index"] for choice in answer.choices}:
        reasons = [choice["finish_reason"] for choice in answer.choices if choice["index"] == index]
        assert reasons[:-1] == [None] * (len(reasons) - 1)
        assert reasons[-1] is not None


def texts(answer: Answer) -> dict[int, str]:
    """By index, streamed or not."""
    choices = answer.choices if answer.events else answer.json["choices"]
    joined: dict[int, str] = {}
    for choice in choices:
        joined[choice["index"]] = joined.get(choice["index"], "") + choice["text"]
    return joined


@case("USG-03")
async def test_usage_comes_before_done(case: Any, installation: Installation) -> None:
    """The last JSON event has no choices and the usage; the chunks before it say null."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.chunks[-1]["choices"] == []
    usage = answer.chunks[-1]["usage"]
    assert [usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")] == [2, 1, 3]
    assert all(chunk["usage"] is None for chunk in answer.chunks[:-1])


@case("STP-01")
async def test_held_back_text_comes_at_the_end(case: Any, installation: Installation) -> None:
    """What might have become a stop string is shown once it cannot."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert texts(answer) == {0: "ONE TWO THREE"}
    assert answer.choices[-1]["finish_reason"] == "stop"
    whole = await run(case, installation, stream=False)
    assert texts(whole) == {0: "ONE TWO THREE"}


@case("CMP-01")
async def test_choices_are_in_the_order_of_the_prompts(case: Any, installation: Installation) -> None:
    """Index is prompt * n + sample, streamed or not; usage sums over the prompts."""
    whole = await run(case, installation)
    assert whole.status == 200, whole.body
    assert [choice["index"] for choice in whole.json["choices"]] == [0, 1, 2, 3]
    assert texts(whole) == {0: "a", 1: "b", 2: "c", 3: "d"}
    prompt_tokens = {
        tuple(line["token_ids"]): len(line["token_ids"]) for line in installation.engine_saw(f"{case['id']}.1")
    }
    assert len(prompt_tokens) == 2
    assert whole.json["usage"]["prompt_tokens"] == sum(prompt_tokens.values())
    assert whole.json["usage"]["completion_tokens"] == 4
    streamed = await run(case, installation, stream=True, stream_options={"include_usage": True})
    assert_well_formed(streamed)
    assert texts(streamed) == texts(whole)
    assert streamed.usage == whole.usage


@case("CMP-03")
async def test_one_id_for_all_events(case: Any, installation: Installation) -> None:
    """Every event has the same id, with the prefix of completions."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert texts(answer) == {0: "ab"}
    assert answer.choices[-1]["finish_reason"] == "length"


@case("CMP-04")
@pytest.mark.parametrize(
    "prompt", [None, [5, -1], [[5], [99_999_999]], [5, 2**40], [5, 1.5], [5, True], [5, "x"], [[]]]
)
async def test_ids_beyond_the_vocabulary_never_reach_the_engine(
    case: Any, installation: Installation, prompt: list[Any] | None
) -> None:
    """A 400 that names the prompt; others are served as before."""
    changes = {} if prompt is None else {"prompt": prompt}
    answer = await run(case, installation, **changes)
    assert (answer.status, answer.error["param"]) == (400, "prompt")
    assert installation.engine_saw(f"{case['id']}.1") == []
    other = await installation.send(COMPLETIONS, body={"model": "m-text", "prompt": "still here"})
    assert other.status == 200


@case("TOK-01")
async def test_bos_is_there_once(case: Any, installation: Installation) -> None:
    """The template writes it, or the tokenizer does; ids are used as they are; usage counts what was sent."""
    answers = await variants(case, installation)
    seen = installation.engine_saw(f"{case['id']}.1")[-len(answers) :]
    (bos,) = {line["token_ids"][0] for line in seen}
    for answer, line in zip(answers, seen, strict=True):
        assert answer.status == 200, answer.body
        assert line["token_ids"].count(bos) == 1
        assert answer.json["usage"]["prompt_tokens"] == len(line["token_ids"])
    body = {"model": "m-llama3", "prompt": [7, 8]}
    assert (await installation.send(COMPLETIONS, body=body, request_id="TOK-01.ids")).status == 200
    assert installation.engine_saw("TOK-01.ids")[0]["token_ids"] == [7, 8]
    body = {"model": "m-llama3", "prompt": "<|begin_of_text|>hi"}
    assert (await installation.send(COMPLETIONS, body=body, request_id="TOK-01.spelled")).status == 200
    assert installation.engine_saw("TOK-01.spelled")[0]["token_ids"].count(bos) == 1


async def test_an_echo_comes_before_the_text(installation: Installation) -> None:
    """The prompt's own text, also of token ids, at the start of each of its choices; usage is the same."""
    body = {"model": "m-text", "prompt": ["one", "two"], "n": 2, "echo": True, "max_tokens": 1}
    whole = await installation.send(COMPLETIONS, body=body)
    assert whole.status == 200, whole.body
    starts = {index: text[:3] for index, text in texts(whole).items()}
    assert starts == {0: "one", 1: "one", 2: "two", 3: "two"}
    streamed = await installation.send(COMPLETIONS, body={**body, "stream": True})
    assert_well_formed(streamed)
    assert texts(streamed) == texts(whole)
    plain = await installation.send(COMPLETIONS, body={**body, "echo": False})
    assert whole.usage == plain.usage
    ids = installation.engine_saw(plain.headers["x-request-id"])[0]["token_ids"]
    echoed = await installation.send(
        COMPLETIONS, body={"model": "m-text", "prompt": ids, "echo": True, "max_tokens": 1}
    )
    assert echoed.json["choices"][0]["text"].startswith("one")


async def test_a_failed_prompt_fails_the_request(installation: Installation) -> None:
    """One of several prompts that cannot be answered is the error of all, before any of them has been."""
    models = (await installation.send("GET /v1/models")).json["data"]
    (context,) = (model["max_model_len"] for model in models if model["id"] == "m-text")
    body = {"model": "m-text", "prompt": ["hi", [5] * (context + 1)]}
    answer = await installation.send(COMPLETIONS, body=body)
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, "context_length_exceeded", "prompt")
    assert str(context) in answer.error["message"]
