"""Fresh identifiers, from the clock and the system's randomness."""

from __future__ import annotations

import secrets
import time

from .core.history import IdStyle, is_mistral_id, mistral_id
from .core.ids import uuid7


def new_request_id() -> str:
    return uuid7(time.time_ns() // 1_000_000, secrets.randbits(74))


def new_reservation_id() -> str:
    """Never a caller's: two requests with one X-Request-Id are two reservations."""
    return new_request_id()


def new_answer_id(prefix: str) -> str:
    """The id in an answer's body: made here, never the caller's X-Request-Id."""
    return f"{prefix}-{secrets.token_hex(12)}"


def new_call_id(style: IdStyle, own: str) -> str:
    """The id of a tool call: the model's own where it fits its family, else one of that form."""
    if style == "mistral":
        return own if is_mistral_id(own) else mistral_id(secrets.token_bytes(9))
    return own if style == "kimi" and own else f"call_{secrets.token_hex(12)}"
