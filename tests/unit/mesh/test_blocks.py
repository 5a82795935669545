"""Block hashes: the chain that makes equal hashes mean equal prefixes."""

from __future__ import annotations

import struct
from hashlib import sha256

from hypothesis import given
from hypothesis import strategies as st

from inferway.blocks import block_hashes, prompt_hash

TOKENS = st.lists(st.integers(min_value=0, max_value=2**32 - 1), max_size=200)
BLOCK_SIZES = st.integers(min_value=1, max_value=70)
SALTS = st.binary(max_size=40)


def naive(tokens: list[int], block_size: int, salt: bytes) -> list[int]:
    """The definition, word for word: every digest is computed again from the start of the prompt."""
    hashes = []
    for end in range(block_size, len(tokens) + 1, block_size):
        digest = sha256(b"sglang-cache-salt-v1\0" + salt.hex().encode()).digest() if salt else b""
        for start in range(0, end, block_size):
            ids = tokens[start : start + block_size]
            digest = sha256(digest + b"".join(struct.pack("<I", token) for token in ids)).digest()
        hashes.append(struct.unpack(">Q", digest[:8])[0])
    return hashes


@given(TOKENS, BLOCK_SIZES, SALTS)
def test_the_chain_is_its_definition(tokens: list[int], block_size: int, salt: bytes) -> None:
    """For any prompt, block size and salt the hashes are those of the definition."""
    assert block_hashes(tokens, block_size, salt) == naive(tokens, block_size, salt)


@given(TOKENS, TOKENS, BLOCK_SIZES)
def test_a_common_prefix_has_common_hashes(tokens: list[int], more: list[int], block_size: int) -> None:
    """What comes after a block does not change its hash."""
    hashes = block_hashes(tokens, block_size)
    assert block_hashes(tokens + more, block_size)[: len(hashes)] == hashes


def test_known_values() -> None:
    """The values of one prompt, so that both this code and the naive one would have to be wrong alike."""
    assert block_hashes([0], 1) == [int.from_bytes(sha256(b"\0\0\0\0").digest()[:8], "big")]
    assert block_hashes([1, 2], 1)[0] == int.from_bytes(sha256(b"\1\0\0\0").digest()[:8], "big")


def test_partial_blocks_have_no_hash() -> None:
    """Only full blocks count: none for a prompt shorter than one, and a rest is left out."""
    assert block_hashes([], 4) == []
    assert block_hashes([1, 2, 3], 4) == []
    assert len(block_hashes([1, 2, 3, 4], 4)) == 1
    assert block_hashes([1, 2, 3, 4, 5], 4) == block_hashes([1, 2, 3, 4], 4)


def test_salts_separate() -> None:
    """The same prompt under two salts shares no block, and none is not the empty salt of another domain."""
    tokens = list(range(12))
    plain, one, two = (set(block_hashes(tokens, 4, salt)) for salt in (b"", b"one", b"two"))
    assert len(plain | one | two) == 9


def test_every_block_depends_on_those_before_it() -> None:
    """The same tokens after another beginning have another hash."""
    assert block_hashes([1, 1, 7, 7], 2)[1] != block_hashes([1, 2, 7, 7], 2)[1]


def test_the_hash_of_a_prompt_knows_every_token() -> None:
    """Prompts that differ anywhere, or in their salt or length, have hashes of their own; equal ones have one."""

    def of(tokens: list[int], salt: bytes = b"") -> int:
        return prompt_hash(tokens, block_hashes(tokens, 4, salt), 4, salt)

    prompts = [[], [1], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4, 5], [1, 2, 3, 4, 6], [9, 2, 3, 4, 5], [0], [0, 0]]
    hashes = {of(tokens, salt) for tokens in prompts for salt in (b"", b"one", b"two")}
    assert len(hashes) == 3 * len(prompts)
    assert 0 not in hashes
    assert of([1, 2, 3, 4, 5], b"one") == of([1, 2, 3, 4, 5], b"one")
