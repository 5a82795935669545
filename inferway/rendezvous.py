"""Rendezvous (highest random weight) hashing: everybody ranks the same nodes for a key alike, without talking."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b


def ranked(key: bytes, nodes: Iterable[str]) -> list[str]:
    """`nodes`, the first choice for `key` first; a node that leaves moves only the keys that it had.

    The same everywhere and after every start. Of the key 64 bytes count.
    """
    return sorted(nodes, key=lambda node: blake2b(node.encode(), key=key[:64], digest_size=8).digest(), reverse=True)
