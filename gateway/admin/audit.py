"""The log of what admins have changed: in Redis where there is one, else in the memory of this process."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice
from typing import Any

from inferway import logs

from ..directory.documents import Change, Documents

log = logging.getLogger("gateway.admin")

_REMEMBERED = 1_000


class AuditLog:
    """Every change is written here before it is made, and is a line in the log of this process as well."""

    def __init__(self, documents: Documents | None) -> None:
        self._documents = documents
        self._remembered: deque[Change] = deque(maxlen=_REMEMBERED)
        self._numbers = count(1)

    async def record(self, by: str, action: str, subject: str, before: Any = None, after: Any = None) -> None:
        """Raises what the client of Redis raises: then the change must not be made."""
        change = Change(by, action, subject, before, after)
        if self._documents is not None:
            await self._documents.record(change)
        else:
            now_ms = time.time_ns() // 1_000_000
            self._remembered.append(replace(change, at_ms=now_ms, id=str(next(self._numbers))))
        logs.event(log, "admin_change", by=by, action=action, subject=subject)

    async def changes(self, *, limit: int, before: str) -> Sequence[Change]:
        """The newest first; those older than the change whose id is `before`."""
        if self._documents is not None:
            return await self._documents.changes(count=limit, before=before)
        newest_first = reversed(self._remembered)
        older = (one for one in newest_first if not before or int(one.id) < int(before.partition("-")[0]))
        return list(islice(older, limit))
