"""What a watcher is told about the KV cache: every change in order, or everything anew.

`CacheContents` mirrors the engine's cache from its events. A `WatchFeed` belongs to one Watch stream and numbers its
events from 1. It starts with `cleared` and the present contents of each model; when its reader falls so far behind
that `limit_blocks` wait, it drops them, skips their numbers, which the reader sees as a gap, and starts anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared, KvEvent

# Hashes in one report: 256 KiB at 8 bytes each.
REPORT_BLOCKS = 32_768
# Hashes that may wait for a slow reader.
LIMIT_BLOCKS = 1 << 20


class CacheContents:
    """The blocks that the engine holds, per model, parents before children."""

    def __init__(self) -> None:
        # A dict keeps insertion order, and a block never enters before its parent.
        self._blocks: dict[str, dict[int, None]] = {}

    def apply(self, events: Iterable[KvEvent]) -> None:
        for event in events:
            blocks = self._blocks.setdefault(event.model, {})
            match event:
                case BlocksStored():
                    blocks.update(dict.fromkeys(event.block_hashes))
                case BlocksRemoved():
                    for block_hash in event.block_hashes:
                        blocks.pop(block_hash, None)
                case CacheCleared():
                    blocks.clear()

    def describe(self, models: Iterable[str]) -> Iterator[KvEvent]:
        """Events that build the present contents from nothing."""
        for model in models:
            yield CacheCleared(model)
            hashes = list(self._blocks.get(model, ()))
            for start in range(0, len(hashes), REPORT_BLOCKS):
                yield BlocksStored(model, hashes[start : start + REPORT_BLOCKS])


@dataclass(frozen=True, slots=True)
class EventBatch:
    """`first` is the number of the first event; 0 when there is none."""

    first: int
    events: Sequence[KvEvent]


class WatchFeed:
    def __init__(self, contents: CacheContents, models: Sequence[str], *, limit_blocks: int = LIMIT_BLOCKS) -> None:
        """`contents` is read when the feed starts anew; apply events to it before `add`."""
        self._contents = contents
        self._models = models
        self._limit_blocks = limit_blocks
        self._events: list[KvEvent] = []
        self._blocks = 0
        self._allowed_blocks = limit_blocks
        self._next = 1
        self._must_restart = True

    def add(self, events: Sequence[KvEvent]) -> None:
        """Events that have just happened."""
        if self._must_restart:
            return  # the contents will hold them
        self._events.extend(events)
        self._blocks += sum(_size(event) for event in events)
        if self._blocks > self._allowed_blocks:
            self._next += len(self._events)
            self._events, self._blocks, self._must_restart = [], 0, True

    @property
    def has_more(self) -> bool:
        return bool(self._events) or self._must_restart

    def take(self) -> EventBatch:
        """The next events, as many as fit into one report, at least one."""
        if self._must_restart:
            self._must_restart = False
            self._events = list(self._contents.describe(self._models))
            self._blocks = sum(_size(event) for event in self._events)
            # A cache larger than the limit must still be told once.
            self._allowed_blocks = self._limit_blocks + self._blocks
        if not self._events:
            return EventBatch(0, ())
        count, blocks = 0, 0
        for event in self._events:
            blocks += _size(event)
            if count and blocks > REPORT_BLOCKS:
                break
            count += 1
        batch = EventBatch(self._next, self._events[:count])
        del self._events[:count]
        self._blocks -= sum(_size(event) for event in batch.events)
        self._next += count
        return batch


def _size(event: KvEvent) -> int:
    return 1 if isinstance(event, CacheCleared) else len(event.block_hashes)
