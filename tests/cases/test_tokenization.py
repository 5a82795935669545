"""GET /v1/models/{id}, POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cases.installation import Installation
from tests.cases.support import CHAT, HI


async def test_one_model_is_the_entry_of_the_list(installation: Installation) -> None:
    """Each listed model is there by its own path; an unknown one is a 404, and so is no name at all."""
    listed = (await installation.send("GET /v1/models")).json["data"]
    assert len({model["id"] for model in listed}) == len(listed) > 1
    for model in listed:
        assert (await installation.send(f"GET /v1/models/{model['id']}")).json == model
    for name in ("nowhere", "nobody%2Fnowhere"):
        answer = await installation.send(f"GET /v1/models/{name}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert name.replace("%2F", "/") in answer.error["message"]
    assert (await installation.send("GET /v1/models/")).error["code"] != "model_not_found"


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_ids_are_those_that_the_engine_gets(installation: Installation, prefix: str) -> None:
    """Of a text as of a completion, of messages as of a chat; the text comes back."""
    text = "Hello, wörld 👋"
    body: dict[str, Any] = {"model": "m-llama3", "prompt": text}
    tokens = (await installation.send(f"POST {prefix}/tokenize", body=body)).json
    answer = await installation.send("POST /v1/completions", body={**body, "max_tokens": 1})
    (line,) = installation.engine_saw(answer.headers["x-request-id"])
    assert tokens["tokens"] == line["token_ids"]
    assert tokens["count"] == len(tokens["tokens"]) == answer.usage["prompt_tokens"]
    bare = (await installation.send(f"POST {prefix}/tokenize", body={**body, "add_special_tokens": False})).json
    assert bare["tokens"] == tokens["tokens"][1:]
    back = await installation.send(f"POST {prefix}/detokenize", body={"model": "m-llama3", "tokens": bare["tokens"]})
    assert back.json == {"prompt": text}

    body = {"model": "m-text", "messages": HI}
    tokens = (await installation.send(f"POST {prefix}/tokenize", body=body)).json
    answer = await installation.send(CHAT, body={**body, "max_tokens": 1})
    (line,) = installation.engine_saw(answer.headers["x-request-id"])
    assert tokens["tokens"] == line["token_ids"]
    assert tokens["max_model_len"] > 0


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/tokenize", {"prompt": "a"}, 400, "model"),
        ("/tokenize", {"model": "m-text"}, 400, "prompt"),
        ("/tokenize", {"model": "m-text", "prompt": "a", "messages": HI}, 400, "prompt"),
        ("/tokenize", {"model": "m-text", "prompt": 3}, 400, "prompt"),
        ("/tokenize", {"model": "m-text", "messages": [{"role": "nobody"}]}, 400, "messages[0].role"),
        ("/tokenize", {"model": "nowhere", "prompt": "a"}, 404, "model"),
        ("/detokenize", {"model": "m-text"}, 400, "tokens"),
        ("/detokenize", {"model": "m-text", "tokens": []}, 400, "tokens"),
        ("/detokenize", {"model": "m-text", "tokens": [99_999_999]}, 400, "tokens"),
        ("/detokenize", {"model": "m-text", "tokens": ["a"]}, 400, "tokens"),
    ],
)
async def test_bad_requests_name_the_field(
    installation: Installation, path: str, body: dict[str, Any], status: int, param: str
) -> None:
    """As everywhere."""
    answer = await installation.send(f"POST {path}", body=body)
    assert (answer.status, answer.error["param"]) == (status, param)


async def test_a_prompt_that_spells_control_tokens_is_text(installation: Installation) -> None:
    """One BOS, the tokenizer's own; who means control tokens sends ids, which are taken as they are."""
    text = "<|begin_of_text|>Hi<|eot_id|>"
    body: dict[str, Any] = {"model": "m-llama3", "prompt": text}
    tokens = (await installation.send("POST /tokenize", body=body)).json["tokens"]
    answer = await installation.send("POST /v1/completions", body={**body, "max_tokens": 1})
    (line,) = installation.engine_saw(answer.headers["x-request-id"])
    assert line["token_ids"] == tokens
    assert tokens.count(tokens[0]) == 1
    back = await installation.send("POST /detokenize", body={"model": "m-llama3", "tokens": tokens})
    assert back.json == {"prompt": "<|begin_of_text|>" + text}

    ids = [tokens[0], tokens[0], *tokens[-3:]]
    answer = await installation.send("POST /v1/completions", body={**body, "prompt": ids, "max_tokens": 1})
    (line,) = installation.engine_saw(answer.headers["x-request-id"])
    assert line["token_ids"] == ids


async def test_a_long_prompt_reaches_the_engine_as_it_was_tokenized(installation: Installation) -> None:
    """Long bodies are worked on beside the event loop; every choice gets all of their ids."""
    messages = [{"role": "user", "content": "".join(f"line {number}: <b>&amp;</b>\n" for number in range(8_000))}]
    body: dict[str, Any] = {"model": "m-text", "messages": messages}
    tokens = (await installation.send("POST /tokenize", body=body)).json["tokens"]
    answer = await installation.send(CHAT, body={**body, "max_tokens": 1, "n": 2})
    lines = installation.engine_saw(answer.headers["x-request-id"])
    assert [line["token_ids"] for line in lines] == [tokens, tokens]
    assert answer.usage["prompt_tokens"] == len(tokens) > 50_000
