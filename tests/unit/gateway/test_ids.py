"""gateway/core/ids.py"""

from __future__ import annotations

from uuid import UUID

import pytest

from gateway.core.ids import is_request_id, is_traceparent, uuid7


@pytest.mark.parametrize(
    ("value", "accepted"),
    [
        ("abc-1._X", True),
        ("a" * 128, True),
        ("a" * 129, False),
        ("", False),
        ("a b", False),
        ("a\n", False),
        ("é", False),
    ],
)
def test_request_ids(value: str, accepted: bool) -> None:
    """1 to 128 characters of [A-Za-z0-9._-]."""
    assert is_request_id(value) is accepted


def test_uuid7_is_one_and_sorts_by_time() -> None:
    """Version and variant are those of RFC 9562; a later millisecond sorts later whatever the random bits."""
    early, late = uuid7(1_700_000_000_000, (1 << 74) - 1), uuid7(1_700_000_000_001, 0)
    assert UUID(early).version == 7
    assert UUID(early).variant == "specified in RFC 4122"
    assert early < late
    assert uuid7(5, 1) != uuid7(5, 2)
    assert uuid7(5, 1 << 62) != uuid7(5, 2 << 62)


GOOD = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("value", "accepted"),
    [(GOOD, True), ("ff" + GOOD[2:], False), (GOOD.upper(), False), ("00-" + "0" * 32 + GOOD[35:], False), ("", False)],
)
def test_traceparents(value: str, accepted: bool) -> None:
    """Well-formed W3C trace context only."""
    assert is_traceparent(value) is accepted
