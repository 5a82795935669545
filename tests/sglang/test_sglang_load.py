"""The tiny model with a hundred requests at once: what the scheduler itself says of them; adapters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from inferway.errors import ApiError, Reason
from tests.sglang.driver import MODELS, Driver
from worker.engine import Adapter, Constraint, EmbedRequest, FinishReason
from worker.engines.sglang import SglangEngine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]

RUNNING = 100


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started() -> AsyncIterator[Driver]:
    flags = (
        "--max-total-tokens=262144",
        "--enable-lora",
        f"--lora-paths=a={MODELS / 'tiny-lora-a'}",
        "--max-lora-rank=8",
        "--lora-target-modules",
        "q_proj",
        "v_proj",
    )
    engine = SglangEngine(
        model_path=str(MODELS / "tiny"), max_running=RUNNING, max_waiting=50, context_length=2048, flags=flags
    )
    driver = Driver(engine)
    await driver.start()
    yield driver
    await engine.close()


@pytest_asyncio.fixture(loop_scope="module")
async def driver(started: Driver) -> AsyncIterator[Driver]:
    yield started
    await started.idle()


async def test_half_cancelled(driver: Driver) -> None:
    """Cancelling 50 of 100 running requests halves the scheduler's own count, and the others go on."""
    keys = [driver.submit([100 + n, *range(20)], max_tokens=1000) for n in range(RUNNING)]
    await driver.until(lambda: driver.engine.reading.running == RUNNING, "100 running")
    assert driver.engine.load().num_requests_running == RUNNING
    gone, stay = keys[::2], keys[1::2]
    for key in gone:
        driver.engine.abort(key)
    seconds = await driver.until(lambda: driver.engine.reading.running <= RUNNING // 2, "50 running", 10)
    print(f"halved after {seconds * 1000:.0f} ms")
    await driver.until(lambda: all(key in driver.ends for key in gone), "50 ends", 10)
    assert all(driver.ends[key].finish_reason is FinishReason.ABORTED for key in gone)
    before = {key: len(driver.tokens[key]) for key in stay}
    await driver.until(lambda: all(len(driver.tokens[key]) > before[key] for key in stay), "tokens of the others")
    assert not any(key in driver.ends for key in stay)
    for key in stay:
        driver.engine.abort(key)
    await driver.until(lambda: driver.engine.reading.running == 0, "an idle scheduler", 10)
    await driver.until(lambda: driver.engine.load().num_requests_running == 0, "an idle engine", 10)


async def test_load_is_the_schedulers(driver: Driver) -> None:
    """Running and waiting requests and used KV tokens are those of the scheduler."""
    keys = [driver.submit([200 + n, *range(150)], max_tokens=300) for n in range(RUNNING + 20)]
    await driver.until(lambda: driver.engine.reading.running == RUNNING, "a full batch")
    assert driver.engine.reading.waiting == 20
    load = driver.engine.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (RUNNING, 20)
    assert load.kv_used_tokens >= RUNNING * 22
    assert load.uncached_tokens_in_flight > 0
    assert load.prefill_tokens_per_s > 0
    await driver.until(lambda: all(key in driver.ends for key in keys), "all ends")
    await driver.until(lambda: driver.engine.load().kv_used_tokens == 0, "an empty cache", 5)


async def test_aborted_before_it_is_sent(driver: Driver) -> None:
    """A choice that is aborted before SGLang has seen it has one end as well, and never runs."""
    key = driver.submit(list(range(50)), max_tokens=1500)
    driver.engine.abort(key)
    await driver.until(lambda: key in driver.ends, "its end", 10)
    assert driver.ends[key].finish_reason is FinishReason.ABORTED
    await asyncio.sleep(0.5)
    assert driver.engine.reading.running == 0
    assert not driver.tokens[key]


POISON = {
    "a schema that is none": Constraint("json_schema", '{"type": "no such type"}'),
    "a schema that is no JSON": Constraint("json_schema", "{"),
    "an unclosed group": Constraint("regex", "(a"),
    "a grammar without a rule": Constraint("ebnf", "root ::= missing"),
    "a tag that is none": Constraint("structural_tag", '{"type": "nothing"}'),
}


@pytest.mark.parametrize("constraint", POISON.values(), ids=POISON.keys())
async def test_grammar_that_does_not_compile(driver: Driver, constraint: Constraint) -> None:
    """Such a request ends in an error that names the field, and the next one is served."""
    key = await driver.run([1, 2, 3], constraint=constraint, max_tokens=5)
    error = driver.ends[key].error
    assert error is not None
    assert (error.reason, error.param) == (Reason.INVALID_SCHEMA, "constraint")
    assert not driver.tokens[key]
    after = await driver.run([1, 2, 3], max_tokens=5)
    assert len(driver.tokens[after]) == 5


@pytest.mark.parametrize("token", [-1, 49_152, 2**31])
async def test_token_beyond_the_vocabulary(driver: Driver, token: int) -> None:
    """It never reaches the scheduler, which it would end."""
    with pytest.raises(ApiError) as caught:
        driver.submit([1, token, 2], max_tokens=5)
    assert (caught.value.reason, caught.value.param) == (Reason.INVALID_REQUEST, "prompt_token_ids")
    after = await driver.run([1, 2, 3], max_tokens=5)
    assert len(driver.tokens[after]) == 5


@pytest.mark.parametrize("length", [1, 2040, 2041])
async def test_longest_prompts(driver: Driver, length: int) -> None:
    """Any prompt shorter than the context is computed, and any completion that fits is made in full."""
    context = driver.info.models[0].context_length
    assert context == 2042
    key = await driver.run([7] * length, max_tokens=min(20, context - length))
    assert driver.ends[key].error is None
    assert len(driver.tokens[key]) == min(20, context - length)


async def test_adapters(driver: Driver) -> None:
    """Adapters are served by name beside the model itself, loaded and unloaded while it runs."""
    prompt = list(range(300, 330))
    model = driver.info.models[0].name
    assert list(driver.engine.adapters()) == [(model, "a")]
    plain = await driver.run(prompt, max_tokens=20)
    with pytest.raises(ApiError) as caught:
        driver.submit(prompt, adapter="b", max_tokens=5)
    assert caught.value.reason is Reason.MODEL_NOT_FOUND
    await driver.engine.load_adapter(Adapter(model, "b"), str(MODELS / "tiny-lora-b"))
    assert list(driver.engine.adapters()) == [(model, "a"), (model, "b")]
    keys = [driver.submit(prompt, adapter=name, max_tokens=20) for name in ("", "a", "b")]
    await driver.until(lambda: all(key in driver.ends for key in keys), "three ends")
    base, first, second = (driver.tokens[key] for key in keys)
    assert base == driver.tokens[plain]
    assert base != first != second != base
    await driver.engine.unload_adapter(Adapter(model, "b"))
    with pytest.raises(ApiError) as caught:
        driver.submit(prompt, adapter="b", max_tokens=5)
    assert caught.value.reason is Reason.MODEL_NOT_FOUND
    with pytest.raises(ApiError) as caught:
        await driver.engine.load_adapter(Adapter(model, "c"), str(MODELS / "nowhere"))
    assert (caught.value.reason, caught.value.param) == (Reason.INVALID_REQUEST, "path")
    after = await driver.run(prompt, adapter="a", max_tokens=20)
    assert driver.tokens[after] == first


async def test_no_embeddings(driver: Driver) -> None:
    """A model that generates is not asked to embed: that would end the scheduler."""
    with pytest.raises(ApiError) as caught:
        await driver.engine.embed(EmbedRequest("r", driver.info.models[0].name, [1, 2, 3]))
    assert caught.value.reason is Reason.UNSUPPORTED_VALUE
