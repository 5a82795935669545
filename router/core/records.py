"""What is remembered of decisions, so that each can be explained afterwards: a ring of the last ones.

A record keeps the objects that the decision has made anyway; whatever they mean is worked out when somebody asks. The
hashes of the prompt would outweigh all the rest and are let go with the decision, or, where `ended` wants them, with
the end of the request.

Cost: a decision, a first token, an end O(1); `find` O(records), because nobody asks often.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from inferway.errors import ApiError

from .messages import Action, Dispatch, ReleaseOutcome, Request, Scored


class DecisionState(Enum):
    DISPATCHED = "dispatched"
    ENDED = "ended"
    REJECTED = "rejected"
    CANCELLED = "cancelled"


class Margin(NamedTuple):
    """The best other candidate, and how much more it would have cost; less where the picker took a worse one."""

    runner_up: Scored
    cost: float


@dataclass(slots=True, eq=False)
class Record:
    """One submission that has left the queue. Times are monotonic seconds."""

    request: Request
    # When it left the queue.
    decided_at: float
    # Of routing.yaml; empty without that file.
    routing_version: str
    dispatch: Dispatch | None = None
    error: ApiError | None = None
    first_token_at: float | None = None
    # What the engine found cached.
    cached_tokens: int | None = None
    # When the lease was over.
    ended_at: float | None = None
    # None also where nobody said: the gateway or the worker was gone.
    outcome: ReleaseOutcome | None = None
    completion_tokens: int | None = None

    @property
    def state(self) -> DecisionState:
        if self.error is not None:
            return DecisionState.REJECTED
        if self.dispatch is None:
            return DecisionState.CANCELLED
        return DecisionState.DISPATCHED if self.ended_at is None else DecisionState.ENDED

    @property
    def has_run(self) -> bool:
        """Whether its worker has worked for it, as far as anybody said."""
        return self.first_token_at is not None or self.outcome is ReleaseOutcome.OK


def margin(dispatch: Dispatch) -> Margin | None:
    """None where there was no choice, nothing to compare by, or the chosen one is not among the best."""
    considered = dispatch.considered
    if not considered.scorers:
        return None
    best = considered.best
    chosen = next((scored for scored in best if scored.worker_id == dispatch.worker_id), None)
    runner_up = next((scored for scored in best if scored.worker_id != dispatch.worker_id), None)
    if chosen is None or runner_up is None:
        return None
    return Margin(runner_up, runner_up.cost - chosen.cost)


class Records:
    """Keeps `limit` records. `ended` gets each request that is over, once, its hashes still there."""

    def __init__(self, limit: int, *, ended: Callable[[Record], None] | None = None) -> None:
        # Of routing.yaml, for the decisions from now on.
        self.routing_version = ""
        self._ring: deque[Record] = deque(maxlen=limit)
        self._ended = ended
        # By lease; as many as there are leases, however small the ring is.
        self._running: dict[int, Record] = {}

    def __len__(self) -> int:
        return len(self._ring)

    def decided(self, action: Action, *, now: float) -> None:
        """A request has left the queue. Its hashes must not be needed any more."""
        if isinstance(action, Dispatch):
            record = Record(action.request, now, self.routing_version, dispatch=action)
            self._running[action.lease_id] = record
            self._ring.append(record)
            if self._ended is None:
                action.request.block_hashes = ()
        else:
            self._over(Record(action.request, now, self.routing_version, error=action.error))

    def cancelled(self, request: Request, *, now: float) -> None:
        """A request was taken back while it waited."""
        self._over(Record(request, now, self.routing_version))

    def first_token(self, lease_id: int, cached_tokens: int, *, now: float) -> None:
        record = self._running.get(lease_id)
        if record is not None:
            record.first_token_at, record.cached_tokens = now, cached_tokens

    def released(self, lease_id: int, outcome: ReleaseOutcome, completion_tokens: int, *, now: float) -> None:
        record = self._running.pop(lease_id, None)
        if record is not None:
            record.outcome, record.completion_tokens, record.ended_at = outcome, completion_tokens, now
            self._tell(record)

    def abandoned(self, lease_id: int, *, now: float) -> None:
        """A lease is over and nobody said how."""
        record = self._running.pop(lease_id, None)
        if record is not None:
            record.ended_at = now
            self._tell(record)

    def find(self, request_id: str, most: int) -> list[Record]:
        """The newest `most` >= 1 records of this id, oldest first."""
        found = [record for record in self._ring if record.request.request_id == request_id]
        return found[-most:]

    def oldest_at(self) -> float | None:
        return self._ring[0].decided_at if self._ring else None

    def _over(self, record: Record) -> None:
        self._ring.append(record)
        self._tell(record)

    def _tell(self, record: Record) -> None:
        if self._ended is not None:
            self._ended(record)
        record.request.block_hashes = ()


def milliseconds(seconds: float) -> float:
    """As explanations and logs tell times: to the microsecond."""
    return round(seconds * 1000, 3)
