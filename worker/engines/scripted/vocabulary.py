"""Real byte-level BPE tokenizers from one small list of merges.

A vocabulary is the 256 bytes, the first merges of merges.txt and the added tokens of its model. Where the added
tokens come first, every id differs from those of a vocabulary in which they come last, so that text tokenized for
one model is nonsense to another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

_MERGES = Path(__file__).with_name("merges.txt")
# A newline is always a token of its own: templates end their headers with one, and what follows cannot merge with it.
_SPLIT = r"\n|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|[^\S\n]+"


def tokenizer_json(
    *, flagged: Sequence[str], marks: Sequence[str], merges: int, added_first: bool, bos: str | None = None
) -> bytes:
    """A tokenizer.json; the same arguments give the same bytes.

    `flagged` tokens are special, `marks` are single tokens that count as text. `bos` is put in front of every text
    that is encoded with special tokens.
    """
    chosen = _merges()[:merges]
    pieces = [*_byte_characters(), *(left + right for left, right in chosen)]
    added = [*flagged, *marks]
    first_piece, first_added = (len(added), 0) if added_first else (0, len(pieces))
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": first_added + place,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": place < len(flagged),
            }
            for place, content in enumerate(added)
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "Split", "pattern": {"Regex": _SPLIT}, "behavior": "Isolated", "invert": False},
                {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
            ],
        },
        "post_processor": _prepend(bos, first_added + flagged.index(bos)) if bos else None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: first_piece + place for place, piece in enumerate(pieces)}
            | {content: first_added + place for place, content in enumerate(added)},
            "merges": [f"{left} {right}" for left, right in chosen],
        },
    }
    return json.dumps(document, ensure_ascii=False).encode()


def _prepend(token: str, token_id: int) -> dict[str, object]:
    special = {"SpecialToken": {"id": token, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [special, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


@cache
def _merges() -> list[tuple[str, str]]:
    pairs = (line.split(" ") for line in _MERGES.read_text(encoding="utf-8").splitlines())
    return [(left, right) for left, right in pairs]


@cache
def _byte_characters() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in the order of the bytes."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printable]
    stand_ins = {byte: chr(byte) for byte in printable} | {byte: chr(0x100 + n) for n, byte in enumerate(moved)}
    return [stand_ins[byte] for byte in range(256)]
