"""The credentials of admins: how they are written, who they are, and that a mistake opens nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gateway.admin.credentials import AdminCredentials, Credential, admin_credentials, parse_credentials
from gateway.config import Config
from inferway.config import Secret, load
from inferway.service import CannotStart

FIRST, SECOND = "a" * 16, "b" * 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FIRST, [Credential("admin", FIRST)]),
        (f"anna {FIRST}\n", [Credential("anna", FIRST)]),
        (f"# of people\nanna {FIRST}\n\n  bob\t{SECOND}  \n", [Credential("anna", FIRST), Credential("bob", SECOND)]),
        ("", []),
        ("# nobody\n", []),
    ],
)
def test_a_line_is_a_token_or_a_name_and_a_token(text: str, expected: list[Credential]) -> None:
    assert parse_credentials(text) == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (f"{FIRST}\nshort", "line 2: a token must have 16 characters at least"),
        (f"anna {FIRST} {SECOND}", "line 1: must be a token, or a name and a token, got 3 words"),
    ],
)
def test_mistakes_are_told_by_their_line_without_the_token(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match="line") as raised:
        parse_credentials(text)
    assert str(raised.value) == sentence


def test_who_a_token_is(tmp_path: Path) -> None:
    """By name; whatever is not exactly a token is nobody, bytes that are no text included."""
    path = tmp_path / "tokens"
    path.write_text(f"anna {FIRST}\nbob {SECOND}\n")
    credentials = AdminCredentials(Secret("c" * 16), str(path))
    assert [credentials.who(token) for token in (FIRST, SECOND, "c" * 16)] == ["anna", "bob", "admin"]
    for other in ("", "anna", FIRST[:-1], FIRST + "a", f"anna {FIRST}", "\udcff" * 16):
        assert credentials.who(other) is None


def test_a_file_is_read_again(tmp_path: Path) -> None:
    """Old tokens end with the version that leaves them out, and a version with a mistake lets nobody in by the file."""
    path = tmp_path / "tokens"
    path.write_text(f"anna {FIRST}\n")
    credentials = AdminCredentials(Secret(""), str(path))
    for number, (text, first, second) in enumerate(
        [
            (f"anna {SECOND}\nanna {FIRST}\n", "anna", "anna"),
            (f"anna {SECOND}\n", None, "anna"),
            (f"anna {SECOND}\nshort\n", None, None),
            ("", None, None),
            (FIRST, "admin", None),
        ],
        1,
    ):
        path.write_text(text)
        os.utime(path, (number, number))
        assert (credentials.who(FIRST), credentials.who(SECOND)) == (first, second), text


@pytest.mark.parametrize(
    ("token", "text", "sentence"),
    [
        ("short", None, "--admin-token: a token must have 16 characters at least"),
        ("", "", "--admin-token-file: the file is missing, unreadable or empty"),
        ("", "short", "line 1: a token must have 16 characters at least"),
    ],
)
def test_what_cannot_start(tmp_path: Path, token: str, text: str | None, sentence: str) -> None:
    path = tmp_path / "tokens"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CannotStart, match=sentence):
        AdminCredentials(Secret(token), str(path) if text is not None else "")


@pytest.mark.parametrize("flags", [(), ("--insecure",)])
def test_there_is_no_port_without_a_credential(flags: tuple[str, ...]) -> None:
    """On loopback neither, and --insecure does not open it; without a port none is needed."""
    config = load(Config, "gateway", {}, ["--admin-listen", "127.0.0.1:0", *flags])
    with pytest.raises(CannotStart, match="--admin-listen needs a credential"):
        admin_credentials(config)
    assert admin_credentials(load(Config, "gateway", {}, list(flags))) is None
    assert admin_credentials(load(Config, "gateway", {"INFERWAY_ADMIN_TOKEN": FIRST}, ["--admin-listen", "[::1]:1"]))
