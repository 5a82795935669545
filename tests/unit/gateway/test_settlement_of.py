"""What the books are told of a request."""

from __future__ import annotations

from gateway.core.ledger import settlement_of
from gateway.core.quota.policy import Bound, Kind, TokenWeights
from gateway.core.sse import Usage
from inferway.ledger import LedgerEntry, entry_of

ENTRY = LedgerEntry(reservation_id="r-1", tenant="acme", key="laptop", model="chat", outcome="ok", priority=5)
BOUNDS = (Bound("t", Kind.TOKENS_PER_MINUTE, 1000),)
USAGE = Usage(prompt_tokens=100, completion_tokens=10, cached_tokens=64, reasoning_tokens=4)


def test_the_entry_and_the_books_say_the_same() -> None:
    """Units by the tenant's weights, tokens as they were counted, in one call."""
    weights = TokenWeights(input=1, cached=0.1, output=3)
    settlement = settlement_of(ENTRY, USAGE, bounds=BOUNDS, weights=weights, age_ms=7)
    assert (settlement.reservation_id, settlement.bounds, settlement.age_ms) == ("r-1", BOUNDS, 7)
    assert settlement.units == 36_000 + 6_400 + 30_000
    entry = entry_of({**dict(settlement.record), "finished_ms": "1"})
    assert (entry.tenant, entry.key, entry.priority, entry.units) == ("acme", "laptop", 5, settlement.units)
    counts = (entry.prompt_tokens, entry.cached_tokens, entry.completion_tokens, entry.reasoning_tokens)
    assert counts == (100, 64, 10, 4)


def test_what_reached_no_worker_leaves_no_entry() -> None:
    """It frees what it held and costs nothing, whatever its prompt was."""
    settlement = settlement_of(ENTRY, USAGE, bounds=BOUNDS, weights=TokenWeights(), is_request=False)
    assert (settlement.units, settlement.is_request, settlement.record) == (0, False, ())
    assert settlement.bounds == BOUNDS


def test_parts_have_entries_of_their_own() -> None:
    """Each is told under its name."""
    settlement = settlement_of(
        LedgerEntry(reservation_id="r", part="2", tenant="t", outcome="ok"), USAGE, weights=TokenWeights()
    )
    assert settlement.part == "2"
    assert entry_of({**dict(settlement.record), "finished_ms": "1"}).entry_id == "r/2"
