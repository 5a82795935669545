"""What is booked, by how a request ended, and what a worker keeps for another gateway to book."""

from __future__ import annotations

import pytest

from gateway.core.quota.account import booked
from gateway.core.quota.note import decode_note, note_of
from gateway.core.quota.policy import Bound, Kind, TokenWeights
from gateway.core.sse import Usage
from inferway.errors import OUTCOMES
from inferway.ledger import LedgerEntry, entry_of
from worker.core.admission import MAX_SETTLEMENT_BYTES

NOTHING = Usage(0, 0)


@pytest.mark.parametrize(
    ("usage", "outcome", "expected"),
    [
        (Usage(10, 5, 4), "ok", Usage(10, 5, 4)),
        # A prompt alone is an answer's worth: embeddings, and scoring.
        (Usage(10, 0), "ok", Usage(10, 0)),
        (Usage(10, 0), "client_closed_request", Usage(10, 0)),
        (Usage(10, 3), "client_too_slow", Usage(10, 3)),
        (Usage(10, 0), "worker_failed", NOTHING),
        (Usage(10, 3), "worker_failed", Usage(10, 3)),
        (Usage(10, 3), "upstream_timeout", Usage(10, 3)),
        # Cut at the drain limit, in the middle.
        (Usage(10, 3), "shutting_down", Usage(10, 3)),
        # Turned away by everyone.
        (Usage(10, 0), "overloaded", None),
        (Usage(10, 0), "model_not_ready", None),
        (Usage(10, 0), "invalid_schema", NOTHING),
    ],
)
def test_what_counts(usage: Usage, outcome: str, expected: Usage | None) -> None:
    assert booked(usage, outcome) == expected


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_what_no_worker_was_asked_for_is_not_written(outcome: str) -> None:
    assert booked(None, outcome) is None


def test_a_note_books_the_same_bounds_and_weights() -> None:
    bounds = (Bound("t", Kind.TOKENS_PER_MINUTE, 1000), Bound("k:anna", Kind.PARALLEL_REQUESTS, 2))
    weights = TokenWeights(input=1, cached=0.25, output=3)
    entry = LedgerEntry(reservation_id="r", tenant="t", key="anna", model="chat", outcome="")
    note = decode_note(note_of(entry, bounds, weights, prompt=2).encode())
    assert note.prompt == 2
    settlement = note.settlement(Usage(100, 10, 40), part="w.1", outcome="gateway_lost", worker="w", age_ms=5)
    assert [bound.name for bound in settlement.bounds] == [bound.name for bound in bounds]
    assert settlement.units == 1000 * (60 + 10 + 30)
    assert (settlement.part, settlement.age_ms) == ("w.1", 5)
    kept = entry_of({**dict(settlement.record), "finished_ms": "1"})
    assert (kept.prompt_tokens, kept.completion_tokens, kept.cached_tokens) == (100, 10, 40)
    assert (kept.outcome, kept.worker, kept.entry_id) == ("gateway_lost", "w", "r/w.1")


def test_a_worker_keeps_notes_of_the_longest_names() -> None:
    """All five bounds of a tenant and of a key fit; of many model quotas as many as there is room for."""
    long = "x" * 64
    entry = LedgerEntry(
        reservation_id="r" * 32,
        request_id="i" * 128,
        tenant=long,
        project=long,
        # The longest subject of a token, in characters of four bytes.
        key=f"{long}:{chr(0x1F600) * 128}",
        model=long,
        endpoint="/v1/chat/completions",
        outcome="",
        priority=5,
        is_stream=False,
        received_ms=10**13,
    )
    scopes = ["t", f"k:{long}", *(f"m:{number}{long}" for number in range(100))]
    bounds = [Bound(scope, kind, 1) for scope in scopes for kind in Kind]
    data = note_of(entry, bounds, TokenWeights(input=0.3, cached=0.1, output=3.1)).encode()
    assert len(data) <= MAX_SETTLEMENT_BYTES
    note = decode_note(data)
    assert note.entry == entry
    kept = note.settlement(Usage(1, 1), part="p", outcome="gateway_lost", worker="w", age_ms=0).bounds
    assert [bound.name for bound in kept[:10]] == [bound.name for bound in bounds[:10]]


def test_what_is_no_note() -> None:
    for data in (b"", b"\xff", b"{}", b"\x80"):
        with pytest.raises(ValueError):
            decode_note(data)
