"""Where the secrets of cache domains and of keys come from."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.config import Config
from gateway.shared_secrets import cache_secret, key_secret
from inferway.config import Secret
from inferway.grpc_util import InternalToken
from inferway.service import CannotStart


def secret_of(of: Callable[[Config, InternalToken], Secret] = cache_secret, **options: Any) -> str:
    for name in options.keys() & {"internal_token", "cache_secret", "key_secret", "redis"}:
        options[name] = Secret(options[name])
    config = Config(**options)
    return of(config, InternalToken(config.internal_token, config.internal_token_file))


def test_the_order_of_sources(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The option, then its file, then the first token, then a constant; a token that may rotate is warned of."""
    secrets, tokens = tmp_path / "secret", tmp_path / "tokens"
    secrets.write_text("from the file\n")
    tokens.write_text("first\nsecond\n")
    options = {
        "cache_secret": "given",
        "cache_secret_file": str(secrets),
        "internal_token_file": str(tokens),
    }
    assert secret_of(**options) == "given"
    del options["cache_secret"]
    assert secret_of(**options) == "from the file"
    assert not caplog.records
    del options["cache_secret_file"]
    assert secret_of(**options) == "first"
    assert [record.getMessage() for record in caplog.records] == ["cache_secret_from_token_file"]
    assert "first" not in str(caplog.records[0].__dict__)
    assert secret_of(internal_token="token") == "token"
    assert secret_of() == secret_of()
    assert len(caplog.records) == 1


@pytest.mark.parametrize("content", [None, b"", b" \n", b"\xff"], ids=["missing", "empty", "blank", "no text"])
def test_a_file_without_a_secret_is_refused(tmp_path: Path, content: bytes | None) -> None:
    """Nothing is derived from something else in its place."""
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CannotStart, match="--cache-secret-file: the file"):
        secret_of(cache_secret_file=str(path), internal_token="token")


def test_the_secret_of_keys(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In the same order, but never the token itself; a token that may rotate is warned of where keys hang on it."""
    secrets, tokens = tmp_path / "secret", tmp_path / "tokens"
    secrets.write_text("from the file\n")
    tokens.write_text("first\nsecond\n")
    assert secret_of(key_secret, key_secret="given", key_secret_file=str(secrets)) == "given"
    assert secret_of(key_secret, key_secret_file=str(secrets)) == "from the file"
    assert not caplog.records
    derived = secret_of(key_secret, internal_token_file=str(tokens), redis="redis://x")
    assert [record.getMessage() for record in caplog.records] == ["key_secret_from_token_file"]
    assert derived == secret_of(key_secret, internal_token="first")
    assert "first" not in derived
    assert len({derived, secret_of(key_secret, internal_token="second"), secret_of(key_secret)}) == 3
    assert secret_of(key_secret, internal_token_file=str(tokens)) == derived
    assert len(caplog.records) == 1
    secrets.write_text("")
    with pytest.raises(CannotStart, match="--key-secret-file: the file is empty"):
        secret_of(key_secret, key_secret_file=str(secrets))
