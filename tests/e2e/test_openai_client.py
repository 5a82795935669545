"""The official client against the mesh that `make run` starts: a real model, streamed and not."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam
from tokenizers import Tokenizer

from tests.support.processes import Mesh, engine_load
from tests.support.waiting import until
from worker.engine import GenerateRequest, Output, Sampling, Step

pytest.importorskip("xllamacpp", reason="the package xllamacpp (extra llamacpp) is not installed")

from worker.engines.llamacpp import LlamaCppEngine

pytestmark = pytest.mark.timeout(180)

MODEL = "smollm2-135m-instruct"
SYSTEM_TEXT = "You are a helpful assistant."
SYSTEM: ChatCompletionMessageParam = {"role": "system", "content": SYSTEM_TEXT}
QUESTIONS = [
    "What is the capital of France?",
    "Give me three tips for staying healthy.",
    "Write a Python function that adds two numbers.",
]


def user(text: str) -> ChatCompletionMessageParam:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Mesh]:
    with Mesh(workers=[["--engine", "llamacpp"]]) as mesh:
        yield mesh


@pytest.fixture(scope="module")
def client(mesh: Mesh) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=mesh.url("/v1"), api_key="any", max_retries=0) as client:
        yield client


def test_an_answer_in_one_piece(client: openai.OpenAI) -> None:
    """The model's own text comes back, with usage in its own tokens."""
    answer = client.chat.completions.create(
        model=MODEL, messages=[SYSTEM, user(QUESTIONS[0])], temperature=0, max_tokens=30
    )
    assert answer.choices[0].message.content == "The capital of France is Paris."
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 8
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 8
    assert answer.system_fingerprint


@pytest.mark.parametrize("question", QUESTIONS)
def test_streamed_equals_whole(client: openai.OpenAI, question: str) -> None:
    """Greedy decoding gives the same text streamed and in one piece."""
    messages = [SYSTEM, user(question)]
    whole = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=48)
    stream = client.chat.completions.create(
        model=MODEL,
        messages=messages,
        temperature=0,
        max_tokens=48,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert len(chunks) > 5
    assert chunks[-1].usage is not None
    assert whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


@pytest.mark.parametrize("question", QUESTIONS)
async def test_the_mesh_says_what_the_engine_says(client: openai.OpenAI, question: str) -> None:
    """Greedy text through gateway, router and worker equals that of the engine asked directly."""
    through = await asyncio.to_thread(
        lambda: client.chat.completions.create(
            model=MODEL, messages=[SYSTEM, user(question)], temperature=0, max_tokens=40
        )
    )
    outputs: asyncio.Queue[Output] = asyncio.Queue()

    def on_step(step: Step) -> None:
        for output in step.outputs:
            outputs.put_nowait(output)

    engine = LlamaCppEngine()
    info = await engine.start(on_step)
    try:
        tokenizer = Tokenizer.from_str(info.models[0].tokenizer_json.decode())
        turns = [("system", SYSTEM_TEXT), ("user", question)]
        prompt = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns) + "<|im_start|>assistant\n"
        ids = tokenizer.encode(prompt, add_special_tokens=False).ids
        engine.generate(GenerateRequest(1, "direct", MODEL, ids, Sampling(temperature=0.0, max_tokens=40)))
        produced: list[int] = []
        while True:
            output = await asyncio.wait_for(outputs.get(), 60)
            produced += output.token_ids
            if output.finish_reason is not None or output.error is not None:
                break
    finally:
        await engine.close()
    assert through.choices[0].message.content == tokenizer.decode(produced, skip_special_tokens=True)


def test_a_growing_conversation_hits_the_cache(client: openai.OpenAI) -> None:
    """The second turn finds the first one's prompt in the KV cache, and says so."""
    messages = [SYSTEM, user("My name is Bob and I like the sea, ships and lighthouses.")]
    first = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=24)
    messages += [
        {"role": "assistant", "content": first.choices[0].message.content},
        user("What is my name?"),
    ]
    second = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=16)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    assert (second.usage.prompt_tokens_details.cached_tokens or 0) > 20


def test_stop_strings_are_never_shown(client: openai.OpenAI) -> None:
    """Text ends before the stop string, streamed and not."""
    messages = [SYSTEM, user(QUESTIONS[0])]
    answer = client.chat.completions.create(model=MODEL, messages=messages, temperature=0, max_tokens=30, stop=[" is"])
    assert answer.choices[0].message.content == "The capital of France"
    assert answer.choices[0].finish_reason == "stop"


def test_seeds_repeat(client: openai.OpenAI) -> None:
    """The same seed gives the same sampled text, another seed (almost surely) another."""

    def say(seed: int) -> str | None:
        answer = client.chat.completions.create(
            model=MODEL,
            messages=[user("Tell me a story.")],
            temperature=1.0,
            seed=seed,
            max_tokens=24,
        )
        return answer.choices[0].message.content

    assert say(1) == say(1)
    assert say(1) != say(2)


@pytest.mark.parametrize("stream", [False, True])
def test_chat_logprobs(client: openai.OpenAI, stream: bool) -> None:
    """Each token of a greedy answer is the best of those named beside it; together they are the text."""
    options: dict[str, Any] = {"model": MODEL, "messages": [SYSTEM, user(QUESTIONS[0])], "temperature": 0}
    options |= {"max_tokens": 12, "logprobs": True, "top_logprobs": 3}
    if stream:
        chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**options, stream=True)]
        text = "".join(choice.delta.content or "" for choice in chunks)
        entries = [entry for choice in chunks if choice.logprobs for entry in choice.logprobs.content or ()]
    else:
        choice = client.chat.completions.create(**options).choices[0]
        assert choice.logprobs is not None
        text, entries = choice.message.content or "", choice.logprobs.content or []
    assert "".join(entry.token for entry in entries) == text == "The capital of France is Paris."
    for entry in entries:
        assert len(entry.top_logprobs) == 3
        assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, entry.top_logprobs[0].logprob)
        assert entry.logprob <= 0
        assert sum(math.exp(other.logprob) for other in entry.top_logprobs) <= 1 + 1e-6
        assert bytes(entry.bytes or ()).decode() == entry.token


def test_completion_logprobs_are_those_of_the_whole_text(client: openai.OpenAI) -> None:
    """The older shape, with an echo: what is generated behind a prompt has the numbers of the same text as a prompt."""
    prompt = "The capital of France is"
    answer = client.completions.create(model=MODEL, prompt=prompt, temperature=0.5, seed=1, max_tokens=8, logprobs=2)
    generated = answer.choices[0].logprobs
    assert generated is not None
    whole = client.completions.create(
        model=MODEL, prompt=prompt + answer.choices[0].text, max_tokens=0, echo=True, logprobs=2
    )
    scored = whole.choices[0].logprobs
    assert scored is not None
    assert "".join(scored.tokens or ()) == whole.choices[0].text == prompt + answer.choices[0].text
    count = len(generated.tokens or ())
    assert (scored.tokens or [])[-count:] == generated.tokens
    assert (scored.token_logprobs or [])[-count:] == pytest.approx(generated.token_logprobs, abs=0.02)
    offsets = [len(prompt) + offset for offset in generated.text_offset or ()]
    assert (scored.text_offset or [])[-count:] == offsets
    assert (scored.token_logprobs or [0.0])[0] is None
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.prompt_tokens) == (0, len(scored.tokens or ()))


@pytest.mark.parametrize("stream", [False, True])
def test_a_sentence_is_likelier_than_its_words_in_disorder(client: openai.OpenAI, stream: bool) -> None:
    """Perplexity by scoring: several prompts in one request, with nothing generated."""
    sentence = "The old man sat down in front of the fire and told the children a story about the sea."
    words = sentence.split(" ")
    prompts = [sentence, " ".join([*words[1::2], *words[::2]])]
    options: dict[str, Any] = {"model": MODEL, "prompt": prompts, "max_tokens": 0, "echo": True, "logprobs": 0}
    made = client.completions.create(**options, stream=True) if stream else [client.completions.create(**options)]
    given: list[list[float | None]] = [[], []]
    texts = ["", ""]
    for answer in made:
        for choice in answer.choices:
            texts[choice.index] += choice.text
            if choice.logprobs is not None:
                given[choice.index] += choice.logprobs.token_logprobs or []
    assert texts == prompts
    perplexities = []
    for values in given:
        numbers = [value for value in values if value is not None]
        assert len(numbers) == len(values) - 1
        perplexities.append(math.exp(-sum(numbers) / len(numbers)))
    assert 1 < perplexities[0] < 100
    assert perplexities[1] > 3 * perplexities[0]


def test_errors_are_raised_as_the_right_classes(client: openai.OpenAI) -> None:
    """The client's own exception classes, with param and code."""
    hi = [user("hi")]
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model=MODEL, messages=hi, temperature=9)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt-none", messages=hi)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model=MODEL, messages=[user("word " * 20_000)])
    assert long.value.code == "context_length_exceeded"
    assert MODEL in [model.id for model in client.models.list()]


async def test_an_async_client_that_leaves_frees_the_engine(mesh: Mesh) -> None:
    """Breaking off a stream stops the generation: the engine's own load falls to zero."""
    async with openai.AsyncOpenAI(base_url=mesh.url("/v1"), api_key="any") as client:
        stream = await client.chat.completions.create(
            model=MODEL, messages=[user("Count to a thousand.")], stream=True, max_tokens=1000
        )
        async for _ in stream:
            break
        await stream.close()

    await until(lambda: engine_load(mesh.workers[0]) == 0, 5, "the engine is free")
