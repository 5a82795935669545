"""Handed cases on log-probabilities, in chat and in completions, and what else holds for them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import CHAT, HI, run, run_both_modes, variants

COMPLETIONS = "POST /v1/completions"


def strict(body: bytes) -> Any:
    """JSON without the words for what is no number."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(body, parse_constant=refuse)


def streamed_content(chunks: list[Any]) -> list[Any]:
    """The entries of all chunks of choice 0."""
    given = [choice["logprobs"] for chunk in chunks for choice in chunk["choices"] if choice["index"] == 0]
    return [entry for logprobs in given if logprobs is not None for entry in logprobs["content"]]


@case("LGP-01")
async def test_logprobs_without_alternatives(case: Any, installation: Installation) -> None:
    """An entry has token, logprob, bytes and no alternatives; without the field there is null."""
    streamed, whole = await run_both_modes(case, installation)
    entry = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top_logprobs": []}
    assert whole.json["choices"][0]["logprobs"] == {"content": [entry], "refusal": None}
    assert streamed_content(streamed.chunks) == [entry]
    for answer in await run_both_modes({**case, "input": {**case["input"], "body": _without(case)}}, installation):
        choices = answer.choices if answer.events else answer.json["choices"]
        assert all(choice["logprobs"] is None for choice in choices)
    refused = await run(case, installation, logprobs=None, top_logprobs=2)
    assert (refused.status, refused.error["param"]) == (400, "top_logprobs")


def _without(case: Any) -> dict[str, Any]:
    return {name: value for name, value in case["input"]["body"].items() if name != "logprobs"}


@case("LGP-03")
async def test_minus_infinity_is_a_number(case: Any, installation: Installation) -> None:
    """The least is -9999.0, and the body is JSON."""
    answer = await run(case, installation)
    assert answer.status == 200
    (choice,) = strict(answer.body)["choices"]
    assert choice["logprobs"]["top_logprobs"] == [{"a": 0.0, "b": -9999.0}]
    streamed = await run(case, installation, stream=True)
    for event in streamed.events[:-1]:
        strict(event.encode())


@case("LGP-04")
async def test_each_endpoint_has_its_shape(case: Any, installation: Installation) -> None:
    """Chat has content and refusal, completions the older lists."""
    chat, completion = await variants(case, installation)
    (entry,) = chat.json["choices"][0]["logprobs"]["content"]
    assert chat.json["choices"][0]["logprobs"]["refusal"] is None
    assert entry["top_logprobs"] == [{"token": " x", "logprob": -0.5, "bytes": [32, 120]}]
    assert completion.json["choices"][0]["logprobs"] == {
        "tokens": [" x"],
        "token_logprobs": [-0.5],
        "top_logprobs": [{" x": -0.5}],
        "text_offset": [0],
    }


@pytest.mark.parametrize("stream", [True, False])
async def test_tokens_offsets_and_choices_agree(installation: Installation, stream: bool) -> None:
    """Each choice has a score for each of its tokens, in the order of its text; offsets go on over chunks."""
    body = {"model": "m-text", "prompt": "one two three four", "logprobs": 1, "n": 2, "stream": stream}
    answer = await installation.send(COMPLETIONS, body=body)
    assert answer.status == 200, answer.body
    choices = answer.choices if stream else answer.json["choices"]
    for index in range(2):
        mine = [choice for choice in choices if choice["index"] == index]
        text = "".join(choice["text"] for choice in mine)
        given = [choice["logprobs"] for choice in mine if choice["logprobs"] is not None]
        tokens = [token for logprobs in given for token in logprobs["tokens"]]
        offsets = [offset for logprobs in given for offset in logprobs["text_offset"]]
        assert text
        assert "".join(tokens) == text
        assert offsets == [sum(map(len, tokens[:place])) for place in range(len(tokens))]


@pytest.mark.parametrize("stream", [True, False])
async def test_an_echo_is_scored_too(installation: Installation, stream: bool) -> None:
    """The prompt's tokens come first, the first of them without a number, and offsets count from the echo's start."""
    body = {"model": "m-text", "prompt": "one two", "logprobs": 0, "echo": True, "max_tokens": 2, "stream": stream}
    answer = await installation.send(COMPLETIONS, body=body)
    assert answer.status == 200, answer.body
    choices = answer.choices if stream else answer.json["choices"]
    given = [choice["logprobs"] for choice in choices if choice["logprobs"] is not None]
    tokens = [token for logprobs in given for token in logprobs["tokens"]]
    values = [value for logprobs in given for value in logprobs["token_logprobs"]]
    assert "".join(tokens) == "".join(choice["text"] for choice in choices)
    assert values[0] is None
    assert None not in values[1:]
    assert given[0]["text_offset"][0] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_a_prompt_is_scored_without_a_completion(installation: Installation, stream: bool) -> None:
    """With max_tokens 0 each choice is its prompt with its scores: no token is generated, and none is counted."""
    body = {"model": "m-text", "prompt": ["one two", "three four five"], "n": 2, "logprobs": 1, "echo": True}
    body |= {"max_tokens": 0, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = await installation.send(COMPLETIONS, body=body)
    assert answer.status == 200, answer.body
    choices = answer.choices if stream else answer.json["choices"]
    for index, prompt in enumerate(["one two", "one two", "three four five", "three four five"]):
        mine = [choice for choice in choices if choice["index"] == index]
        assert "".join(choice["text"] for choice in mine) == prompt
        (given,) = [choice["logprobs"] for choice in mine if choice["logprobs"] is not None]
        assert "".join(given["tokens"]) == prompt
        assert given["text_offset"] == [sum(map(len, given["tokens"][:place])) for place in range(len(given["tokens"]))]
        assert [value is None for value in given["token_logprobs"]] == [True, *[False] * (len(given["tokens"]) - 1)]
        assert [choice["finish_reason"] for choice in mine if choice["finish_reason"]] == ["length"]
    seen = installation.engine_saw(answer.headers["x-request-id"])
    assert [line["sampling"]["max_tokens"] for line in seen] == [0] * 4
    prompt_tokens = sum(len(line["token_ids"]) for line in seen if line["choice_index"] == 0)
    assert answer.usage["prompt_tokens"] == answer.usage["total_tokens"] == prompt_tokens
    assert answer.usage["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False])
async def test_an_echo_alone(installation: Installation, stream: bool) -> None:
    """Without log-probabilities the answer is the prompt's text."""
    body = {"model": "m-text", "prompt": "one two", "echo": True, "max_tokens": 0, "stream": stream}
    answer = await installation.send(COMPLETIONS, body=body)
    assert answer.status == 200, answer.body
    choices = answer.choices if stream else answer.json["choices"]
    assert "".join(choice["text"] for choice in choices) == "one two"
    assert all(choice["logprobs"] is None for choice in choices)
    assert choices[-1]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("http", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, "max_tokens"),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 0, "echo": False, "logprobs": 1}, "max_tokens"),
        (CHAT, {"messages": HI, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HI, "max_completion_tokens": 0, "logprobs": True}, "max_completion_tokens"),
    ],
)
async def test_no_tokens_only_with_an_echo(
    installation: Installation, http: str, fields: dict[str, Any], param: str
) -> None:
    """Whoever would get nothing is told so: field, limit and value."""
    answer = await installation.send(http, body={"model": "m-text", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)
    assert f"'{param}' must be between 1 and 4294967295, got 0." in answer.error["message"]


async def test_what_a_stop_string_hides_has_no_score(installation: Installation) -> None:
    """The scores are those of the text that is shown."""
    body = {"model": "m-text", "messages": [{"role": "user", "content": "one two three"}], "logprobs": True}
    whole = await installation.send(CHAT, body=body)
    tokens = [entry["token"] for entry in whole.json["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens) == whole.joined("content")
    stop = "".join(tokens[-2:]).strip()
    for stream in (False, True):
        cut = await installation.send(CHAT, body={**body, "stop": [stop], "stream": stream})
        content = streamed_content(cut.chunks) if stream else cut.json["choices"][0]["logprobs"]["content"]
        shown = "".join(entry["token"] for entry in content)
        assert shown.startswith(cut.joined("content"))
        assert stop not in shown
        assert len(content) < len(tokens)


@pytest.mark.parametrize(
    ("http", "fields", "param"),
    [
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        (CHAT, {"messages": HI, "logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        (COMPLETIONS, {"prompt": "a", "logprobs": 6}, "logprobs"),
    ],
)
async def test_limits(installation: Installation, http: str, fields: dict[str, Any], param: str) -> None:
    """Named, with the observed value."""
    answer = await installation.send(http, body={"model": "m-text", **fields})
    assert (answer.status, answer.error["param"]) == (400, param)
