"""The endpoint that sums a tenant's ledger, as `python -m inferway usage` does for long ones."""

from __future__ import annotations

import time
from collections.abc import Mapping

from inferway.errors import ApiError, Reason, invalid
from inferway.ledger import UnknownEntry
from inferway.usage import GROUPS, Sums, unix_ms

from ..directory.documents import Client
from ..quota.ledger_sums import add_ledger
from .calls import Call, Handler, Result, not_found
from .endpoints import Period

# Entries that are summed here: more would take the event loop, which answers callers as well, for too long.
MOST_ENTRIES = 20_000


class UsageEndpoints:
    def __init__(self, redis: Client | None, prefix: str) -> None:
        self._redis = redis
        self._prefix = prefix

    def handlers(self) -> Mapping[str, Handler]:
        return {"usage": self._usage}

    async def _usage(self, call: Call) -> Result:
        """Also of a tenant that is gone: its ledger stays."""
        period: Period = call.query
        by = [name for name in period.by.split(",") if name]
        for name in by:
            if name not in GROUPS:
                raise invalid("by", f"'by' must be of {', '.join(GROUPS)}, got '{name[:100]}'.")
        sums = Sums(by, _time("since", period.since), _time("until", period.until))
        if self._redis is None:
            raise _no_ledger()
        try:
            is_whole = await add_ledger(self._redis, self._prefix, call.places["tenant"], sums, most=MOST_ENTRIES)
        except UnknownEntry as error:
            message = f"The ledger has an entry that this version does not understand: {error}."
            raise ApiError(Reason.CONFLICT, message) from None
        return Result({**sums.as_json(), "is_whole": is_whole})


def _time(name: str, text: str) -> int | None:
    """Unix milliseconds. Raises ApiError (400)."""
    try:
        return unix_ms(text, now_ms=time.time_ns() // 1_000_000) if text else None
    except (ValueError, OverflowError) as error:
        raise invalid(name, f"'{name}' {error}.") from None


def _no_ledger() -> ApiError:
    return not_found("ledger here: without Redis it is in files (python -m inferway usage --files)")
