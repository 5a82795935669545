"""Which workers hold which blocks of KV cache, one by one: for workers that tell what enters and leaves their caches.

What they tell may be from anywhere in chains. Block hashes are chained (inferway/blocks.py), so a hash stands for a
whole prefix and a flat map from hash to holders does the work of a tree. Holders are a bit mask, so that one lookup
tells of all workers. Whoever holds a block holds those before it in its chain, as caches evict leaves first; so a long
prompt is matched with a few lookups.

For each worker stretches of chains that nothing branches off are kept as one run, and runs in order of use, each behind
those that continue it: the first in the order is always a leaf, and it is evicted from its end.

Cost: match O(ends of matches * log blocks); insert O(log blocks + runs of the chain + new blocks), amortised over
evictions; store O(blocks).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field


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
    bit: int
    capacity: int
    runs: dict[int, _Run] = field(default_factory=dict)
    # Least recently used first.
    order: OrderedDict[_Run, None] = field(default_factory=OrderedDict)


class Told:
    def __init__(self) -> None:
        # By worker number.
        self._holders: dict[int, _Holder] = {}
        self._masks: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._holders)

    def __contains__(self, number: int) -> bool:
        return number in self._holders

    def all_blocks(self) -> KeysView[int]:
        """Those that anybody holds."""
        return self._masks.keys()

    def add(self, number: int, capacity: int) -> None:
        """Make a worker known, or change the bound of a known one."""
        holder = self._holders.setdefault(number, _Holder(1 << number, capacity))
        holder.capacity = capacity
        self._evict(holder)

    def forget(self, number: int) -> None:
        self.clear(number)
        del self._holders[number]

    def clear(self, number: int) -> None:
        holder = self._holders[number]
        self._drop(holder.runs, holder.bit)
        holder.runs.clear()
        holder.order.clear()

    def blocks(self, number: int) -> int:
        """How many a worker holds."""
        return len(self._holders[number].runs)

    def insert(self, number: int, hashes: Sequence[int]) -> None:
        """The worker holds the blocks of this chain (given from the start of the prompt) as of now."""
        holder = self._holders[number]
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

    def store(self, number: int, blocks: Sequence[int]) -> None:
        """The worker says that it holds these blocks as of now.

        They may be of several chains, from anywhere in them; where two follow each other the first stands before.
        """
        holder = self._holders[number]
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

    def remove(self, number: int, hashes: Iterable[int]) -> None:
        """The worker no longer holds these blocks."""
        holder = self._holders[number]
        self._drop([block for block in hashes if holder.runs.pop(block, None) is not None], holder.bit)

    def match(self, hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Masks of workers, each worker in one, and how many blocks these hold from the start of the chain.

        Whoever holds a block holds those before it, as caches evict leaves first. So only where the holders of two
        blocks differ is there a look at those between, and a long prompt costs a few lookups for each end of a match.
        """
        masks = self._masks
        first = masks.get(hashes[0], 0) if hashes else 0
        if not first:
            return
        last = masks.get(hashes[-1], 0) & first
        if last:
            yield last, len(hashes)
        spans = [(0, first, len(hashes) - 1, last)]
        while spans:
            low, at_low, high, at_high = spans.pop()
            if at_low == at_high:
                continue
            if high - low <= 1:
                yield at_low ^ at_high, high
                continue
            middle = (low + high) // 2
            at_middle = masks.get(hashes[middle], 0) & at_low | at_high
            spans.append((low, at_low, middle, at_middle))
            spans.append((middle, at_middle, high, at_high))

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
