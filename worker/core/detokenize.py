"""Token ids to text, whole characters only.

A `TokenTable` is built once a model and shared; a `Detokenizer` belongs to one choice and holds at most three bytes:
those that may still become a character. Bytes that cannot become U+FFFD at once, so a stream never stalls on them.
Any split of the same ids gives the same text.

Byte-level vocabularies (GPT-2's map of bytes to printable characters) and SentencePiece ones (U+2581 for a space,
`<0x0A>` for a byte) are understood; others are refused, because their decoders join tokens by rules that depend on
neighbours. The space that SentencePiece decoders strip from the start of a text stays: a completion continues a
prompt.
"""

from __future__ import annotations

import json
import re
from codecs import utf_8_decode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_WORD_BOUNDARY = "\u2581"


class UnsupportedTokenizer(ValueError):
    """The tokenizer.json is broken or of a kind that is not understood; the message says which."""


class TokenTable:
    """The bytes of every token of one model. Flagged special tokens have none; unknown ids have none either."""

    __slots__ = ("_beyond", "_hidden", "_pieces", "_size")

    def __init__(
        self,
        pieces: list[bytes],
        beyond: Callable[[int], bytes] | None = None,
        hidden: Mapping[int, bytes] | None = None,
    ) -> None:
        """`beyond` answers for ids at or above len(pieces); `hidden` are the names of special tokens."""
        self._hidden = hidden or {}
        self._pieces = pieces
        self._size = len(pieces)
        self._beyond = beyond

    def __getitem__(self, token_id: int) -> bytes:
        if 0 <= token_id < self._size:
            return self._pieces[token_id]
        return self._beyond(token_id) if self._beyond is not None else b""

    def spelling(self, token_id: int) -> bytes:
        """As `table[id]`, but a special token by its name."""
        return self._hidden.get(token_id) or self[token_id]

    def join(self, token_ids: Sequence[int]) -> bytes:
        if len(token_ids) == 1:
            return self[token_ids[0]]
        return b"".join([self[token_id] for token_id in token_ids])


def token_table(
    tokenizer_json: bytes, *, shown: Iterable[str] = (), beyond: Callable[[int], bytes] | None = None
) -> TokenTable:
    """Read a tokenizer.json.

    `shown` names tokens that are text although they are flagged special: the marks that a parser needs to see.
    Raises UnsupportedTokenizer.
    """
    try:
        document = json.loads(tokenizer_json)
        model, added = document["model"], document.get("added_tokens") or []
        vocabulary = list(_vocabulary(model))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnsupportedTokenizer("tokenizer.json is not a tokenizer of the tokenizers library") from error
    piece_bytes = _piece_decoder(document, vocabulary)
    size = 1 + max((token_id for _, token_id in [*vocabulary, *((t["content"], t["id"]) for t in added)]), default=-1)
    pieces = [b""] * size
    for piece, token_id in vocabulary:
        pieces[token_id] = piece_bytes(piece)
    visible = set(shown)
    hidden: dict[int, bytes] = {}
    for token in added:
        is_hidden = token.get("special", False) and token["content"] not in visible
        pieces[token["id"]] = b"" if is_hidden else token["content"].encode()
        if is_hidden:
            hidden[token["id"]] = token["content"].encode()
    return TokenTable(pieces, beyond, hidden)


def _vocabulary(model: dict[str, Any]) -> Iterator[tuple[str, int]]:
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        yield from vocab.items()
    else:
        for token_id, entry in enumerate(vocab):
            yield entry[0], token_id


def _piece_decoder(document: dict[str, Any], vocabulary: Sequence[tuple[str, int]]) -> Callable[[str], bytes]:
    decoder = document.get("decoder") or {}
    kinds = {stage["type"] for stage in (decoder.get("decoders") or [decoder]) if "type" in stage}
    if "ByteLevel" in kinds:
        return _byte_level
    if "Metaspace" in kinds or "ByteFallback" in kinds:
        return _metaspace
    shown = ", ".join(sorted(kinds)) or "none"
    raise UnsupportedTokenizer(
        f"the tokenizer's decoder must be ByteLevel, Metaspace or ByteFallback, not {shown} ({len(vocabulary)} tokens)"
    )


def _byte_level(piece: str) -> bytes:
    return b"".join(
        bytes((_BYTE_OF_CHARACTER[character],)) if character in _BYTE_OF_CHARACTER else character.encode()
        for character in piece
    )


def _metaspace(piece: str) -> bytes:
    raw = _BYTE_PIECE.match(piece)
    return bytes((int(raw[1], 16),)) if raw else piece.replace(_WORD_BOUNDARY, " ").encode()


def _byte_of_character() -> dict[str, int]:
    """The inverse of GPT-2's map: printable Latin-1 stands for itself, the rest is moved to U+0100 and up."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + place): byte for place, byte in enumerate(moved)}


_BYTE_OF_CHARACTER = _byte_of_character()


class Detokenizer:
    """The text of one choice, a piece at a time."""

    __slots__ = ("_held", "_table")

    def __init__(self, table: TokenTable) -> None:
        self._table = table
        self._held = b""

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for the rest of their character, 0 to 3."""
        return len(self._held)

    def feed(self, token_ids: Sequence[int]) -> str:
        """The text that these tokens complete."""
        data = self._table.join(token_ids)
        if self._held:
            data = self._held + data
        text, used = utf_8_decode(data, "replace", False)
        if used == len(data):
            self._held = b""
            return text
        held = data[used:]
        if held[0] == 0xED and len(held) > 1 and held[1] >= 0xA0:
            # Half of a surrogate pair is no character, but the decoder waits for its third byte.
            text += utf_8_decode(held, "replace", True)[0]
            held = b""
        self._held = held
        return text

    def finish(self) -> str:
        """What is left: nothing, or U+FFFD for a character that never became whole."""
        text = utf_8_decode(self._held, "replace", True)[0]
        self._held = b""
        return text
