"""Engines, chosen by name. Each is imported when it is asked for, because each has dependencies of its own."""

from __future__ import annotations

import importlib.util
import os
import shlex
from typing import Any

from ..config import Config
from ..engine import Engine


class EngineNotInstalled(Exception):
    """Something that the engine needs is not there; the message says what to do."""


def build(config: Config, worker_id: str) -> Engine:
    """The configured engine, not started. Raises EngineNotInstalled."""
    try:
        if config.engine == "scripted":
            return _scripted(config, worker_id)
        if config.engine == "minilm":
            return _minilm(config)
        return _sglang(config) if config.engine == "sglang" else _llamacpp(config)
    except ImportError as error:
        extra = "worker" if config.engine == "scripted" else config.engine
        raise EngineNotInstalled(
            f"the engine {config.engine} needs the package {error.name}: pip install '.[{extra}]'"
        ) from error


def _scripted(config: Config, worker_id: str) -> Engine:
    from .scripted import ScriptedEngine

    return ScriptedEngine(
        scripts_path=config.scripts or None,
        capabilities=dict(_key_value(item) for item in config.capability),
        models=tuple(filter(None, map(str.strip, config.model_name.split(",")))),
        name=worker_id,
        record_path=config.record or None,
        record_steps=config.record_steps,
        record_ends=config.record_ends,
        step_ms=config.step_ms,
        prefill_tokens_per_s=config.prefill_tokens_per_s,
        **_given(
            kv_tokens=config.kv_tokens,
            context_length=config.context_length,
            max_running=config.max_running,
            max_waiting=config.max_waiting,
        ),
    )


def _llamacpp(config: Config) -> Engine:
    from .llamacpp import LlamaCppEngine

    engine: Engine = LlamaCppEngine(
        model_path=config.model_path or None,
        model_name=config.model_name or None,
        tool_parser=config.tool_parser,
        reasoning_parser=config.reasoning_parser,
        threads=config.threads,
        **_given(context_length=config.context_length, max_running=config.max_running, max_waiting=config.max_waiting),
    )
    return engine


def _minilm(config: Config) -> Engine:
    # Each pass has a thread of its own already. Read by numpy's BLAS when it is loaded.
    for name in ("OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
        os.environ.setdefault(name, "1")
    from .minilm import MiniLmEngine

    engine: Engine = MiniLmEngine(
        model_path=config.model_path or None,
        model_name=config.model_name or None,
        threads=config.threads,
        **_given(context_length=config.context_length, max_running=config.max_running, max_waiting=config.max_waiting),
    )
    return engine


def _sglang(config: Config) -> Engine:
    if not config.model_path:
        raise EngineNotInstalled("the engine sglang needs a model: --model-path FOLDER")
    if importlib.util.find_spec("sglang") is None:
        raise EngineNotInstalled(
            "the engine sglang is not installed here: docs/gpu.md says how on GPUs, scripts/setup_sglang.sh on a CPU"
        )
    from .sglang import SglangEngine

    engine: Engine = SglangEngine(
        model_path=config.model_path,
        model_name=config.model_name or None,
        flags=shlex.split(config.engine_flags),
        stall_s=config.stall_s,
        **_given(context_length=config.context_length, max_running=config.max_running, max_waiting=config.max_waiting),
    )
    return engine


def _given(**options: Any) -> dict[str, Any]:
    """Those that were configured; the engine knows its own defaults for the others."""
    return {name: value for name, value in options.items() if value is not None}


def _key_value(item: str) -> tuple[str, str]:
    key, _, value = item.partition("=")
    return key.strip(), value.strip() or "true"
