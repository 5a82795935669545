"""What a worker keeps beside a request, so that another gateway can book it where its own has died."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from inferway.ledger import LedgerEntry

from ..ledger import settlement_of
from ..sse import Usage
from .calls import Settlement
from .policy import Bound, Kind, TokenWeights


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Opaque to the worker."""

    # As far as it is known before the end.
    entry: LedgerEntry
    # Scope and kind of each: what they allow does not matter any more.
    bounds: Sequence[tuple[str, str]]
    weights: TokenWeights
    # Which of the request's prompts it is: a worker counts the prompt of each note once.
    prompt: int

    def encode(self) -> bytes:
        return _encoder.encode(self)

    def settlement(self, usage: Usage, *, part: str, outcome: str, worker: str, age_ms: int) -> Settlement:
        """Books what one worker has produced, apart from what others have."""
        return settlement_of(
            replace(self.entry, part=part, outcome=outcome, worker=worker),
            usage,
            bounds=[Bound(scope, Kind(kind), 0) for scope, kind in self.bounds],
            weights=self.weights,
            age_ms=age_ms,
        )


def note_of(entry: LedgerEntry, bounds: Sequence[Bound], weights: TokenWeights, *, prompt: int = 0) -> Note:
    return Note(entry=entry, bounds=[(one.scope, one.kind.value) for one in bounds], weights=weights, prompt=prompt)


def decode_note(data: bytes) -> Note:
    """Raises ValueError for what is none."""
    return _decoder.decode(data)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Note)
