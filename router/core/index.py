"""The prefix index of one model: which workers hold which block of KV cache.

Block hashes are chained (inferway/blocks.py), so a hash stands for a whole prefix and a flat map from hash to
holders does the work of a tree. Holders are a bit mask, so that one lookup tells of all workers. Whoever holds a block
holds those before it in its chain, as caches evict leaves first; so a long prompt is matched with a few lookups.

For each worker the blocks are bounded by its KV capacity. Stretches of chains that nothing branches off are kept as
one run, and runs in order of use, each behind those that continue it: the first in the order is always a leaf, and it
is evicted from its end.

Cost: match O(ends of matches * log blocks); insert O(log blocks + runs of the chain + new blocks), amortised over
evictions; store O(blocks). Not handled: blocks on host memory or disk.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

# Blocks by worker number.
Depths = NDArray[np.int32]

# Up to so many workers are noted one by one; more through an array.
_FEW = 4


@dataclass(slots=True, eq=False)
class _Run:
    """Blocks that follow each other. Those that were removed out of turn may still be listed."""

    # Place of the first in its chain, and the block before it.
    start: int
    before: int | None
    blocks: list[int]
    # Another run continues it, from its end or from where it was cut.
    has_branches: bool = False


@dataclass(slots=True)
class _Holder:
    number: int
    capacity: int
    runs: dict[int, _Run] = field(default_factory=dict)
    # Least recently used first.
    order: OrderedDict[_Run, None] = field(default_factory=OrderedDict)

    @property
    def bit(self) -> int:
        return 1 << self.number


class PrefixIndex:
    def __init__(self) -> None:
        self._holders: dict[str, _Holder] = {}
        self._numbers: set[int] = set()
        self._masks: dict[int, int] = {}
        self._size = 0

    def __len__(self) -> int:
        """Distinct blocks that anybody holds."""
        return len(self._masks)

    def add_worker(self, worker_id: str, *, capacity_blocks: int) -> None:
        """Make a worker known, or change the bound of a known one."""
        holder = self._holders.get(worker_id)
        if holder is None:
            number = next(number for number in count() if number not in self._numbers)
            self._numbers.add(number)
            self._size = max(self._size, number + 1)
            holder = self._holders[worker_id] = _Holder(number, capacity_blocks)
        else:
            holder.capacity = capacity_blocks
            self._evict(holder)

    def number(self, worker_id: str) -> int:
        """Of a known worker, in what `match` gives: the least that was free when it came."""
        return self._holders[worker_id].number

    def forget(self, worker_id: str) -> None:
        """Drop a worker with all its blocks; unknown ones are ignored."""
        if worker_id in self._holders:
            self.clear(worker_id)
            self._numbers.discard(self._holders.pop(worker_id).number)
            self._size = max(self._numbers, default=-1) + 1

    def clear(self, worker_id: str) -> None:
        """Drop all blocks of a known worker."""
        holder = self._holders[worker_id]
        self._drop(holder.runs, holder.bit)
        holder.runs.clear()
        holder.order.clear()

    def insert(self, worker_id: str, hashes: Sequence[int]) -> None:
        """The known worker holds the blocks of this chain (given from the start of the prompt) as of now."""
        holder = self._holders[worker_id]
        if len(hashes) > holder.capacity:
            hashes = hashes[: holder.capacity]
        if not hashes:
            return
        held = _depth(holder.runs, hashes)
        run = holder.runs[hashes[held - 1]] if held else None
        new = hashes[held:]
        if new:
            run = _extended(holder, run, held, hashes)
            holder.runs.update(dict.fromkeys(new, run))
            self._hold(new, holder.bit)
        _use(holder, run)
        self._evict(holder)

    def store(self, worker_id: str, blocks: Sequence[int]) -> None:
        """The known worker says that it holds these blocks as of now.

        They may be of several chains, from anywhere in them; where two follow each other the first stands before.
        """
        holder = self._holders[worker_id]
        runs = holder.runs
        new = list(dict.fromkeys([block for block in blocks if block not in runs]))
        if new:
            run = _Run(0, None, new)
            runs.update(dict.fromkeys(new, run))
            self._hold(new, holder.bit)
            _use(holder, run)
        if blocks:
            _use(holder, runs[blocks[-1]])
        self._evict(holder)

    def remove(self, worker_id: str, hashes: Iterable[int]) -> None:
        """The known worker no longer holds these blocks."""
        holder = self._holders[worker_id]
        self._drop([block for block in hashes if holder.runs.pop(block, None) is not None], holder.bit)

    def match(self, hashes: Sequence[int]) -> Depths:
        """By worker number: how many blocks the worker holds from the start of the chain.

        Whoever holds a block holds those before it, as caches evict leaves first. So only where the holders of two
        blocks differ is there a look at those between, and a long prompt costs a few lookups for each end of a match.
        """
        depths = np.zeros(self._size, np.int32)
        masks = self._masks
        first = masks.get(hashes[0], 0) if hashes else 0
        if not first:
            return depths
        last = masks.get(hashes[-1], 0) & first
        if last:
            self._note(last, len(hashes), depths)
        spans = [(0, first, len(hashes) - 1, last)]
        while spans:
            low, at_low, high, at_high = spans.pop()
            if at_low == at_high:
                continue
            if high - low <= 1:
                self._note(at_low ^ at_high, high, depths)
                continue
            middle = (low + high) // 2
            at_middle = masks.get(hashes[middle], 0) & at_low | at_high
            spans.append((low, at_low, middle, at_middle))
            spans.append((middle, at_middle, high, at_high))
        return depths

    def blocks(self, worker_id: str) -> int:
        """How many blocks the index holds for a worker."""
        holder = self._holders.get(worker_id)
        return len(holder.runs) if holder is not None else 0

    def _note(self, bits: int, depth: int, depths: Depths) -> None:
        if bits.bit_count() <= _FEW:
            while bits:
                depths[(bits & -bits).bit_length() - 1] = depth
                bits &= bits - 1
            return
        packed = np.frombuffer(bits.to_bytes((self._size + 7) // 8, "little"), np.uint8)
        depths[np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)] = depth

    def _evict(self, holder: _Holder) -> None:
        """The ends of the least recently used runs, down to the bound."""
        runs = holder.runs
        while (excess := len(runs) - holder.capacity) > 0:
            run = next(iter(holder.order))
            evicted = [block for block in run.blocks[-excess:] if runs.get(block) is run]
            del run.blocks[-excess:]
            for block in evicted:
                del runs[block]
            self._drop(evicted, holder.bit)
            if not run.blocks:
                del holder.order[run]

    def _hold(self, new: Sequence[int], bit: int) -> None:
        """Blocks that the holder of the bit did not hold, in the order of their chain: those nobody holds come last."""
        masks = self._masks
        known = 0
        for block in new:
            if block not in masks:
                break
            masks[block] |= bit
            known += 1
        rest = new[known:]
        if masks.keys().isdisjoint(rest):
            masks.update(dict.fromkeys(rest, bit))
            return
        for block in rest:
            masks[block] = masks.get(block, 0) | bit

    def _drop(self, held: Iterable[int], bit: int) -> None:
        masks = self._masks
        for block in held:
            mask = masks[block] ^ bit
            if mask:
                masks[block] = mask
            else:
                del masks[block]


def _depth(held: Mapping[int, _Run], hashes: Sequence[int]) -> int:
    """How many blocks of a chain are held, from its start."""
    low, high = 0, len(hashes)
    while low < high:
        middle = (low + high) // 2
        if hashes[middle] in held:
            low = middle + 1
        else:
            high = middle
    return low


def _run_before(holder: _Holder, run: _Run) -> _Run | None:
    """What the run continues; whatever workers say of their blocks, it begins earlier."""
    before = holder.runs.get(run.before) if run.before is not None else None
    return before if before is not None and before.start < run.start else None


def _use(holder: _Holder, run: _Run | None) -> None:
    """A run is used now, and with it those that it continues."""
    while run is not None:
        holder.order[run] = None
        holder.order.move_to_end(run)
        run = _run_before(holder, run)


def _extended(holder: _Holder, run: _Run | None, held: int, hashes: Sequence[int]) -> _Run:
    """The run of the blocks behind the first `held` of a chain, which `run` has: it grows, or another one begins."""
    if run is not None:
        keeps = held - run.start
        if keeps == len(run.blocks) and not run.has_branches:
            run.blocks += hashes[held:]
            return run
        if keeps < len(run.blocks):
            # What is not on this chain's way gets a run of its own, so that it ages by itself.
            rest = _Run(held, hashes[held - 1], run.blocks[keeps:], run.has_branches)
            del run.blocks[keeps:]
            holder.runs.update({block: rest for block in rest.blocks if holder.runs.get(block) is run})
            holder.order[rest] = None
        run.has_branches = True
    return _Run(held, hashes[held - 1] if held else None, list(hashes[held:]))
