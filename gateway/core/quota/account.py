"""What of a request is booked, by how it ended (docs/usage.md says it for operators)."""

from __future__ import annotations

from inferway.errors import OK, Reason

from ..sse import Usage

# Ends that the caller brought about: it pays for what was made until then.
_BY_CALLER = frozenset({OK, Reason.CLIENT_CLOSED_REQUEST.label, Reason.CLIENT_TOO_SLOW.label})
# Ends of a request that everybody has turned away.
_TURNED_AWAY = frozenset(reason.label for reason in (Reason.OVERLOADED, Reason.MODEL_NOT_READY, Reason.SHUTTING_DOWN))
_NOTHING = Usage(0, 0)


def booked(usage: Usage | None, outcome: str) -> Usage | None:
    """The tokens that count; `usage` is None where no worker was asked.

    None for a request that no worker took: nothing is written of it. Of one that failed before it had said anything no
    tokens count: its caller got nothing. Of one that failed later, the prompt and what was said count.
    """
    if usage is None or usage.completion_tokens or outcome in _BY_CALLER:
        return usage
    return None if outcome in _TURNED_AWAY else _NOTHING
