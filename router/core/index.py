"""The prefix index of one model: which workers hold which blocks of KV cache.

Two parts with the same face. Of most workers there are predictions: whole chains, kept as a radix tree (chains.py). Of
those that tell what enters and leaves their caches the blocks are kept one by one (told.py), as they come from anywhere
in chains: that costs a lookup a block. A worker changes to the second when it tells for the first time.

For each worker the blocks are bounded by its KV capacity. Not handled: blocks on host memory or disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
from numpy.typing import NDArray

from .chains import Chains
from .told import Told

# Blocks by worker number.
Depths = NDArray[np.float64]

# Up to so many workers are noted one by one; more through an array.
_FEW = 4


class PrefixIndex:
    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._size = 0
        self._chains = Chains()
        self._told = Told()

    def __len__(self) -> int:
        """Distinct blocks that anybody holds. They are counted one by one."""
        told = self._told.all_blocks()
        return len(told) + sum(block not in told for block in self._chains.all_blocks())

    def add_worker(self, worker_id: str, *, capacity_blocks: int) -> None:
        """Make a worker known, or change the bound of a known one."""
        number = self._numbers.get(worker_id)
        if number is None:
            taken = set(self._numbers.values())
            number = self._numbers[worker_id] = next(number for number in count() if number not in taken)
            self._size = max(self._size, number + 1)
        self._part(number).add(number, capacity_blocks)

    def number(self, worker_id: str) -> int:
        """Of a known worker, in what `match` gives: the least that was free when it came."""
        return self._numbers[worker_id]

    def forget(self, worker_id: str) -> None:
        """Drop a worker with all its blocks; unknown ones are ignored."""
        number = self._numbers.pop(worker_id, None)
        if number is not None:
            self._part(number).forget(number)
            self._size = max(self._numbers.values(), default=-1) + 1

    def clear(self, worker_id: str) -> None:
        """Drop all blocks of a known worker."""
        number = self._numbers[worker_id]
        self._part(number).clear(number)

    def insert(self, worker_id: str, hashes: Sequence[int]) -> None:
        """The known worker holds the blocks of this chain (given from the start of the prompt) as of now."""
        number = self._numbers[worker_id]
        self._part(number).insert(number, hashes)

    def store(self, worker_id: str, blocks: Sequence[int]) -> None:
        """The known worker says that it holds these blocks as of now.

        They may be of several chains, from anywhere in them; where two follow each other the first stands before.
        """
        self._told.store(self._telling(worker_id), blocks)

    def remove(self, worker_id: str, hashes: Sequence[int]) -> None:
        """The known worker says that it no longer holds these blocks."""
        self._told.remove(self._telling(worker_id), hashes)

    def match(self, hashes: Sequence[int]) -> Depths:
        """By worker number: how many blocks the worker holds from the start of the chain."""
        depths = np.zeros(self._size)
        for bits, depth in self._chains.match(hashes):
            self._note(bits, depth, depths)
        if self._told:
            for bits, depth in self._told.match(hashes):
                self._note(bits, depth, depths)
        return depths

    def blocks(self, worker_id: str) -> int:
        """How many blocks the index holds for a worker."""
        number = self._numbers.get(worker_id)
        return self._part(number).blocks(number) if number is not None else 0

    def _part(self, number: int) -> Chains | Told:
        return self._told if number in self._told else self._chains

    def _telling(self, worker_id: str) -> int:
        """The number of a worker that tells of its blocks, from now on if not before; what was predicted stays."""
        number = self._numbers[worker_id]
        if number not in self._told:
            self._told.add(number, self._chains.capacity(number))
            for hashes in self._chains.chains(number):
                self._told.insert(number, hashes)
            self._chains.forget(number)
        return number

    def _note(self, bits: int, depth: int, depths: Depths) -> None:
        if bits.bit_count() <= _FEW:
            while bits:
                depths[(bits & -bits).bit_length() - 1] = depth
                bits &= bits - 1
            return
        if bits == (1 << self._size) - 1:
            depths.fill(depth)
            return
        packed = np.frombuffer(bits.to_bytes((self._size + 7) // 8, "little"), np.uint8)
        depths[np.unpackbits(packed, count=self._size, bitorder="little").view(np.bool_)] = depth
