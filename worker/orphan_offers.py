"""Orphans of a worker, offered to the gateways whose turn it is."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection

from inferway import logs

from .core.orphans import Orphans
from .sessions import GatewaySession

log = logging.getLogger(__name__)

# Between two lines of the log about orphans that were given up.
_DROPPED_LOG_S = 60.0


class OrphanOffers:
    """`sessions` are those that are open, whoever adds to them."""

    def __init__(
        self, orphans: Orphans[GatewaySession], sessions: Collection[GatewaySession], clock: Callable[[], float]
    ) -> None:
        self._orphans = orphans
        self._sessions = sessions
        self._clock = clock
        self._is_over = False
        self._timer: asyncio.TimerHandle | None = None
        # Those in the log, and when that was written.
        self._dropped_told = 0
        self._dropped_told_at = -_DROPPED_LOG_S

    def renew(self) -> None:
        """Tell sessions of those whose turn it is, and keep one timer for the next that time alone makes due."""
        now = self._clock()
        open_sessions = {session: session.gateway_id for session in self._sessions if session.gateway_id}
        for session, orphan in self._orphans.offers(open_sessions, now=now):
            session.orphans.append(orphan)
            session.wake.set()
        self._stop_timer()
        at = self._orphans.next_at()
        if at is not None and not self._is_over:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self.renew)

    def end(self) -> None:
        """Nobody is told any more because time has passed."""
        self._is_over = True
        self._stop_timer()

    def log_dropped(self, now: float) -> None:
        """If some were given up, at most once in a while."""
        dropped = self._orphans.dropped
        if dropped != self._dropped_told and now >= self._dropped_told_at + _DROPPED_LOG_S:
            count, self._dropped_told, self._dropped_told_at = dropped - self._dropped_told, dropped, now
            logs.event(log, "orphans_dropped", level=logging.ERROR, count=count)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
