"""Which workers hold which chains of blocks: a radix tree for workers of whose caches there are predictions only.

A node is a stretch of a chain that nothing branches off, with the bit mask of those that hold all of it: where a worker
holds less the node is cut in two. Block hashes are chained, so the first block of a node stands for all before it, and
one flat map from there finds the node. Whoever holds a node holds those before it.

For each worker nodes are kept in order of use, each behind those that continue it: the first in the order is always a
leaf to the worker, and it is given up from its end. When a node is cut, its front is new and gets its place in the
orders of its holders when it is used, or when what lies behind it is given up: until then nobody has used it later.
Short nodes are joined again with what continues them once the same workers hold both, and age with it from then on.

Cost: insert, match and eviction O(nodes of the chain * log of their blocks), and a copy of what is new.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# Nodes of fewer blocks are joined: a conversation that changes between workers would else become a node a turn.
_SHORT = 64


@dataclass(slots=True, eq=False)
class _Node:
    blocks: array[int]
    holders: int
    before: _Node | None
    # How many continue it.
    branches: int = 0


@dataclass(slots=True)
class _Holder:
    bit: int
    capacity: int
    held: int = 0
    # Least recently used first.
    order: OrderedDict[_Node, None] = field(default_factory=OrderedDict)


class Chains:
    def __init__(self, short: int = _SHORT) -> None:
        self._short = short
        # By worker number.
        self._holders: dict[int, _Holder] = {}
        # By their first block.
        self._nodes: dict[int, _Node] = {}

    def __contains__(self, number: int) -> bool:
        return number in self._holders

    def all_blocks(self) -> Iterator[int]:
        """Those that anybody holds."""
        for node in self._nodes.values():
            yield from node.blocks

    def add(self, number: int, capacity: int) -> None:
        """Make a worker known, or change the bound of a known one."""
        holder = self._holders.setdefault(number, _Holder(1 << number, capacity))
        holder.capacity = capacity
        self._evict(holder, capacity)

    def forget(self, number: int) -> None:
        self.clear(number)
        del self._holders[number]

    def clear(self, number: int) -> None:
        self._evict(self._holders[number], 0)

    def capacity(self, number: int) -> int:
        return self._holders[number].capacity

    def blocks(self, number: int) -> int:
        """How many a worker holds."""
        return self._holders[number].held

    def chains(self, number: int) -> Iterator[list[int]]:
        """Of these a worker holds all blocks, and no others; the least recently used first."""
        order = self._holders[number].order
        inner = {node.before for node in order}
        for leaf in order:
            if leaf not in inner:
                parts = [leaf.blocks]
                node = leaf.before
                while node is not None:
                    parts.append(node.blocks)
                    node = node.before
                yield [block for part in reversed(parts) for block in part]

    def insert(self, number: int, hashes: Sequence[int]) -> None:
        """The worker holds the blocks of this chain (given from the start of the prompt) as of now."""
        holder = self._holders[number]
        if len(hashes) > holder.capacity:
            hashes = hashes[: holder.capacity]
        bit, nodes = holder.bit, self._nodes
        last: _Node | None = None
        at = 0
        while at < len(hashes):
            node = nodes.get(hashes[at])
            if node is None:
                last = self._grown(last, hashes[at:], holder)
                break
            if node.before is not last:
                break  # no chain
            same = _common(node.blocks, hashes, at)
            at += same
            if same < len(node.blocks):
                front = self._cut(node, same)
                if front is None:
                    break
                node = front
            if not node.holders & bit:
                node.holders |= bit
                holder.held += same
            if last is not None and len(last.blocks) < self._short and last.branches == 1:
                self._join(last, node)
            last = node
        order = holder.order
        while last is not None:
            order[last] = None
            order.move_to_end(last)
            last = last.before
        self._evict(holder, holder.capacity)

    def match(self, hashes: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Masks of workers and how many blocks these hold from the start of the chain, each part of the one before:
        of a worker the last one is true.
        """
        nodes = self._nodes
        node = nodes.get(hashes[0]) if hashes else None
        if node is None:
            return
        holders, at = node.holders, 0
        while node is not None:
            holding = holders & node.holders
            if holding != holders:
                yield holders, at
                if not holding:
                    return
                holders = holding
            at += _common(node.blocks, hashes, at)
            node = nodes.get(hashes[at]) if at < len(hashes) else None
        yield holders, at

    def _grown(self, last: _Node | None, new: Sequence[int], holder: _Holder) -> _Node:
        """The node of blocks that nobody holds, behind `last`: it grows, or another one begins."""
        holder.held += len(new)
        if last is not None:
            if last.holders == holder.bit and not last.branches:
                last.blocks.extend(new)
                return last
            last.branches += 1
        node = self._nodes[new[0]] = _Node(array("Q", new), holder.bit, last)
        return node

    def _cut(self, node: _Node, keeps: int) -> _Node | None:
        """Its front becomes a node of its own; None where this is no chain and another node begins there."""
        if node.blocks[keeps] in self._nodes:
            return None
        front = _Node(node.blocks[:keeps], node.holders, node.before, branches=1)
        del node.blocks[:keeps]
        node.before = front
        self._nodes[front.blocks[0]] = front
        self._nodes[node.blocks[0]] = node
        return front

    def _join(self, node: _Node, rest: _Node) -> None:
        """A node becomes part of the only one that continues it, if the same workers hold both."""
        if node.holders != rest.holders:
            return
        del self._nodes[rest.blocks[0]]
        self._nodes[node.blocks[0]] = rest
        rest.blocks = node.blocks + rest.blocks
        rest.before = node.before
        holders = node.holders
        while holders:
            self._holders[(holders & -holders).bit_length() - 1].order.pop(node, None)
            holders &= holders - 1

    def _evict(self, holder: _Holder, capacity: int) -> None:
        """The ends of the least recently used nodes, down to the bound."""
        while (excess := holder.held - capacity) > 0:
            node = next(iter(holder.order))
            keeps = len(node.blocks) - excess
            if keeps > 0:
                if node.holders == holder.bit:
                    del node.blocks[keeps:]
                    holder.held = capacity
                    return
                self._cut(node, keeps)
            self._drop(holder, node)

    def _drop(self, holder: _Holder, node: _Node) -> None:
        """A node that is a leaf to the holder."""
        order, before = holder.order, node.before
        del order[node]
        holder.held -= len(node.blocks)
        node.holders ^= holder.bit
        if before is not None and before not in order:
            order[before] = None
            order.move_to_end(before, last=False)
        if not node.holders:
            del self._nodes[node.blocks[0]]
            if before is not None:
                before.branches -= 1


def _common(blocks: Sequence[int], hashes: Sequence[int], at: int) -> int:
    """How many blocks a node and a chain share, the node's first being at `at` of the chain: one hash tells of all
    before it."""
    low, high = 1, min(len(blocks), len(hashes) - at)
    if blocks[high - 1] == hashes[at + high - 1]:
        return high
    while low < high:
        middle = (low + high) // 2
        if blocks[middle] == hashes[at + middle]:
            low = middle + 1
        else:
            high = middle
    return low
