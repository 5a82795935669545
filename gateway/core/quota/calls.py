"""What is asked of a tenant's books, and what they answer. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .policy import Bound


@dataclass(frozen=True, slots=True)
class Reserve:
    """Hold a request's place under all its bounds, or under none."""

    # Unique for ever, never a client's request id.
    reservation_id: str
    bounds: Sequence[Bound]
    # Of prompt and expected output.
    units: int
    # After this time without a settlement the place is free again.
    lease_ms: int
    # Grant whatever the bounds say; the verdict still names the one that would have refused.
    is_shadow: bool = False


@dataclass(frozen=True, slots=True)
class Standing:
    """How a bound stands after a call."""

    # Requests or units, those held included.
    used: int
    # Until nothing would count any more if nothing came; 0 where nothing counts.
    reset_ms: int


@dataclass(frozen=True, slots=True)
class Verdict:
    is_granted: bool
    # In the order of the call's bounds.
    standings: Sequence[Standing]
    # Place of the bound that refused, or would have; where several did, the one that takes longest.
    failed: int | None = None
    # Until that one has room again if nothing else comes; at least 1 where `failed` is set.
    wait_ms: int = 0


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a request: booked once, whatever was reserved and however often it is told."""

    reservation_id: str
    # Those of the reservation; also used where the reservation is no longer known, or was granted elsewhere.
    bounds: Sequence[Bound]
    # Really used.
    units: int
    # False: it never reached a worker, and counts as no request.
    is_request: bool = True
    # How long ago it ended; more than a minute ago it no longer counts for the minute.
    age_ms: int = 0
    # One of several parts that are told apart from each other, by workers whose gateway has died; "": all of it.
    part: str = ""
    # The ledger's entry, names and values; empty: none is written.
    record: Sequence[tuple[str, str]] = ()
