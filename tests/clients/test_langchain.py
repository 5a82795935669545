"""langchain-openai: ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

from tests.cases.installation import Installation
from tests.clients.installation import FORBIDDEN, KEY, REAL, REAL_ANSWER, REAL_CHAT, request_id
from tests.support.waiting import until

# What it leaves open when it is collected is its own affair.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Chat = Callable[..., ChatOpenAI]


@pytest.fixture
def chat(base_url: str) -> Chat:
    """Makes a chat model whose requests play a script."""

    def make(script: str = "hello", **options: Any) -> ChatOpenAI:
        settings = {"model": "m-text", "base_url": base_url, "api_key": KEY, "max_retries": 0, **options}
        return ChatOpenAI(default_headers={"X-Request-Id": request_id(script)}, **settings)

    return make


def test_the_real_model_streams_what_it_says_in_one_piece(chat: Chat) -> None:
    """The bundled model's greedy answer, whole and joined from chunks."""
    model = chat("echo", model=REAL, temperature=0, max_tokens=30)
    chunks = [chunk.text for chunk in model.stream(REAL_CHAT)]
    assert "".join(chunks) == model.invoke(REAL_CHAT).text == REAL_ANSWER
    assert len([chunk for chunk in chunks if chunk]) > 3


def test_an_answer_with_its_usage_and_why_it_ended(chat: Chat) -> None:
    """Token counts, finish reason, model and fingerprint are where LangChain keeps them."""
    message = chat().invoke("hi")
    assert message.text == "Hello"
    assert message.usage_metadata is not None
    assert message.usage_metadata["input_tokens"] == 5
    assert message.usage_metadata["output_tokens"] == 3
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.response_metadata["model_name"] == "m-text"
    assert message.response_metadata["system_fingerprint"].startswith("fp_")


def test_a_stream_with_its_usage(chat: Chat) -> None:
    """With `stream_usage` the chunks add up to the text and the counts."""
    whole: AIMessageChunk | None = None
    for chunk in chat(stream_usage=True).stream("hi"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    assert whole.text == "Hello"
    assert whole.usage_metadata is not None
    assert whole.usage_metadata["total_tokens"] == 8
    assert whole.response_metadata["finish_reason"] == "stop"


def test_a_chain_and_a_batch(chat: Chat) -> None:
    """A prompt, the model and a parser piped together, for several inputs at a time."""
    prompt = ChatPromptTemplate.from_messages([("system", "Repeat."), ("human", "{word}")])
    chain = prompt | chat("echo") | StrOutputParser()
    assert chain.batch([{"word": "one"}, {"word": "two"}, {"word": "three"}]) == ["one", "two", "three"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs(chat: Chat, stream: bool) -> None:
    """Each token with its alternatives, in the message's metadata."""
    message = chat("scored", logprobs=True, top_logprobs=2, streaming=stream).invoke("hi")
    (token,) = message.response_metadata["logprobs"]["content"]
    assert (token["token"], token["logprob"]) == ("Hi", -0.25)
    assert [top["token"] for top in token["top_logprobs"]] == ["Hi", "Ho"]


def test_several_choices(chat: Chat) -> None:
    """`n` gives several generations for a prompt."""
    (choices,) = chat("pair", n=2).generate([[HumanMessage("hi")]]).generations
    assert [choice.text for choice in choices] == ["left", "right"]


def test_embeddings(base_url: str) -> None:
    """With `check_embedding_ctx_length=False` it is the texts that are sent, not the ids of another tokenizer."""
    embeddings = OpenAIEmbeddings(
        model="m-embed", base_url=base_url, api_key=KEY, check_embedding_ctx_length=False, max_retries=0
    )
    with openai.OpenAI(base_url=base_url, api_key=KEY) as client:
        expected = [item.embedding for item in client.embeddings.create(model="m-embed", input=["one", "two"]).data]
    assert embeddings.embed_documents(["one", "two"]) == expected
    assert embeddings.embed_query("one") == expected[0] != expected[1]


def test_sampling_reaches_the_engine(chat: Chat, installation: Installation) -> None:
    """max_tokens (sent as max_completion_tokens), seed and temperature; stop by what is left of the answer."""
    model = chat("echo", max_tokens=40, seed=7, temperature=0.5)
    message = model.invoke("one two three four", stop=[" three"])
    assert message.text == "one two"
    (record,) = installation.engine_saw(model.default_headers["X-Request-Id"])
    assert record["sampling"] == {"max_tokens": 40, "seed": 7, "temperature": 0.5}


def test_fields_that_openai_does_not_have(chat: Chat, installation: Installation) -> None:
    """`extra_body` carries them."""
    model = chat("echo", extra_body={"top_k": 5})
    model.invoke("hi")
    (record,) = installation.engine_saw(model.default_headers["X-Request-Id"])
    assert record["sampling"]["top_k"] == 5


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_do_not_end_up_in_the_answer(chat: Chat, stream: bool) -> None:
    """ChatOpenAI leaves `reasoning_content` away; the text is the answer alone."""
    assert chat("thought", model="m-think", streaming=stream).invoke("hi").text == "Hello!"


def test_heartbeats_are_no_chunks(chat: Chat) -> None:
    """The comments that fill silences change nothing for a reader."""
    assert [chunk.text for chunk in chat("quiet").stream("hi") if chunk.text] == ["Hel", "lo"]


def test_a_conversation_of_every_kind_of_message(chat: Chat, installation: Installation) -> None:
    """Text whole and in blocks, what the last answer was, a tool's call and its result: all of it is in the prompt."""
    model = chat("echo")
    first = chat().invoke("hi")
    call = AIMessage("", tool_calls=[{"name": "look", "args": {"at": "sky"}, "id": "call_1"}])
    answer = model.invoke(
        [
            SystemMessage("be brief"),
            HumanMessage([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], name="ada"),
            first,
            HumanMessage("look"),
            call,
            ToolMessage("blue", tool_call_id="call_1"),
            HumanMessage("three"),
        ]
    )
    assert answer.text == "three"
    (record,) = installation.engine_saw(model.default_headers["X-Request-Id"])
    places = [record["prompt"].index(text) for text in ("be brief", "one", "two", "Hello", "blue", "three")]
    assert places == sorted(places)


def test_completions(base_url: str) -> None:
    """The older endpoint, streamed and not."""
    model = OpenAI(model="m-text", base_url=base_url, api_key=KEY, max_tokens=50)
    assert model.invoke("one two") == "".join(model.stream("one two")) == "one two"


def test_the_request_id_is_there_for_support(chat: Chat) -> None:
    """With `include_response_headers`, among the message's metadata."""
    model = chat(include_response_headers=True)
    assert model.invoke("hi").response_metadata["headers"]["x-request-id"] == model.default_headers["X-Request-Id"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("script", "options", "expected", "code"),
    [
        ("echo", {"temperature": 9}, openai.BadRequestError, None),
        ("echo", {"model": "nobody"}, openai.NotFoundError, "model_not_found"),
        ("echo", {"api_key": "sk-wrong"}, openai.AuthenticationError, "invalid_api_key"),
        ("echo", {"model": FORBIDDEN}, openai.PermissionDeniedError, "model_not_allowed"),
        ("fails", {}, openai.InternalServerError, "worker_failed"),
        ("full", {}, openai.InternalServerError, "overloaded"),
        ("echo", {"model_kwargs": {"response_format": {"type": "yaml"}}}, openai.BadRequestError, None),
    ],
)
def test_errors_have_their_class(
    chat: Chat, script: str, options: dict[str, Any], expected: type[openai.APIStatusError], code: str, stream: bool
) -> None:
    """Those of the official client, with our code."""
    with pytest.raises(expected) as raised:
        chat(script, streaming=stream, **options).invoke("hi")
    assert code in (None, raised.value.code)


def test_an_error_within_a_stream_is_raised(chat: Chat) -> None:
    """After the text that came."""
    text = ""
    with pytest.raises(openai.APIError) as raised:  # noqa: PT012 - where it is raised is the point
        for chunk in chat("breaks").stream("hi"):
            text += chunk.text
    assert text == "partial"
    assert raised.value.code == "worker_failed"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cancelled_task_stops_the_engine(chat: Chat, installation: Installation, stream: bool) -> None:
    """Cancelling the task, amid a stream or while it waits for a whole answer, reaches the engine."""
    # Without its own limit between chunks: on Python 3.11 that can swallow a cancellation (docs/clients.md).
    model = chat("slow", stream_chunk_timeout=None)
    name = model.default_headers["X-Request-Id"]
    chunks = 0

    async def ask() -> None:
        nonlocal chunks
        if not stream:
            await model.ainvoke("hi")
        async for _ in model.astream("hi"):
            chunks += 1

    task = asyncio.create_task(ask())
    await until(lambda: chunks > 3 if stream else installation.engine_saw(name), what="the engine has it")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: installation.engine_saw(name, "abort"), what="the engine is told")
    await until(lambda: installation.engine_load() == 0, what="the engine is free")


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


def test_an_agents_turn(chat: Chat, installation: Installation) -> None:
    """A call, its result and an answer; the model sees both in its prompt."""
    model = chat("call", model="m-hermes").bind_tools([multiply])
    asked: list[Any] = [HumanMessage("What is six times seven?")]
    message = model.invoke(asked)
    assert message.response_metadata["finish_reason"] == "tool_calls"
    (call,) = message.tool_calls
    assert (call["name"], call["args"]) == ("multiply", {"a": 6, "b": 7})
    result = multiply.invoke(call)
    assert isinstance(result, ToolMessage)
    assert result.content == "42"
    answering = chat("hello", model="m-hermes")
    assert answering.bind_tools([multiply]).invoke([*asked, message, result]).text == "Hello"
    prompt = installation.engine_saw(answering.default_headers["X-Request-Id"])[0]["prompt"]
    assert '"name": "multiply", "arguments": {"a": 6, "b": 7}' in prompt
    assert "42" in prompt


def test_a_call_as_it_grows(chat: Chat) -> None:
    """Streamed chunks add up to the call."""
    whole: AIMessageChunk | None = None
    for chunk in chat("call", model="m-hermes").bind_tools([multiply]).stream("What is six times seven?"):
        assert isinstance(chunk, AIMessageChunk)
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    (call,) = whole.tool_calls
    assert (call["name"], call["args"]) == ("multiply", {"a": 6, "b": 7})


class Person(BaseModel):
    name: str
    age: int


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
def test_structured_output(chat: Chat, method: Any) -> None:
    """Each way that LangChain knows ends in an object."""
    person = chat("object").with_structured_output(Person, method=method).invoke("Who wrote the first program?")
    assert person == Person(name="Ada", age=36)
