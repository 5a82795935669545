"""A worker's prefix cache: blocks by chained hash, locked while requests run on them, evicted by age.

A chain is always used from its start, so a parent is never older than its child: one queue in order of use, the
deepest block of a chain first, evicts leaves before their parents without a tree. Locked blocks stand outside of it.
Cost: one dictionary operation a block for match, lock, add and unlock; O(1) for an eviction.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class PrefixCache:
    def __init__(self) -> None:
        # How many requests run on each block that is here.
        self._locks: dict[int, int] = {}
        # Those that nobody runs on, the one to be evicted first.
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._locks)

    @property
    def locked_blocks(self) -> int:
        return len(self._locks) - len(self._idle)

    def match(self, hashes: Iterable[int]) -> int:
        """How many leading blocks of the chain are here."""
        locks, depth = self._locks, 0
        for block in hashes:
            if block not in locks:
                break
            depth += 1
        return depth

    def idle_among(self, hashes: Iterable[int]) -> int:
        """How many of these blocks, which are here, nobody runs on."""
        idle = self._idle
        return sum(block in idle for block in hashes)

    def lock(self, hashes: Iterable[int]) -> None:
        """Keep these blocks of a chain, which are here, until `unlock`."""
        locks, idle = self._locks, self._idle
        for block in hashes:
            count = locks[block]
            locks[block] = count + 1
            if not count:
                del idle[block]

    def add(self, hashes: Iterable[int]) -> list[int]:
        """Put the next blocks of a locked chain here, locked too; returns those that are new."""
        locks, idle, new = self._locks, self._idle, []
        for block in hashes:
            count = locks.get(block)
            if count is None:
                new.append(block)
                locks[block] = 1
            else:
                locks[block] = count + 1
                if not count:
                    del idle[block]
        return new

    def unlock(self, hashes: Sequence[int]) -> None:
        """A request that had locked the chain (given from its start) has ended, which counts as its last use."""
        locks, idle = self._locks, self._idle
        for block in reversed(hashes):
            count = locks[block] - 1
            locks[block] = count
            if not count:
                idle[block] = None

    def evict(self, blocks: int) -> list[int]:
        """Remove up to so many blocks that nobody runs on; returns them."""
        gone = []
        for _ in range(min(blocks, len(self._idle))):
            block, _ = self._idle.popitem(last=False)
            del self._locks[block]
            gone.append(block)
        return gone
