"""SGLang's KV events as the seam has them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from inferway.blocks import BlocksRemoved, BlocksStored, CacheCleared
from worker.engines.sglang.kv_events import KvMirror


def batch(*events: dict[str, Any]) -> bytes:
    """As SGLang's publisher packs it."""
    return msgspec.msgpack.encode([1.5, list(events), 0])


def stored(*hashes: int, medium: str = "GPU", **more: Any) -> dict[str, Any]:
    return {
        "type": "BlockStored",
        "block_hashes": list(hashes),
        "parent_block_hash": None,
        "token_ids": [1, 2, 3],
        "block_size": 64,
        "lora_id": None,
        "medium": medium,
        **more,
    }


def removed(*hashes: int, medium: str = "GPU") -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": medium}


CLEARED = {"type": "AllBlocksCleared"}


def test_signed_hashes_become_unsigned() -> None:
    """SGLang's hashes are signed, the contract's are not."""
    mirror = KvMirror("m")
    assert mirror.feed(0, batch(stored(-1, 5))) == [BlocksStored("m", [2**64 - 1, 5])]
    assert 2**64 - 1 in mirror


def test_neighbours_are_one_event() -> None:
    """Events of one kind in a row come as one, in order."""
    mirror = KvMirror("m")
    events = mirror.feed(0, batch(CLEARED, stored(1), stored(2, 3), removed(2), removed(1), stored(4)))
    assert events == [
        CacheCleared("m"),
        BlocksStored("m", [1, 2, 3]),
        BlocksRemoved("m", [2, 1]),
        BlocksStored("m", [4]),
    ]


def test_known_and_unknown_blocks() -> None:
    """A block that is stored again and one that was never stored are no news."""
    mirror = KvMirror("m")
    mirror.feed(0, batch(stored(1)))
    assert mirror.feed(1, batch(stored(1), removed(9))) == []


def test_tiers() -> None:
    """A block is held until it has left the last tier."""
    mirror = KvMirror("m")
    assert mirror.feed(0, batch(stored(1), stored(1, medium="CPU"))) == [BlocksStored("m", [1])]
    assert mirror.feed(1, batch(removed(1))) == []
    assert mirror.feed(2, batch(removed(1, medium="CPU"))) == [BlocksRemoved("m", [1])]


def test_adapters_are_left_out() -> None:
    """Blocks of an adapter, whose hashes nobody else can compute, are neither stored nor removed."""
    mirror = KvMirror("m")
    assert mirror.feed(0, batch(stored(1, lora_name="a"), stored(2))) == [BlocksStored("m", [2])]
    assert mirror.feed(1, batch(removed(1))) == []


def test_gap() -> None:
    """A batch that comes too early changes nothing; one that came before is no news."""
    mirror = KvMirror("m")
    mirror.feed(0, batch(stored(1)))
    assert mirror.feed(2, batch(stored(3))) is None
    assert 3 not in mirror
    assert mirror.feed(0, batch(stored(7))) == []
    assert mirror.feed(1, batch(stored(2))) == [BlocksStored("m", [2])]
    assert mirror.feed(2, batch(stored(3))) == [BlocksStored("m", [3])]


def test_lost_for_good() -> None:
    """When batches cannot be had any more, all is forgotten and built anew from the next one."""
    mirror = KvMirror("m")
    mirror.feed(0, batch(stored(1)))
    assert mirror.skip_to(5) == [CacheCleared("m")]
    assert 1 not in mirror
    assert mirror.feed(5, batch(stored(1))) == [BlocksStored("m", [1])]


def test_cached_blocks() -> None:
    """The cached part of a prompt ends at the first block that is not held."""
    mirror = KvMirror("m")
    mirror.feed(0, batch(stored(1, 2, 4)))
    assert [mirror.cached_blocks(hashes) for hashes in ([], [1, 2], [1, 2, 3, 4], [3])] == [0, 2, 2, 0]


def test_other_format() -> None:
    """A payload of another format is an error, not an empty batch."""
    with pytest.raises(msgspec.DecodeError):
        KvMirror("m").feed(0, msgspec.msgpack.encode({"events": []}))
