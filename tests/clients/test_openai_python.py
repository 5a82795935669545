"""openai for Python: the version that `make test` has, and in `make test-clients` the older one that others need."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import openai
import pytest

from tests.cases.installation import Installation
from tests.clients.installation import FORBIDDEN, KEY, REAL, REAL_ANSWER, REAL_CHAT, request_id
from tests.support.waiting import until, wait_until

HI: list[Any] = [{"role": "user", "content": "hi"}]


def play(script: str) -> dict[str, str]:
    return {"X-Request-Id": request_id(script)}


@pytest.fixture
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key=KEY, max_retries=0) as client:
        yield client


@pytest.fixture
async def patient(base_url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    """Asynchronous, with the retries that the client comes with."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=KEY) as client:
        yield client


def test_the_real_model_streams_what_it_says_in_one_piece(client: openai.OpenAI) -> None:
    """The bundled model's greedy answer comes in several chunks that join to the whole one."""
    asked: dict[str, Any] = {
        "model": REAL,
        "messages": REAL_CHAT,
        "temperature": 0,
        "max_tokens": 30,
    }
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content == REAL_ANSWER
    assert len([piece for piece in pieces if piece]) > 3


def test_the_streaming_helper_assembles_the_answer(client: openai.OpenAI) -> None:
    """`chat.completions.stream`, which insists on the order of events, ends with the whole completion and its usage."""
    with client.chat.completions.stream(
        model="m-text", messages=HI, stream_options={"include_usage": True}, extra_headers=play("hello")
    ) as stream:
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion()
    assert [delta for delta in deltas if delta] == ["Hel", "lo"]
    assert final.choices[0].message.content == "Hello"
    assert final.choices[0].finish_reason == "stop"
    assert final.usage is not None
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (5, 3)


def test_logprobs(client: openai.OpenAI) -> None:
    """Each token with its alternatives, streamed and in one piece."""
    asked: dict[str, Any] = {"model": "m-text", "messages": HI, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**asked, extra_headers=play("scored"))
    assert whole.choices[0].logprobs is not None
    (token,) = whole.choices[0].logprobs.content or []
    assert (token.token, token.logprob, token.bytes) == ("Hi", -0.25, [72, 105])
    assert [(top.token, top.logprob) for top in token.top_logprobs] == [("Hi", -0.25), ("Ho", -1.5)]
    chunks = list(client.chat.completions.create(**asked, stream=True, extra_headers=play("scored")))
    scored = [chunk.choices[0].logprobs for chunk in chunks if chunk.choices]
    assert [one.content for one in scored if one is not None and one.content] == [[token]]


def test_several_choices(client: openai.OpenAI) -> None:
    """`n` gives choices by their index."""
    answer = client.chat.completions.create(model="m-text", messages=HI, n=2, extra_headers=play("pair"))
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [(0, "left"), (1, "right")]


def test_completions_and_the_list_of_models(client: openai.OpenAI) -> None:
    """The older endpoint, and models by list and by name."""
    answer = client.completions.create(model="m-text", prompt="one two", max_tokens=50)
    assert answer.choices[0].text == "one two"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0
    assert client.models.retrieve("m-think").id in [model.id for model in client.models.list()]


def test_embeddings(client: openai.OpenAI) -> None:
    """What the client asks for by default (base64) are the numbers that it gets as floats; tokens are taken, too."""
    texts = ["one", "two"]
    packed = client.embeddings.create(model="m-embed", input=texts)
    plain = client.embeddings.create(model="m-embed", input=texts, encoding_format="float")
    assert [item.index for item in packed.data] == [0, 1]
    for one, other in zip(packed.data, plain.data, strict=True):
        assert one.embedding == pytest.approx(other.embedding, rel=1e-6)
    assert packed.data[0].embedding != packed.data[1].embedding
    assert client.embeddings.create(model="m-embed", input=[5, 6, 7]).usage.prompt_tokens == 3


def test_sampling_reaches_the_engine(client: openai.OpenAI, installation: Installation) -> None:
    """max_tokens and seed as the engine gets them, stop by what is left of the answer."""
    headers = play("echo")
    answer = client.chat.completions.create(
        model="m-text",
        messages=[{"role": "user", "content": "one two three four"}],
        max_tokens=40,
        seed=7,
        temperature=0.5,
        stop=[" three"],
        extra_headers=headers,
    )
    assert answer.choices[0].message.content == "one two"
    assert answer.choices[0].finish_reason == "stop"
    (record,) = installation.engine_saw(headers["X-Request-Id"])
    assert record["sampling"] == {"max_tokens": 40, "seed": 7, "temperature": 0.5}
    short = client.chat.completions.create(model="m-text", messages=HI, max_completion_tokens=1, extra_headers=headers)
    assert short.choices[0].finish_reason == "length"


def test_thoughts_are_apart_from_the_answer(client: openai.OpenAI) -> None:
    """`reasoning_content` is an attribute of messages and of deltas, though the client has no type for it."""
    whole = client.chat.completions.create(model="m-think", messages=HI, extra_headers=play("thought"))
    assert whole.choices[0].message.content == "Hello!"
    assert getattr(whole.choices[0].message, "reasoning_content", None) == "Be kind."
    chunks = client.chat.completions.create(model="m-think", messages=HI, stream=True, extra_headers=play("thought"))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    assert "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas) == "Be kind."
    assert "".join(delta.content or "" for delta in deltas) == "Hello!"


def test_heartbeats_are_no_chunks(client: openai.OpenAI) -> None:
    """The comments that fill silences, before and amid the text, change nothing for a reader."""
    chunks = list(client.chat.completions.create(model="m-text", messages=HI, stream=True, extra_headers=play("quiet")))
    assert [chunk.choices[0].delta.content for chunk in chunks] == ["", "Hel", "lo", None]


def test_a_conversation_of_every_kind_of_message(client: openai.OpenAI, installation: Installation) -> None:
    """Roles of today and before, text whole and in parts, what the last answer was: all of it is in the prompt."""
    headers = play("echo")
    first = client.chat.completions.create(model="m-text", messages=HI, extra_headers=play("hello"))
    conversation: list[Any] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "name": "ada"},
        first.choices[0].message,
        {"role": "user", "content": "three"},
    ]
    answer = client.chat.completions.create(model="m-text", messages=conversation, extra_headers=headers)
    assert answer.choices[0].message.content == "three"
    (record,) = installation.engine_saw(headers["X-Request-Id"])
    places = [record["prompt"].index(text) for text in ("be brief", "one", "two", "Hello", "three")]
    assert places == sorted(places)


def test_the_request_id_is_there_for_support(client: openai.OpenAI) -> None:
    """On answers and on errors: the caller's own if it gave one, else one of ours."""
    headers = play("hello")
    answer = client.chat.completions.create(model="m-text", messages=HI, extra_headers=headers)
    assert answer._request_id == headers["X-Request-Id"]
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="nobody", messages=HI)
    assert missing.value.request_id


@pytest.mark.parametrize(
    ("script", "fields", "expected", "code"),
    [
        ("echo", {"temperature": 9}, openai.BadRequestError, None),
        ("echo", {"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ("echo", {"model": FORBIDDEN}, openai.PermissionDeniedError, "model_not_allowed"),
        ("fails", {}, openai.InternalServerError, "worker_failed"),
        ("full", {}, openai.InternalServerError, "overloaded"),
        ("fails", {"stream": True}, openai.InternalServerError, "worker_failed"),
    ],
)
def test_errors_have_their_class(
    client: openai.OpenAI, script: str, fields: dict[str, Any], expected: type[openai.APIStatusError], code: str | None
) -> None:
    """One class for each status, with our code, before any text and whether streamed or not."""
    asked = {"model": "m-text", "messages": HI, **fields}
    with pytest.raises(expected) as raised:
        client.chat.completions.create(**asked, extra_headers=play(script))
    assert raised.value.code == code
    assert "oom" not in str(raised.value)


def test_a_wrong_key_has_its_class(client: openai.OpenAI) -> None:
    """On every endpoint."""
    stranger = client.with_options(api_key="sk-wrong")
    with pytest.raises(openai.AuthenticationError) as raised:
        stranger.chat.completions.create(model="m-text", messages=HI)
    assert raised.value.code == "invalid_api_key"
    with pytest.raises(openai.AuthenticationError):
        stranger.embeddings.create(model="m-embed", input="one")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_an_error_within_a_stream_is_raised(client: openai.OpenAI) -> None:
    """After the text that came, APIError with the code; the stream does not seem to end well."""
    text = ""
    with pytest.raises(openai.APIError) as raised:  # noqa: PT012 - where it is raised is the point
        for chunk in client.chat.completions.create(
            model="m-text", messages=HI, stream=True, extra_headers=play("breaks")
        ):
            text += chunk.choices[0].delta.content or ""
    assert text == "partial"
    assert raised.value.code == "worker_failed"


async def test_retries_are_asked_for_by_the_answer(patient: openai.AsyncOpenAI, installation: Installation) -> None:
    """Of its own accord the client tries three times when we are full, and once when the caller is at fault."""
    headers = play("full")
    with pytest.raises(openai.InternalServerError):
        await patient.chat.completions.create(model="m-text", messages=HI, extra_headers=headers)
    # Each of them has asked the full worker a few times before it gave up.
    outcomes = [
        line["outcome"] for line in installation.request_lines() if line["request_id"] == headers["X-Request-Id"]
    ]
    assert outcomes == ["overloaded"] * 3
    with pytest.raises(openai.BadRequestError):
        await patient.chat.completions.create(model="m-text", messages=HI, temperature=9, extra_headers=play("echo"))


def test_a_client_that_runs_out_of_patience_stops_the_engine(client: openai.OpenAI, installation: Installation) -> None:
    """Its own timeout is raised as such, and reaches the engine."""
    headers = play("silent")
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="m-text", messages=HI, timeout=0.5, extra_headers=headers)
    wait_until(lambda: installation.engine_saw(headers["X-Request-Id"], "abort"), what="the engine is told")


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_task_stops_the_engine(
    patient: openai.AsyncOpenAI, installation: Installation, stream: bool
) -> None:
    """Cancelling the task, amid a stream or while it waits for a whole answer, reaches the engine."""
    headers = play("slow")
    name = headers["X-Request-Id"]
    chunks = 0

    async def ask() -> None:
        nonlocal chunks
        answer = await patient.chat.completions.create(
            model="m-text", messages=HI, stream=stream, extra_headers=headers
        )
        async for _ in answer:
            chunks += 1

    task = asyncio.create_task(ask())
    await until(lambda: chunks > 3 if stream else installation.engine_saw(name), what="the engine has it")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: installation.engine_saw(name, "abort"), what="the engine is told")
    await until(lambda: installation.engine_load() == 0, what="the engine is free")


async def test_a_stream_that_is_closed_stops_the_engine(
    patient: openai.AsyncOpenAI, installation: Installation
) -> None:
    """Leaving the stream's context does, too."""
    headers = play("slow")
    stream = await patient.chat.completions.create(model="m-text", messages=HI, stream=True, extra_headers=headers)
    async with stream:
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
    await until(lambda: installation.engine_saw(headers["X-Request-Id"], "abort"), what="the engine is told")
