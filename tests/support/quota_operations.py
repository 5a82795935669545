"""Sequences of calls of a tenant's books, for properties and for comparing one implementation with another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from gateway.core.quota.calls import Reserve, Settlement
from gateway.core.quota.policy import Bound, Kind

# An ordinary day, and the last hours of a leap February.
STARTS_MS = (1_796_025_600_123, 1_835_395_000_000)
REMEMBER_MS = 200_000
# Whole seconds, just beside them, a minute and a lease and just beside those, an hour, a day, a month.
STEPS_MS = (0, 0, 0, 1, 17, 999, 1_000, 1_001, 7_000, 29_999, 30_000, 59_999, 60_000, 61_000, 3_600_000, 86_400_000)
_SCOPES = ("t", "k:a", "m:small-*")


@dataclass(frozen=True)
class Step:
    """A call, so many milliseconds after the one before."""

    after_ms: int
    call: Reserve | Settlement | Sequence[Bound]


@st.composite
def bound_sets(draw: st.DrawFn) -> tuple[Bound, ...]:
    kinds = st.lists(st.tuples(st.sampled_from(_SCOPES), st.sampled_from(Kind)), unique=True, min_size=1, max_size=6)
    return tuple(Bound(scope, kind, draw(st.sampled_from((1, 2, 3, 5, 10, 1000)))) for scope, kind in draw(kinds))


@st.composite
def steps(draw: st.DrawFn, *, most: int = 60) -> list[Step]:
    """Ids are those of earlier reservations, told again, or never reserved."""
    sets = draw(st.lists(bound_sets(), min_size=1, max_size=3))
    made: list[Step] = []
    ids = ["never"]
    for _ in range(draw(st.integers(1, most))):
        bounds = draw(st.sampled_from(sets))
        kind = draw(st.sampled_from("rrrsssl"))
        call: Reserve | Settlement | Sequence[Bound] = bounds
        if kind == "r":
            reservation_id = draw(st.sampled_from([f"r{len(ids)}"] * 9 + ids[-1:]))
            ids.append(reservation_id)
            units, lease_ms = draw(st.sampled_from((0, 1, 3, 900))), draw(st.sampled_from((1_000, 30_000, 600_000)))
            call = Reserve(reservation_id, bounds, units, lease_ms, draw(st.booleans()) and draw(st.booleans()))
        elif kind == "s":
            call = Settlement(
                draw(st.sampled_from(ids[-6:])),
                bounds,
                draw(st.sampled_from((0, 1, 3, 1000))),
                draw(st.integers(0, 3)) > 0,
                draw(st.sampled_from((0, 0, 0, 500, 3_000, 59_999, 60_000, 86_400_000))),
                draw(st.sampled_from(("", "", "", "one", "two"))),
            )
        made.append(Step(draw(st.sampled_from(STEPS_MS)), call))
    return made
