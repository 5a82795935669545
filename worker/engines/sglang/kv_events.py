"""SGLang's KV events as the seam has them. Pure.

SGLang numbers its batches from 0, one publisher a cache. A `KvMirror` takes them in order and says when one is
missing. It keeps what the cache holds, in any tier, so that a block is reported once however often it is stored, and
so that the cached part of a prompt can be told before the scheduler has seen it.

Blocks of LoRA adapters are left out: SGLang hashes them with a random secret per load, which nobody else can compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import msgspec

from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared, KvEvent

_UNSIGNED = (1 << 64) - 1


class _Event(msgspec.Struct):
    """Any of SGLang's events; what is not named here, such as token ids, is not decoded."""

    type: str
    block_hashes: list[int] = []
    medium: str | None = None
    lora_name: str | None = None


class _Batch(msgspec.Struct, array_like=True):
    at: float
    events: list[_Event]


_decoder = msgspec.msgpack.Decoder(_Batch)


class KvMirror:
    def __init__(self, model: str) -> None:
        self._model = model
        # By tier: a block that leaves the GPU may still be in the host's memory.
        self._held: dict[str | None, set[int]] = {}
        self.next_number = 0

    def __contains__(self, block_hash: int) -> bool:
        return any(block_hash in held for held in self._held.values())

    def cached_blocks(self, block_hashes: Sequence[int]) -> int:
        """How many leading blocks of a prompt the cache holds."""
        for count, block_hash in enumerate(block_hashes):
            if block_hash not in self:
                return count
        return len(block_hashes)

    def feed(self, number: int, payload: bytes) -> list[KvEvent] | None:
        """The events of batch `number`; none when it is known; None, and nothing changes, when others are missing.

        Raises msgspec.DecodeError for a payload of another format.
        """
        if number > self.next_number:
            return None
        if number < self.next_number:
            return []
        batch = _decoder.decode(payload)
        self.next_number = number + 1
        events: list[KvEvent] = []
        for event in batch.events:
            self._apply(event, events)
        return _merged(events)

    def skip_to(self, number: int) -> list[KvEvent]:
        """Batches before `number` are lost for good: forget everything and go on from there."""
        self.next_number = number
        self._held.clear()
        return [CacheCleared(self._model)]

    def _apply(self, event: _Event, events: list[KvEvent]) -> None:
        hashes = [block_hash & _UNSIGNED for block_hash in event.block_hashes]
        match event.type:
            case "BlockStored" if event.lora_name is None:
                new = [block_hash for block_hash in hashes if block_hash not in self]
                self._held.setdefault(event.medium, set()).update(hashes)
                if new:
                    events.append(BlocksStored(self._model, new))
            case "BlockRemoved":
                held = self._held.get(event.medium, set())
                known = [block_hash for block_hash in hashes if block_hash in held]
                held.difference_update(known)
                gone = [block_hash for block_hash in known if block_hash not in self]
                if gone:
                    events.append(BlocksRemoved(self._model, gone))
            case "AllBlocksCleared":
                self._held.clear()
                events.append(CacheCleared(self._model))


def _merged(events: Sequence[KvEvent]) -> list[KvEvent]:
    """Neighbours of one kind as one event: SGLang stores a block an event."""
    merged: list[KvEvent] = []
    for kind, group in groupby(events, type):
        if kind is CacheCleared:
            merged += group
        else:
            merged.append(kind(events[0].model, [one for event in group for one in _hashes(event)]))
    return merged


def _hashes(event: KvEvent) -> Sequence[int]:
    return () if isinstance(event, CacheCleared) else event.block_hashes
