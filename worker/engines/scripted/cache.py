"""A prefix cache of blocks, as a GPU worker has one: shared prefixes, locked while they run, evicted by age.

A block is known by its model and its chained hash, so it can only be found behind its parents. A running choice
locks its path. What nobody locks stays until room is needed; then leaves go, least recently used first.
Costs: one dictionary look-up a block for match, lock and insert; O(log n) a block for eviction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

_Key = tuple[str, int]


@dataclass(slots=True)
class _Block:
    parent: _Key | None
    children: int = 0
    locks: int = 0
    used: int = 0


class BlockCache:
    def __init__(self, capacity_blocks: int) -> None:
        self.capacity_blocks = capacity_blocks
        # Blocks in the cache that a running choice needs.
        self.locked_blocks = 0
        self._blocks: dict[_Key, _Block] = {}
        # Unlocked leaves as (used, key); an entry whose block has changed since is void.
        self._leaves: list[tuple[int, _Key]] = []
        self._clock = count(1)

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, model: str, hashes: Sequence[int]) -> int:
        """How many leading blocks are in the cache."""
        for place, block_hash in enumerate(hashes):
            if (model, block_hash) not in self._blocks:
                return place
        return len(hashes)

    def lock(self, model: str, hashes: Sequence[int]) -> None:
        """Keep these blocks, which are in the cache and begin at the start of a prompt, until `unlock`."""
        for block_hash in hashes:
            block = self._blocks[model, block_hash]
            self.locked_blocks += block.locks == 0
            block.locks += 1

    def unlock(self, model: str, hashes: Sequence[int]) -> None:
        used = next(self._clock)
        for block_hash in hashes:
            key = (model, block_hash)
            block = self._blocks[key]
            block.locks -= 1
            block.used = used
            if block.locks == 0:
                self.locked_blocks -= 1
                if block.children == 0:
                    self._offer(key, block)

    def insert(self, model: str, hashes: Sequence[int], start: int) -> list[int]:
        """Add and lock hashes[start:], whose parents are locked already; returns those that are new.

        The caller has made room for them.
        """
        new = []
        for place in range(start, len(hashes)):
            key = (model, hashes[place])
            block = self._blocks.get(key)
            if block is None:
                parent = (model, hashes[place - 1]) if place else None
                block = self._blocks[key] = _Block(parent)
                if parent is not None:
                    self._blocks[parent].children += 1
                new.append(hashes[place])
            self.locked_blocks += block.locks == 0
            block.locks += 1
        return new

    def evict(self, blocks: int) -> list[_Key]:
        """Remove up to so many unlocked blocks; returns them, children before their parents."""
        gone: list[_Key] = []
        while len(gone) < blocks and self._leaves:
            used, key = heappop(self._leaves)
            block = self._blocks.get(key)
            if block is None or block.used != used or block.locks or block.children:
                continue
            del self._blocks[key]
            gone.append(key)
            if block.parent is not None:
                parent = self._blocks[block.parent]
                parent.children -= 1
                if parent.children == 0 and parent.locks == 0:
                    self._offer(block.parent, parent)
        return gone

    def _offer(self, key: _Key, block: _Block) -> None:
        heappush(self._leaves, (block.used, key))
        if len(self._leaves) > 2 * len(self._blocks) + 64:
            self._leaves = [
                (leaf.used, name) for name, leaf in self._blocks.items() if not leaf.locks and not leaf.children
            ]
            heapify(self._leaves)
