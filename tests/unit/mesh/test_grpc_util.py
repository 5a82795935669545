"""The internal token, and errors on the wire."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from inferway.errors import ApiError, Reason
from inferway.grpc_util import InternalToken, error_from_proto, error_to_proto


def write(path: Path, text: str, *, at: int) -> None:
    """With a time of change that is told, so that the test does not wait for the clock."""
    path.write_text(text)
    os.utime(path, (at, at))


def test_a_peer_with_the_same_token_is_let_in() -> None:
    """What one side sends, the other accepts; anything else is refused."""
    token = InternalToken("secret")
    assert token
    assert token.accepts(InternalToken("secret").metadata())
    for sent in [(), (("authorization", "secret"),), (("authorization", "Bearer other"),), (("x", "Bearer secret"),)]:
        assert not token.accepts(sent)


def test_bytes_are_compared_as_text() -> None:
    """Metadata that arrives as bytes is understood."""
    assert InternalToken("secret").accepts((("authorization", b"Bearer secret"),))


def test_without_a_token_everyone_is_let_in() -> None:
    """No token: nothing is sent and nothing is asked for; check_exposure keeps that on loopback."""
    token = InternalToken()
    assert not token
    assert token.first == ""
    assert token.metadata() == ()
    assert token.accepts(())
    assert token.accepts((("authorization", "Bearer whatever"),))


def test_a_rotation_never_refuses_a_peer(tmp_path: Path) -> None:
    """A file is read again when it changes; of several tokens the first is sent and all are accepted."""
    path = tmp_path / "token"
    write(path, "old\n", at=1)
    token = InternalToken(path=str(path))
    assert token.metadata() == InternalToken("old").metadata()

    write(path, "new\nold\n", at=2)
    assert token.metadata() == InternalToken("new").metadata()
    assert token.first == "new"
    assert token.accepts(InternalToken("old").metadata())

    write(path, "new\n", at=3)
    assert not token.accepts(InternalToken("old").metadata())
    assert token.accepts(InternalToken("new").metadata())


def test_a_file_that_vanishes_changes_nothing(tmp_path: Path) -> None:
    """While the file cannot be read, the last tokens hold: nobody is let in by its absence."""
    path = tmp_path / "token"
    write(path, "secret", at=1)
    token = InternalToken(path=str(path))
    assert token
    path.unlink()
    assert not token.accepts(())
    assert token.accepts(InternalToken("secret").metadata())


def test_a_file_that_is_no_text_holds_no_token(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are told in the log and let nobody in."""
    path = tmp_path / "token"
    path.write_bytes(b"\xff\xfe")
    assert not InternalToken(path=str(path))


@pytest.mark.parametrize(
    "error",
    [
        ApiError(Reason.OVERLOADED, "The queue is full.", retry_after_s=1.5),
        ApiError(Reason.UNSUPPORTED_VALUE, "No.", param="min_p"),
        ApiError(Reason.INTERNAL_ERROR, "Sorry."),
    ],
)
def test_errors_survive_the_wire(error: ApiError) -> None:
    """Reason, sentence, field and time to retry come back as they went."""
    back = error_from_proto(error_to_proto(error))
    assert (back.reason, back.message, back.param) == (error.reason, error.message, error.param)
    assert back.retry_after_s == error.retry_after_s


def test_a_reason_from_the_future_is_a_fault_with_its_own_sentence() -> None:
    """An older process passes on the sentence of a reason that it does not know."""
    proto = error_to_proto(ApiError(Reason.OVERLOADED, "The moon is full."))
    proto.reason = "moon_is_full"
    back = error_from_proto(proto)
    assert back.reason is Reason.INTERNAL_ERROR
    assert back.message == "The moon is full."
