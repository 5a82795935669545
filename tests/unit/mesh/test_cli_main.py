"""Finding a command of `python -m inferway`."""

from __future__ import annotations

import pytest

from inferway.cli.main import COMMANDS, main


@pytest.mark.parametrize("argv", [[], ["--help"], ["-h"]])
def test_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command, or asked for help, it lists every command with what it does."""
    assert main(argv) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert [name, command.summary] in [line.split(maxsplit=1) for line in out.splitlines()]


def test_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that does not exist is named, and the usage goes to standard error."""
    assert main(["upp"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("inferway: there is no command 'upp'\nusage: ")
    assert captured.out == ""
