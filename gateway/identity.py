"""Fresh identifiers, from the clock and the system's randomness."""

from __future__ import annotations

import secrets
import time

from .core.ids import uuid7


def new_request_id() -> str:
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))


def new_answer_id(prefix: str) -> str:
    """The id in an answer's body: made here, never the caller's X-Request-Id."""
    return f"{prefix}-{secrets.token_hex(12)}"
