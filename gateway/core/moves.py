"""Where a request may go on when a worker has refused or failed it, before anything has come of it.

It may move any number of times when workers refuse it honestly, once when a worker is lost. After that a failure is the
caller's to see. When everyone has refused, those who were full are asked again after a pause, a few times: whoever sent
it there did not know what they had.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferway.errors import ApiError, Reason

# Before each time that workers which were full are asked again; a router hears of what they have within a second.
PAUSES_S = (0.25, 0.5, 1.0)
# MODEL_NOT_FOUND: of an adapter that has been unloaded from this worker meanwhile.
REFUSALS = (Reason.OVERLOADED, Reason.SHUTTING_DOWN, Reason.MODEL_NOT_READY, Reason.MODEL_NOT_FOUND)
_MAX_WORKERS_LOST = 1


@dataclass(frozen=True, slots=True)
class Pause:
    """Ask again at that time."""

    until: float


@dataclass(frozen=True, slots=True)
class Park:
    """Ask again when something has changed: everyone else was asked, and who could not be reached may come back."""


class Moves:
    """Of one request. Times are monotonic seconds."""

    __slots__ = ("_excluded", "_full", "_last_error", "_pauses", "_queue_deadline", "_unreachable", "_workers_lost")

    def __init__(self, queue_deadline: float) -> None:
        self._queue_deadline = queue_deadline
        # By worker id: have refused or failed it, or cannot serve it; were full; cannot be reached at the moment.
        self._excluded: set[str] = set()
        self._full: set[str] = set()
        self._unreachable: set[str] = set()
        self._pauses = iter(PAUSES_S)
        self._workers_lost = 0
        # What the last worker said that did not serve it.
        self._last_error: ApiError | None = None

    @property
    def avoided(self) -> tuple[str, ...]:
        """Ids of the workers that are not asked now."""
        return tuple(self._excluded | self._full | self._unreachable)

    def cannot_reach(self, worker_id: str) -> None:
        self._unreachable.add(worker_id)

    def cannot_use(self, worker_id: str) -> None:
        self._excluded.add(worker_id)

    def may_follow(self, error: ApiError) -> bool:
        """Whether another worker may be asked after one has answered with this error."""
        is_lost = error.reason is Reason.WORKER_FAILED
        return error.reason in REFUSALS or (is_lost and self._workers_lost < _MAX_WORKERS_LOST)

    def failed(self, worker_id: str, error: ApiError, *, session_broke: bool = False) -> None:
        """The request leaves this worker for another one."""
        is_full = error.reason is Reason.OVERLOADED
        (self._unreachable if session_broke else self._full if is_full else self._excluded).add(worker_id)
        self._workers_lost += error.reason is Reason.WORKER_FAILED
        self._last_error = error

    def final(self, error: ApiError) -> ApiError:
        """A worker's error as the caller sees it: what has lost two workers had better not be sent again."""
        if error.reason is Reason.WORKER_FAILED and self._workers_lost:
            error.extra_headers["x-should-retry"] = "false"
        return error

    def after_rejection(self, error: ApiError, now: float) -> Pause | Park | ApiError:
        """What is next when the router has nobody; an error is the request's end."""
        left_s = self._queue_deadline - now
        is_full = self._full and error.reason is Reason.OVERLOADED
        if is_full and (pause_s := next(self._pauses, left_s)) < left_s:
            self._full.clear()
            self._unreachable.clear()
            return Pause(now + pause_s)
        if self._unreachable and left_s > 0.0:
            self._unreachable.clear()
            return Park()
        if error.reason is Reason.WORKER_FAILED:
            error.extra_headers["x-should-retry"] = "false"  # its prompt has killed workers before
            return error
        # Where a worker had it before, what that one said is the better answer.
        return self._last_error or error
