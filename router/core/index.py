"""The prefix index of one model: which workers hold which block of KV cache.

Block hashes are chained (inferway/blocks.py), so a hash stands for a whole prefix and a flat map from hash to
holders does the work of a tree. Holders are a bit mask: matching a prompt is one lookup and one AND a block for all
workers together. For each worker the blocks are kept in order of use and bounded by its KV capacity; within one
insertion the deepest block counts as the least recently used, as in a radix cache that evicts leaves first.

Cost: match O(matched blocks); insert O(blocks), amortised over evictions. Not handled: whether a block of an evicted
parent is still reachable in the engine (it is dropped when its own turn comes), and blocks on host memory or disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class _Holder:
    bit: int
    capacity: int
    blocks: OrderedDict[int, None] = field(default_factory=OrderedDict)


class PrefixIndex:
    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._names: dict[int, str] = {}
        self._masks: dict[int, int] = {}

    def __len__(self) -> int:
        """Distinct blocks that anybody holds."""
        return len(self._masks)

    def add_worker(self, worker_id: str, *, capacity_blocks: int) -> None:
        """Make a worker known, or change the bound of a known one."""
        holder = self._holders.get(worker_id)
        if holder is None:
            bit = 1
            while bit in self._names:
                bit <<= 1
            self._names[bit] = worker_id
            self._holders[worker_id] = _Holder(bit, capacity_blocks)
        else:
            holder.capacity = capacity_blocks
            self._evict(holder)

    def forget(self, worker_id: str) -> None:
        """Drop a worker with all its blocks; unknown ones are ignored."""
        if worker_id in self._holders:
            self.clear(worker_id)
            del self._names[self._holders.pop(worker_id).bit]

    def clear(self, worker_id: str) -> None:
        """Drop all blocks of a known worker."""
        holder = self._holders[worker_id]
        for block in holder.blocks:
            self._drop(block, holder.bit)
        holder.blocks.clear()

    def insert(self, worker_id: str, hashes: Sequence[int]) -> None:
        """The known worker holds the blocks of this chain (given from the start of the prompt) as of now."""
        holder = self._holders[worker_id]
        bit, blocks, masks = holder.bit, holder.blocks, self._masks
        if len(hashes) > holder.capacity:
            hashes = hashes[: holder.capacity]
        for block in reversed(hashes):
            if block in blocks:
                blocks.move_to_end(block)
            else:
                blocks[block] = None
                masks[block] = masks.get(block, 0) | bit
        self._evict(holder)

    def remove(self, worker_id: str, hashes: Iterable[int]) -> None:
        """The known worker no longer holds these blocks."""
        holder = self._holders[worker_id]
        for block in hashes:
            if block in holder.blocks:
                del holder.blocks[block]
                self._drop(block, holder.bit)

    def match(self, hashes: Iterable[int]) -> dict[str, int]:
        """For each worker that holds at least the first block: how many blocks it holds from the start."""
        matched: dict[str, int] = {}
        masks, alive, depth = self._masks, -1, 0
        for block in hashes:
            still = masks.get(block, 0) & alive
            if still != alive:
                if depth:
                    self._note(alive ^ still, depth, matched)
                if not still:
                    return matched
                alive = still
            depth += 1
        if depth:
            self._note(alive, depth, matched)
        return matched

    def blocks(self, worker_id: str) -> int:
        """How many blocks the index holds for a worker."""
        holder = self._holders.get(worker_id)
        return len(holder.blocks) if holder is not None else 0

    def _note(self, bits: int, depth: int, matched: dict[str, int]) -> None:
        while bits:
            bit = bits & -bits
            matched[self._names[bit]] = depth
            bits ^= bit

    def _evict(self, holder: _Holder) -> None:
        while len(holder.blocks) > holder.capacity:
            block, _ = holder.blocks.popitem(last=False)
            self._drop(block, holder.bit)

    def _drop(self, block: int, bit: int) -> None:
        mask = self._masks[block] & ~bit
        if mask:
            self._masks[block] = mask
        else:
            del self._masks[block]
