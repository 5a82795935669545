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
from collections.abc import Sequence

from inferway.errors import ApiError, Reason

from .choice import Delta

# A StepBatch stays under 256 KiB (worker.proto); the rest is room for what an estimate misses.
BATCH_BYTES = 252 << 10
SESSION_BYTES = 64 << 20
# Key, counts, usage and framing of one delta on the wire, generously.
_FIXED_BYTES = 96


class Pending:
    """One key's share of the outbox: its newest delta, and the texts of all once they are several."""

    __slots__ = ("delta", "size_bytes", "texts")

    def __init__(self, delta: Delta, size_bytes: int) -> None:
        self.delta = delta
        self.texts: deque[str] | None = None
        self.size_bytes = size_bytes

    def merge(self, delta: Delta) -> None:
        if self.texts is None:
            self.texts = deque((self.delta.text,))
        self.texts.append(delta.text)
        waiting, self.delta = self.delta, delta
        delta.finish_reason = delta.finish_reason or waiting.finish_reason
        delta.usage = delta.usage or waiting.usage
        delta.error = delta.error or waiting.error

    def whole(self) -> Delta:
        if self.texts is not None:
            self.delta.text = "".join(self.texts)
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
        size_bytes = _text_bytes(delta.text)
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
        if pending.texts is None:
            pending.texts = deque((pending.delta.text,))
        texts = pending.texts
        shown: list[str] = []
        while texts:
            text = texts.popleft()
            size_bytes = _text_bytes(text)
            if size_bytes > room and not shown:
                pieces = _pieces(text, room)
                texts.extendleft(reversed(pieces))
                self._grow(pending, sum(map(_text_bytes, pieces)) - size_bytes)
                continue
            if size_bytes > room:
                texts.appendleft(text)
                break
            shown.append(text)
            room -= size_bytes
            self._grow(pending, -size_bytes)
        delta = pending.delta
        usage = delta.usage
        if delta.finish_reason is None and delta.error is None:
            delta.usage = None  # told; the last delta's is told with it
        return Delta("".join(shown), delta.completion_tokens, usage=usage)

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
                pending.texts = None
                self._grow(pending, _FIXED_BYTES + _text_bytes(error.message) - pending.size_bytes)
        return given_up


def _turn(item: tuple[int, Pending]) -> int:
    pending = item[1]
    is_bare_error = pending.delta.error is not None and pending.texts is None and not pending.delta.text
    return 0 if is_bare_error else pending.size_bytes


def _pieces(text: str, size_bytes: int) -> Sequence[str]:
    """A text in pieces of at most this size, all at once: a cut that left the rest whole would copy it each time."""
    # Four bytes is the most that UTF-8 makes of a character.
    length = size_bytes if text.isascii() else size_bytes // 4
    return [text[start : start + length] for start in range(0, len(text), length)]


def _text_bytes(text: str) -> int:
    """Bytes in UTF-8; exact for ASCII, else an upper bound."""
    return len(text) if text.isascii() else 4 * len(text)
