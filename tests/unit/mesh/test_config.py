"""Options: where values come from, what they may be, and that every mistake is told."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from inferway.config import ConfigError, Secret, effective, load, load_or_exit, option
from inferway.net import host_and_port


@dataclass(frozen=True, slots=True)
class Sample:
    """Options of every type."""

    listen: str = option("127.0.0.1:8000", "where to listen")
    workers: tuple[str, ...] = option((), "addresses")
    peers: tuple[str, ...] = option(("a:1", "b:2"), "others", check=host_and_port)
    name: str = option("", "who", default_text="the host's name")
    limit: int = option(10, "the most", unit="tokens", minimum=1, maximum=100)
    timeout_s: float = option(1.5, "patience, 100%", unit="s", minimum=0)
    cap: int | None = option(None, "no cap by default")
    insecure: bool = option(False, "let anyone in")
    level: str = option("info", "how much to say", choices=("debug", "info"))
    token: Secret = option(Secret(""), "shared secret", env="INFERWAY_INTERNAL_TOKEN")


def loaded(*argv: str, **environ: str) -> Sample:
    return load(Sample, "sample", environ, argv)


def test_defaults() -> None:
    """With nothing said, every option has its default."""
    assert loaded() == Sample()


def test_a_flag_wins_over_the_environment() -> None:
    """The order is flag, environment, default."""
    assert loaded(INFERWAY_SAMPLE_LIMIT="20").limit == 20
    assert loaded("--limit", "30", INFERWAY_SAMPLE_LIMIT="20").limit == 30


def test_an_empty_environment_value_counts() -> None:
    """A variable that is set to nothing is a value, not an absence."""
    assert loaded(INFERWAY_SAMPLE_LISTEN="").listen == ""


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--workers", "a:1,b:2"], ("a:1", "b:2")),
        (["--workers", "a:1", "--workers", "b:2"], ("a:1", "b:2")),
        (["--workers", " a:1 , "], ("a:1",)),
    ],
)
def test_lists(argv: list[str], expected: tuple[str, ...]) -> None:
    """Several values are separated by commas or given one flag each; empty ones are dropped."""
    assert loaded(*argv).workers == expected


@pytest.mark.parametrize(("text", "expected"), [("1", True), ("Yes", True), ("off", False), ("", False)])
def test_booleans_in_the_environment(text: str, expected: bool) -> None:
    """The usual words for yes and no are understood in any case."""
    assert loaded(INFERWAY_SAMPLE_INSECURE=text).insecure is expected


def test_boolean_flags() -> None:
    """A flag turns an option on, its no- form turns off what the environment turned on."""
    assert loaded("--insecure").insecure is True
    assert loaded("--no-insecure", INFERWAY_SAMPLE_INSECURE="1").insecure is False


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--limit", "ten"], "--limit: must be a whole number, got 'ten'"),
        (["--limit", "0"], "--limit: must be at least 1, got '0'"),
        (["--limit", "101"], "--limit: must be at most 100, got '101'"),
        (["--timeout-s", "soon"], "--timeout-s: must be a number, got 'soon'"),
        (["--timeout-s", "nan"], "--timeout-s: must be finite, got 'nan'"),
        (["--timeout-s", "-1"], "--timeout-s: must be at least 0, got '-1'"),
        (["--level", "loud"], "--level: must be one of debug, info, got 'loud'"),
        (["--cap", "x"], "--cap: must be a whole number, got 'x'"),
        (["--peers", "a:1,b"], "--peers: must be host:port with a port from 0 to 65535, got 'b'"),
    ],
)
def test_mistakes(argv: list[str], sentence: str) -> None:
    """A mistake names the option, what it must be and what it was."""
    with pytest.raises(ConfigError) as caught:
        loaded(*argv)
    assert caught.value.mistakes == [sentence]


def test_all_mistakes_are_told_at_once() -> None:
    """Mistakes of flags and of the environment come together, each with the name that was used."""
    with pytest.raises(ConfigError) as caught:
        loaded("--limit", "0", INFERWAY_SAMPLE_INSECURE="perhaps")
    assert caught.value.mistakes == [
        "--limit: must be at least 1, got '0'",
        "INFERWAY_SAMPLE_INSECURE: must be true or false, got 'perhaps'",
    ]


def test_mistakes_end_a_main_module_without_a_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """A process that cannot be configured says why, a line each, prefixed with its name, and ends with status 2."""
    with pytest.raises(SystemExit) as caught:
        load_or_exit(Sample, "sample", {}, ["--limit", "0", "--level", "loud"])
    assert caught.value.code == 2
    assert capsys.readouterr().err.splitlines() == [
        "sample: --limit: must be at least 1, got '0'",
        "sample: --level: must be one of debug, info, got 'loud'",
    ]


def test_flags_are_not_abbreviated(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that is only the beginning of one is unknown, so that a new flag never changes what an old line means."""
    with pytest.raises(SystemExit):
        loaded("--lim", "5")
    assert "--lim" in capsys.readouterr().err


def test_help_tells_everything(capsys: pytest.CaptureFixture[str]) -> None:
    """--help has each option's flag, variable, default, unit, line and limits, and the command to type."""
    with pytest.raises(SystemExit) as caught:
        load(Sample, "sample", {}, ["--help"], prog="python -m inferway sample")
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for part in (
        "usage: python -m inferway sample",
        "Options of every type.",
        "--timeout-s S",
        "[INFERWAY_SAMPLE_TIMEOUT_S; default: 1.5 s]",
        "[INFERWAY_SAMPLE_PEERS; default: a:1,b:2]",
        "[INFERWAY_SAMPLE_NAME; default: the host's name]",
        "[INFERWAY_SAMPLE_INSECURE; default: false]",
        "the most (1 to 100)",
        "patience, 100% (at least 0)",
        "how much to say (one of debug, info)",
        "[INFERWAY_INTERNAL_TOKEN; default: none]",
    ):
        assert part in text


def test_secrets_do_not_show() -> None:
    """Neither the repr of a configuration nor what is logged of it has the secret; that there is one shows."""
    sample = loaded(INFERWAY_INTERNAL_TOKEN="hunter2")
    assert sample.token == "hunter2"
    assert "hunter2" not in repr(sample)
    assert effective(sample)["token"] == "***"
    assert effective(Sample())["token"] == ""


def test_a_secret_that_is_refused_does_not_show() -> None:
    """What is wrong with it is told, not what it is."""

    def refuse(text: str) -> None:
        raise ValueError("must be a URL")

    @dataclass(frozen=True)
    class Guarded:
        """Options."""

        url: Secret = option(Secret(""), "where", check=refuse)

    with pytest.raises(ConfigError) as caught:
        load(Guarded, "sample", {}, ["--url", "hunter2"])
    assert caught.value.mistakes == ["--url: must be a URL"]
