"""What a worker keeps beside a request, so that another gateway can book it where its own has died."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace

from inferway.ledger import LedgerEntry

from ..ledger import settlement_of
from ..sse import Usage
from .calls import Settlement
from .policy import Bound, Kind, TokenWeights

# What a worker keeps at most (worker.proto, Generate.settlement).
MOST_BYTES = 2048


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Opaque to the worker."""

    # As far as it is known before the end.
    entry: LedgerEntry
    # Of each scope the kinds: what they allow does not matter any more.
    bounds: Sequence[tuple[str, Sequence[str]]]
    weights: TokenWeights
    # Which of the request's prompts it is: a worker counts the prompt of each note once.
    prompt: int

    def encode(self) -> bytes:
        """At most MOST_BYTES: where names are so long that they do not fit, the last scopes are left out.

        What is left out is not counted if the gateway dies; the ledger's entry is whole all the same.
        """
        note, data = self, _encoder.encode(self)
        while len(data) > MOST_BYTES and note.bounds:
            note = replace(note, bounds=note.bounds[:-1])
            data = _encoder.encode(note)
        return data

    def settlement(self, usage: Usage, *, part: str, outcome: str, worker: str, age_ms: int) -> Settlement:
        """Books what one worker has produced, apart from what others have."""
        return settlement_of(
            replace(self.entry, part=part, outcome=outcome, worker=worker),
            usage,
            bounds=[Bound(scope, Kind(kind), 0) for scope, kinds in self.bounds for kind in kinds],
            weights=self.weights,
            age_ms=age_ms,
        )


def note_of(entry: LedgerEntry, bounds: Sequence[Bound], weights: TokenWeights, *, prompt: int = 0) -> Note:
    scopes = [(scope, [one.kind.value for one in some]) for scope, some in groupby(bounds, lambda one: one.scope)]
    return Note(entry=entry, bounds=scopes, weights=weights, prompt=prompt)


def decode_note(data: bytes) -> Note:
    """Raises ValueError for what is none."""
    return _decoder.decode(data)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Note)
