"""What a session has to send, bounded whatever its reader does.

Deltas wait by key. While the writer is busy, deltas of one key grow together: text is appended, counts are replaced,
and so a slow reader costs one pending delta a choice, not one a token. `take` cuts what waits into messages under a
size limit, round by round: a round is the keys that waited when it began, smallest first, and each gives one message
at most, so that a token does not wait for the floods beside it and a flood only for one round. Bare refusals go before
all: a gateway may move a request only while none of its choices has spoken. When the bytes that wait pass
`limit_bytes`, the largest choices are given up: their text is dropped, an error takes its place, and their keys are
returned to be aborted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from inferway.errors import ApiError, Reason

from .choice import Delta, Usage
from .logprobs import ScoredToken

# A StepBatch stays under 256 KiB (worker.proto); the rest is room for what an estimate misses.
BATCH_BYTES = 252 << 10
SESSION_BYTES = 64 << 20
# Key, counts, usage and framing of one delta on the wire, generously.
_FIXED_BYTES = 96
# Framing and number of one log-probability.
_TOKEN_BYTES = 24


class Piece(NamedTuple):
    """What a message can carry of a delta, besides its counts."""

    text: str
    logprobs: Sequence[ScoredToken] = ()
    prompt_logprobs: Sequence[ScoredToken] = ()


class Pending:
    """One key's share of the outbox: its newest delta, and the pieces of all once they are several."""

    __slots__ = ("delta", "pieces", "size_bytes")

    def __init__(self, delta: Delta, size_bytes: int) -> None:
        self.delta = delta
        self.pieces: deque[Piece] | None = None
        self.size_bytes = size_bytes

    def merge(self, delta: Delta) -> None:
        self.in_pieces().append(_piece(delta))
        waiting, self.delta = self.delta, delta
        delta.finish_reason = delta.finish_reason or waiting.finish_reason
        delta.usage = delta.usage or waiting.usage
        delta.error = delta.error or waiting.error

    def in_pieces(self) -> deque[Piece]:
        if self.pieces is None:
            self.pieces = deque((_piece(self.delta),))
        return self.pieces

    def whole(self) -> Delta:
        if self.pieces is not None:
            _fill(self.delta, self.pieces)
        return self.delta


class Outbox:
    def __init__(self, *, batch_bytes: int = BATCH_BYTES, limit_bytes: int = SESSION_BYTES) -> None:
        self._pending: dict[int, Pending] = {}
        self._batch_bytes = batch_bytes
        self._limit_bytes = limit_bytes
        self._size_bytes = 0
        # What is left of the present round, the next one last.
        self._round: list[tuple[int, Pending]] = []

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, key: int) -> bool:
        """Whether something of this key waits."""
        return key in self._pending

    @property
    def size_bytes(self) -> int:
        """An upper estimate of what waits."""
        return self._size_bytes

    def put(self, key: int, delta: Delta) -> Sequence[int]:
        """Add a delta, the outbox's own from now on; returns the keys that had to be given up, nearly always none."""
        size_bytes = _size_bytes(delta)
        if delta.error is not None:
            size_bytes += _text_bytes(delta.error.message)
        pending = self._pending.get(key)
        if pending is None:
            self._pending[key] = Pending(delta, _FIXED_BYTES + size_bytes)
            self._size_bytes += _FIXED_BYTES + size_bytes
        else:
            pending.merge(delta)
            self._grow(pending, size_bytes)
        return self._give_up_largest() if self._size_bytes > self._limit_bytes else ()

    def tell_usage(self, key: int, usage: Usage) -> None:
        """Put the final counts beside the error of a key that was given up."""
        self._pending[key].delta.usage = usage

    def take(self) -> list[tuple[int, Delta]]:
        """The next message's deltas; empty when nothing waits."""
        batch: list[tuple[int, Delta]] = []
        room = self._batch_bytes
        while self._pending:
            if not self._round:
                self._begin_round()
            key, pending = self._round[-1]
            if pending.size_bytes <= room:
                self._round.pop()
                del self._pending[key]
                self._size_bytes -= pending.size_bytes
                room -= pending.size_bytes
                batch.append((key, pending.whole()))
            elif batch:
                break
            else:
                self._round.pop()
                batch.append((key, self._cut(pending)))
                break
        return batch

    def _begin_round(self) -> None:
        self._round = sorted(self._pending.items(), key=_turn)
        self._round.reverse()

    def _cut(self, pending: Pending) -> Delta:
        """As much of a delta that is larger than a message as fits into one; the rest waits for the next round."""
        room = self._batch_bytes - _FIXED_BYTES
        pieces = pending.in_pieces()
        shown: list[Piece] = []
        while pieces:
            piece = pieces.popleft()
            size_bytes = _size_bytes(piece)
            if size_bytes > room and not shown and len(parts := _split(piece, room)) > 1:
                pieces.extendleft(reversed(parts))
                self._grow(pending, sum(map(_size_bytes, parts)) - size_bytes)
                continue
            if size_bytes > room and shown:
                pieces.appendleft(piece)
                break
            shown.append(piece)
            room -= size_bytes
            self._grow(pending, -size_bytes)
        delta = pending.delta
        usage = delta.usage
        if delta.finish_reason is None and delta.error is None:
            delta.usage = None  # told; the last delta's is told with it
        part = Delta("", delta.completion_tokens, usage=usage)
        _fill(part, shown)
        return part

    def _grow(self, pending: Pending, size_bytes: int) -> None:
        pending.size_bytes += size_bytes
        self._size_bytes += size_bytes

    def _give_up_largest(self) -> list[int]:
        given_up: list[int] = []
        by_size = sorted(self._pending, key=lambda key: self._pending[key].size_bytes, reverse=True)
        for key in by_size:
            # Well below the limit, so that the next token does not come here again.
            if self._size_bytes <= self._limit_bytes * 3 // 4:
                break
            pending = self._pending[key]
            delta = pending.delta
            if delta.error is None:
                if delta.finish_reason is None:
                    given_up.append(key)
                error = ApiError(Reason.OVERLOADED, "Too much output waited unread for this request; it was given up.")
                pending.delta = Delta("", delta.completion_tokens, usage=delta.usage, error=error)
                pending.pieces = None
                self._grow(pending, _FIXED_BYTES + _text_bytes(error.message) - pending.size_bytes)
        return given_up


def _turn(item: tuple[int, Pending]) -> int:
    pending = item[1]
    is_bare_error = pending.delta.error is not None and pending.pieces is None and not pending.delta.text
    return 0 if is_bare_error else pending.size_bytes


def _piece(delta: Delta) -> Piece:
    return Piece(delta.text, delta.logprobs, delta.prompt_logprobs)


def _fill(delta: Delta, pieces: Iterable[Piece]) -> None:
    """Make a delta say what these pieces do."""
    texts: list[str] = []
    logprobs: list[ScoredToken] = []
    prompt_logprobs: list[ScoredToken] = []
    for piece in pieces:
        texts.append(piece.text)
        logprobs += piece.logprobs
        prompt_logprobs += piece.prompt_logprobs
    delta.text = "".join(texts)
    if logprobs or prompt_logprobs:
        delta.logprobs, delta.prompt_logprobs = logprobs, prompt_logprobs


def _split(piece: Piece, size_bytes: int) -> list[Piece]:
    """In pieces of at most this size, all at once: a cut that left the rest whole would copy it each time."""
    # Four bytes is the most that UTF-8 makes of a character.
    length = size_bytes if piece.text.isascii() else size_bytes // 4
    texts = [piece.text[start : start + length] for start in range(0, len(piece.text), length)]
    return [
        *(Piece("", prompt_logprobs=some) for some in _groups(piece.prompt_logprobs, size_bytes)),
        *map(Piece, texts),
        *(Piece("", some) for some in _groups(piece.logprobs, size_bytes)),
    ]


def _groups(tokens: Sequence[ScoredToken], size_bytes: int) -> Iterator[Sequence[ScoredToken]]:
    """Neighbours that are no larger together, at least one."""
    start, so_far = 0, 0
    for place, token in enumerate(tokens):
        so_far += _token_bytes(token)
        if so_far > size_bytes and place > start:
            yield tokens[start:place]
            start, so_far = place, _token_bytes(token)
    if start < len(tokens):
        yield tokens[start:]


def _size_bytes(piece: Piece | Delta) -> int:
    size_bytes = _text_bytes(piece.text)
    if piece.logprobs or piece.prompt_logprobs:
        size_bytes += sum(map(_token_bytes, (*piece.logprobs, *piece.prompt_logprobs)))
    return size_bytes


def _token_bytes(token: ScoredToken) -> int:
    """On the wire, generously."""
    return _TOKEN_BYTES * (1 + len(token.top)) + len(token.token) + sum(len(other) for other, _ in token.top)


def _text_bytes(text: str) -> int:
    """Bytes in UTF-8; exact for ASCII, else an upper bound."""
    return len(text) if text.isascii() else 4 * len(text)
