"""inferway/rendezvous.py"""

from __future__ import annotations

from collections import Counter

from inferway.rendezvous import ranked

NODES = [f"node-{index}" for index in range(8)]


def test_everyone_ranks_alike_whatever_the_order() -> None:
    """The ranking depends on the key and the names only."""
    assert ranked(b"key", NODES) == ranked(b"key", reversed(NODES))


def test_a_node_that_leaves_moves_only_its_own_keys() -> None:
    """Keys of the other nodes keep their first choice."""
    keys = [str(number).encode() for number in range(400)]
    before = {key: ranked(key, NODES)[0] for key in keys}
    after = {key: ranked(key, NODES[1:])[0] for key in keys}
    assert all(after[key] == first for key, first in before.items() if first != NODES[0])


def test_keys_spread_evenly() -> None:
    """No node has more than twice its share of many keys."""
    counts = Counter(ranked(str(number).encode(), NODES)[0] for number in range(4000))
    assert len(counts) == len(NODES)
    assert max(counts.values()) < 2 * 4000 / len(NODES)
