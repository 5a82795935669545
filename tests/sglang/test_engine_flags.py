"""How SGLang's own flags reach the engine."""

from __future__ import annotations

import pytest

from inferway.config import ConfigError, load
from worker.config import Config
from worker.engines import EngineNotInstalled, build


def test_behind_the_dashes() -> None:
    """What stands behind "--" is the engine's, whatever it looks like, and what stands before is the worker's."""
    argv = ["--engine", "sglang", "--model-path", "m", "--", "--tp-size", "2", "--name", "a b"]
    config = load(Config, "worker", {}, argv)
    assert config.engine_flags == "--tp-size 2 --name 'a b'"
    assert config.name == ""


def test_as_one_option() -> None:
    """The same can be one quoted value, as a flag or a variable; the flags behind "--" win."""
    environ = {"INFERWAY_WORKER_ENGINE_FLAGS": "--tp-size 2"}
    assert load(Config, "worker", environ, []).engine_flags == "--tp-size 2"
    assert load(Config, "worker", environ, ["--engine-flags=--dtype half"]).engine_flags == "--dtype half"
    assert load(Config, "worker", environ, ["--", "--tp-size", "4"]).engine_flags == "--tp-size 4"


def test_open_quote() -> None:
    """A value that no shell would read is a mistake of the configuration."""
    with pytest.raises(ConfigError, match="No closing quotation"):
        load(Config, "worker", {}, ["--engine-flags", "'half"])


def test_no_model() -> None:
    """Without a model the worker says which option is missing."""
    with pytest.raises(EngineNotInstalled, match="--model-path"):
        build(Config(engine="sglang"), "worker-1")
