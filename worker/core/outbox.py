"""What a session has to send, bounded whatever its reader does.

Deltas wait by key, in the order in which their keys first moved. While the writer is busy, deltas of one key grow
together: text is appended, counts are replaced, and so a slow reader costs one pending delta a choice, not one a
token. `take` cuts them into messages under a size limit. When the bytes that wait pass `limit_bytes`, the largest
choices are given up: their text is dropped, an error takes its place, and their keys are returned to be aborted.
"""

from __future__ import annotations

from inferway.errors import ApiError, Reason

from ..engine import FinishReason
from .choice import Delta, Usage

# A StepBatch stays under 256 KiB (worker.proto); the rest is room for what an estimate misses.
BATCH_BYTES = 252 << 10
SESSION_BYTES = 64 << 20
# Key, counts, usage and framing of one delta on the wire, generously.
_FIXED_BYTES = 96


class Pending:
    """One key's share of the outbox."""

    __slots__ = ("completion_tokens", "error", "finish_reason", "sent", "size_bytes", "texts", "usage")

    def __init__(self) -> None:
        self.texts: list[str] = []
        # Leading texts that a cut has sent already.
        self.sent = 0
        self.size_bytes = _FIXED_BYTES
        self.completion_tokens = 0
        self.finish_reason: FinishReason | None = None
        self.usage: Usage | None = None
        self.error: ApiError | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class Outbox:
    def __init__(self, *, batch_bytes: int = BATCH_BYTES, limit_bytes: int = SESSION_BYTES) -> None:
        self._pending: dict[int, Pending] = {}
        self._batch_bytes = batch_bytes
        self._limit_bytes = limit_bytes
        self._size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, key: int) -> bool:
        """Whether something of this key waits."""
        return key in self._pending

    @property
    def size_bytes(self) -> int:
        """An upper estimate of what waits."""
        return self._size_bytes

    def put(self, key: int, delta: Delta) -> list[int]:
        """Add a delta; returns the keys that had to be given up, nearly always none."""
        pending = self._pending.get(key)
        if pending is None:
            pending = self._pending[key] = Pending()
            self._size_bytes += _FIXED_BYTES
        if delta.text:
            pending.texts.append(delta.text)
            self._grow(pending, _text_bytes(delta.text))
        if delta.error is not None:
            pending.error = delta.error
            self._grow(pending, _text_bytes(delta.error.message))
        pending.completion_tokens = delta.completion_tokens
        if delta.finish_reason is not None:
            pending.finish_reason = delta.finish_reason
        if delta.usage is not None:
            pending.usage = delta.usage
        return self._give_up_largest() if self._size_bytes > self._limit_bytes else []

    def take(self) -> list[tuple[int, Delta]]:
        """The next message's deltas, oldest key first; empty when nothing waits."""
        batch: list[tuple[int, Delta]] = []
        room = self._batch_bytes
        while self._pending:
            key, pending = next(iter(self._pending.items()))
            if pending.size_bytes <= room:
                del self._pending[key]
                self._size_bytes -= pending.size_bytes
                room -= pending.size_bytes
                batch.append((key, _delta(pending)))
            elif batch:
                break
            else:
                batch.append((key, self._cut(pending)))
                break
        return batch

    def _cut(self, pending: Pending) -> Delta:
        """As much of a delta that is larger than a message as fits into one; the rest stays first in line."""
        room = self._batch_bytes - _FIXED_BYTES
        shown: list[str] = []
        while pending.sent < len(pending.texts):
            text = pending.texts[pending.sent]
            size_bytes = _text_bytes(text)
            if size_bytes > room:
                if not shown:
                    # Four bytes is the most that UTF-8 makes of a character.
                    shown.append(text[: room // 4])
                    pending.texts[pending.sent] = rest = text[room // 4 :]
                    self._grow(pending, _text_bytes(rest) - size_bytes)
                break
            shown.append(text)
            pending.sent += 1
            room -= size_bytes
            self._grow(pending, -size_bytes)
        usage = pending.usage
        if not pending.is_last:
            pending.usage = None
        return Delta("".join(shown), pending.completion_tokens, usage=usage)

    def _grow(self, pending: Pending, size_bytes: int) -> None:
        pending.size_bytes += size_bytes
        self._size_bytes += size_bytes

    def _give_up_largest(self) -> list[int]:
        given_up = []
        by_size = sorted(self._pending, key=lambda key: self._pending[key].size_bytes, reverse=True)
        for key in by_size:
            # Well below the limit, so that the next token does not come here again.
            if self._size_bytes <= self._limit_bytes * 3 // 4:
                break
            pending = self._pending[key]
            if pending.error is None:
                ended = pending.finish_reason is not None
                self._size_bytes -= pending.size_bytes
                pending.texts, pending.sent, pending.size_bytes = [], 0, _FIXED_BYTES
                self._size_bytes += _FIXED_BYTES
                pending.finish_reason = None
                pending.error = ApiError(
                    Reason.OVERLOADED, "Too much output waited unread for this request; it was given up."
                )
                self._grow(pending, _text_bytes(pending.error.message))
                if not ended:
                    given_up.append(key)
        return given_up


def _delta(pending: Pending) -> Delta:
    text = "".join(pending.texts[pending.sent :] if pending.sent else pending.texts)
    return Delta(text, pending.completion_tokens, pending.finish_reason, pending.usage, pending.error)


def _text_bytes(text: str) -> int:
    """Bytes in UTF-8; exact for ASCII, else an upper bound."""
    return len(text) if text.isascii() else 4 * len(text)
