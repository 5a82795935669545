"""docs/gpu.md names only flags that this SGLang has."""

from __future__ import annotations

import argparse

import pytest

from tests.support.gpu_guide import GUIDE, commands, mentions
from worker.engines.sglang import cpu

TEXT = GUIDE.read_text()


class Parser(argparse.ArgumentParser):
    """Knows flags by their whole name only."""

    @property
    def names(self) -> set[str]:
        return {name for action in self._actions for name in action.option_strings}


@pytest.fixture(scope="module")
def parser() -> Parser:
    cpu.prepare()
    from sglang.srt.server_args import ServerArgs

    parser = Parser(allow_abbrev=False)
    ServerArgs.add_cli_args(parser)
    return parser


def test_commands(parser: Parser) -> None:
    """What the page's commands have behind "--" is accepted, with its values."""
    given = [command.engine_flags for command in commands(TEXT) if command.engine_flags]
    assert given
    for flags in given:
        parser.parse_args([*flags, "--model-path=m"])


def test_mentions(parser: Parser) -> None:
    """Every flag that is written as SGLang's is SGLang's."""
    assert mentions(TEXT).engine - parser.names == set()


def test_unknown_flag(parser: Parser) -> None:
    """One that SGLang does not have would be noticed, also the beginning of one."""
    for flag in ("--no-such-flag", "--mem-fraction-stat"):
        with pytest.raises(SystemExit):
            parser.parse_args(["--model-path=m", flag, "0.8"])
        assert flag not in parser.names
