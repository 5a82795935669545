"""How SGLang's own flags reach the engine."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from inferway.config import ConfigError, load
from worker.config import Config
from worker.engines import EngineNotInstalled, build
from worker.engines.sglang.model import REASONING_PARSERS, TOOL_PARSERS, parser_name


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


@pytest.mark.parametrize(
    ("name", "ours", "known"),
    [
        ("qwen3", "think", REASONING_PARSERS),
        ("deepseek-r1", "think_preopened", REASONING_PARSERS),
        ("qwen25", "hermes", TOOL_PARSERS),
        ("mistral", "mistral", TOOL_PARSERS),
        (None, "", TOOL_PARSERS),
    ],
)
def test_formats_have_the_contracts_names(name: str | None, ours: str, known: Mapping[str, str]) -> None:
    """SGLang's --reasoning-parser and --tool-call-parser, as a gateway knows them; others keep their names."""
    assert parser_name(name, known) == ours


def test_formats_are_those_that_sglang_takes() -> None:
    """No name is there that SGLang's flags would refuse."""
    pytest.importorskip("sglang", reason="sglang is not installed here")
    from sglang.srt.function_call.function_call_parser import FunctionCallParser
    from sglang.srt.parser.reasoning_parser import ReasoningParser

    assert REASONING_PARSERS.keys() <= ReasoningParser.DetectorMap.keys()
    assert TOOL_PARSERS.keys() <= FunctionCallParser.ToolCallParserEnum.keys()


def test_no_model() -> None:
    """Without a model the worker says which option is missing."""
    with pytest.raises(EngineNotInstalled, match="--model-path"):
        build(Config(engine="sglang"), "worker-1")
