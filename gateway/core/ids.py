"""Request ids and trace context: taken from the caller when well-formed, else made."""

from __future__ import annotations

import re
from uuid import UUID

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}\Z")
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}\Z")


def is_request_id(value: str) -> bool:
    return _REQUEST_ID.match(value) is not None


def uuid7(unix_ms: int, random_bits: int) -> str:
    """RFC 9562 section 5.7: 48 bits of milliseconds, version, and 74 of the random bits; sorts by time."""
    value = (unix_ms & (1 << 48) - 1) << 80 | 0x7 << 76
    value |= (random_bits >> 62 & 0xFFF) << 64 | 0b10 << 62 | random_bits & (1 << 62) - 1
    return str(UUID(int=value))


def is_traceparent(value: str) -> bool:
    """W3C trace context, version 00 shape; version ff is invalid."""
    return _TRACEPARENT.match(value) is not None and not value.startswith("ff")
