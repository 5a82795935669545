"""LlamaIndex: OpenAILike and OpenAILikeEmbedding."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from llama_index.core.base.llms.types import ChatMessage, TextBlock, ThinkingBlock
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike

from tests.cases.installation import Installation
from tests.clients.installation import FORBIDDEN, KEY, REAL, REAL_ANSWER, REAL_CHAT, request_id
from tests.support.waiting import until

# What it leaves open when it is collected is its own affair.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Llm = Callable[..., OpenAILike]

HI = [ChatMessage(role="user", content="hi")]


@pytest.fixture
def llm(base_url: str) -> Llm:
    """Makes a chat model whose requests play a script."""

    def make(script: str = "hello", **options: Any) -> OpenAILike:
        settings = {"model": "m-text", "api_base": base_url, "api_key": KEY, "is_chat_model": True, **options}
        return OpenAILike(default_headers={"X-Request-Id": request_id(script)}, max_retries=0, **settings)

    return make


def thoughts(message: ChatMessage) -> str:
    return "".join(block.content or "" for block in message.blocks if isinstance(block, ThinkingBlock))


def test_the_real_model_streams_what_it_says_in_one_piece(llm: Llm) -> None:
    """The bundled model's greedy answer, whole and joined from deltas."""
    model = llm("echo", model=REAL, temperature=0, max_tokens=30)
    messages = [ChatMessage(**message) for message in REAL_CHAT]
    deltas = [part.delta or "" for part in model.stream_chat(messages)]
    assert "".join(deltas) == model.chat(messages).message.content == REAL_ANSWER
    assert len([delta for delta in deltas if delta]) > 3


def test_an_answer_with_its_usage(llm: Llm) -> None:
    """Counts are in `additional_kwargs`, the rest in `raw`."""
    answer = llm().chat(HI)
    assert answer.message.content == "Hello"
    assert answer.additional_kwargs["prompt_tokens"] == 5
    assert answer.additional_kwargs["completion_tokens"] == 3
    assert answer.raw.choices[0].finish_reason == "stop"


def test_a_stream_with_its_usage(llm: Llm) -> None:
    """`stream_options` go along as a keyword; the last response has text and counts."""
    *_, last = llm().stream_chat(HI, stream_options={"include_usage": True})
    assert last.message.content == "Hello"
    assert last.additional_kwargs["total_tokens"] == 8


def test_completions(llm: Llm) -> None:
    """Of what is no chat model the older endpoint is asked, streamed and not."""
    model = llm("echo", is_chat_model=False, max_tokens=50)
    assert model.complete("one two").text == "one two"
    *_, last = model.stream_complete("one two")
    assert last.text == "one two"


def test_logprobs(llm: Llm) -> None:
    """Each token with its alternatives."""
    answer = llm("scored", logprobs=True, top_logprobs=2).chat(HI)
    assert answer.logprobs is not None
    assert [(one.token, one.logprob) for one in answer.logprobs[0]] == [("Hi", -0.25), ("Ho", -1.5)]


def test_several_choices(llm: Llm) -> None:
    """`n` goes along; the message is the first choice, the others are in `raw`."""
    answer = llm("pair").chat(HI, n=2)
    assert answer.message.content == "left"
    assert [choice.message.content for choice in answer.raw.choices] == ["left", "right"]


def test_embeddings(base_url: str) -> None:
    """Texts in batches and one query, as the official client gets them."""
    model = OpenAILikeEmbedding(model_name="m-embed", api_base=base_url, api_key=KEY, embed_batch_size=2)
    texts = ["one", "two", "three"]
    with openai.OpenAI(base_url=base_url, api_key=KEY) as client:
        expected = [item.embedding for item in client.embeddings.create(model="m-embed", input=texts).data]
    assert model.get_text_embedding_batch(texts) == expected
    assert model.get_query_embedding("one") == expected[0]
    assert len(expected) == len({tuple(one) for one in expected})


def test_sampling_reaches_the_engine(llm: Llm, installation: Installation) -> None:
    """max_tokens, temperature and seed; stop by what is left of the answer."""
    model = llm("echo", max_tokens=40, temperature=0.5, additional_kwargs={"seed": 7, "stop": [" three"]})
    answer = model.chat([ChatMessage(role="user", content="one two three four")])
    assert answer.message.content == "one two"
    (record,) = installation.engine_saw(model.default_headers["X-Request-Id"])
    assert record["sampling"] == {"max_tokens": 40, "seed": 7, "temperature": 0.5}


def test_thoughts_are_blocks_of_their_own(llm: Llm) -> None:
    """`reasoning_content` becomes a ThinkingBlock, streamed and not."""
    whole = llm("thought", model="m-think").chat(HI)
    *_, last = llm("thought", model="m-think").stream_chat(HI)
    for message in (whole.message, last.message):
        assert message.content == "Hello!"
        assert thoughts(message) == "Be kind."


def test_heartbeats_are_no_chunks(llm: Llm) -> None:
    """The comments that fill silences change nothing for a reader."""
    assert [part.delta for part in llm("quiet").stream_chat(HI) if part.delta] == ["Hel", "lo"]


def test_a_conversation_of_every_kind_of_message(llm: Llm, installation: Installation) -> None:
    """Text whole and in blocks, and what the last answer was: all of it is in the prompt."""
    model = llm("echo")
    first = llm().chat(HI).message
    conversation = [
        ChatMessage(role="system", content="be brief"),
        ChatMessage(role="user", blocks=[TextBlock(text="one"), TextBlock(text="two")]),
        first,
        ChatMessage(role="user", content="three"),
    ]
    assert model.chat(conversation).message.content == "three"
    (record,) = installation.engine_saw(model.default_headers["X-Request-Id"])
    places = [record["prompt"].index(text) for text in ("be brief", "one", "two", "Hello", "three")]
    assert places == sorted(places)


def test_a_conversation_with_thoughts_goes_on(llm: Llm) -> None:
    """What the model thought is left out of the next request, or taken; it does not make it a bad one."""
    first = llm("thought", model="m-think").chat(HI).message
    second = llm("echo", model="m-think").chat([*HI, first, ChatMessage(role="user", content="and you?")])
    assert second.message.content == "and you?"


def test_the_request_id_is_there_for_support(llm: Llm) -> None:
    """On the raw answer, which is that of the official client."""
    model = llm()
    assert model.chat(HI).raw._request_id == model.default_headers["X-Request-Id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "options", "expected", "code"),
    [
        ("echo", {"temperature": 1.5, "additional_kwargs": {"top_p": 7}}, openai.BadRequestError, None),
        ("echo", {"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ("echo", {"api_key": "sk-wrong"}, openai.AuthenticationError, "invalid_api_key"),
        ("echo", {"model": FORBIDDEN}, openai.PermissionDeniedError, "model_not_allowed"),
        ("fails", {}, openai.InternalServerError, "worker_failed"),
        ("full", {}, openai.InternalServerError, "overloaded"),
    ],
)
def test_errors_have_their_class(
    llm: Llm, script: str, options: dict[str, Any], expected: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    """Those of the official client, with our code."""
    model = llm(script, **options)
    with pytest.raises(expected) as raised:  # noqa: PT012 - a stream raises when it is read
        if stream:
            list(model.stream_chat(HI))
        else:
            model.chat(HI)
    assert code in (None, raised.value.code)


def test_an_error_within_a_stream_is_raised(llm: Llm) -> None:
    """After the text that came."""
    text = ""
    with pytest.raises(openai.APIError) as raised:  # noqa: PT012 - where it is raised is the point
        for part in llm("breaks").stream_chat(HI):
            text += part.delta or ""
    assert text == "partial"
    assert raised.value.code == "worker_failed"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_task_stops_the_engine(llm: Llm, installation: Installation, stream: bool) -> None:
    """Cancelling the task, amid a stream or while it waits for a whole answer, reaches the engine."""
    model = llm("slow")
    name = model.default_headers["X-Request-Id"]
    parts = 0

    async def ask() -> None:
        nonlocal parts
        if not stream:
            await model.achat(HI)
        async for _ in await model.astream_chat(HI):
            parts += 1

    task = asyncio.create_task(ask())
    await until(lambda: parts > 3 if stream else installation.engine_saw(name), what="the engine has it")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: installation.engine_saw(name, "abort"), what="the engine is told")
    await until(lambda: installation.engine_load() == 0, what="the engine is free")
