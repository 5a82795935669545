"""Token ids to text: whole characters, at most three bytes held, no stall, any split alike."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.detokenize import Detokenizer, TokenTable, UnsupportedTokenizer, token_table

# A vocabulary of single bytes makes every cut of a byte string a cut between tokens.
BYTES = TokenTable([bytes((value,)) for value in range(256)])


def text_of(chunks: list[list[int]], table: TokenTable = BYTES) -> str:
    machine = Detokenizer(table)
    return "".join(machine.feed(chunk) for chunk in chunks) + machine.finish()


def assert_same_for_every_split(ids: list[int], expected: str) -> None:
    for chunks in [[ids], [[one] for one in ids], *([ids[:cut], ids[cut:]] for cut in range(1, len(ids)))]:
        assert text_of(chunks) == expected, chunks


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"plain", "plain"),
        ("š 👋 né".encode(), "š 👋 né"),
        (b"\xff", "\ufffd"),
        (b"ok \xf0\x9f", "ok \ufffd"),
        (b"\xc3(", "\ufffd("),
        (b"\xed\xa0\x80x", "\ufffd\ufffd\ufffdx"),
        (b"\xf4\x90\x80\x80", "\ufffd\ufffd\ufffd\ufffd"),
        (b"\xe0\x80a", "\ufffd\ufffda"),
        (b"", ""),
    ],
)
def test_bytes_become_text_however_they_are_cut(data: bytes, expected: str) -> None:
    """Valid UTF-8 is kept; each byte that cannot be part of a character becomes one U+FFFD."""
    assert_same_for_every_split(list(data), expected)


@given(st.binary(max_size=24), st.lists(st.integers(0, 24), max_size=6))
def test_any_split_gives_what_decoding_the_whole_gives(data: bytes, cuts: list[int]) -> None:
    """The stream's text equals the decoded whole, for any bytes and any cuts."""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    chunks = [list(data[start:end]) for start, end in pairwise(edges)]
    assert text_of(chunks) == data.decode(errors="replace")


@given(st.binary(max_size=32))
def test_only_what_may_become_a_character_is_held(data: bytes) -> None:
    """At most three bytes wait, and some continuation would make them a character."""
    machine = Detokenizer(BYTES)
    for position, value in enumerate(data):
        machine.feed([value])
        held = data[position + 1 - machine.held_bytes : position + 1]
        assert len(held) <= 3
        assert not held or _can_become_a_character(held)


def _can_become_a_character(held: bytes) -> bool:
    middles = (0x80, 0x90, 0xA0, 0xBF)
    candidates = [held]
    for _ in range(4 - len(held)):
        candidates += [known + bytes((middle,)) for known in candidates for middle in middles]
    return any(_is_character(candidate) for candidate in candidates)


def _is_character(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


def test_text_goes_on_right_after_bytes_that_are_no_character() -> None:
    """Invalid bytes are replaced at once: what follows is not kept waiting."""
    machine = Detokenizer(BYTES)
    assert machine.feed([0xFF]) == "\ufffd"
    assert machine.feed([0xED, 0xA0]) == "\ufffd\ufffd"
    assert machine.feed(list(b"abc")) == "abc"


def document(**parts: Any) -> bytes:
    base: dict[str, Any] = {"added_tokens": [], "model": {"type": "BPE", "vocab": {}}, "decoder": {"type": "ByteLevel"}}
    return json.dumps(base | parts).encode()


def test_byte_level_pieces_stand_for_bytes() -> None:
    """GPT-2's stand-ins are turned back: Ġ is a space, Ċ a newline, Ã© the two bytes of é."""
    table = token_table(document(model={"type": "BPE", "vocab": {"Ġhi": 0, "Ċ": 1, "Ã©": 2, "Ã": 3, "©": 4}}))
    assert text_of([[0], [1], [2], [3], [4]], table) == " hi\néé"


def test_special_tokens_give_no_text_and_other_added_tokens_do() -> None:
    """A flagged token is silent unless it is named as shown; an added token that is not flagged is text."""
    added = [
        {"id": 1, "content": "<end>", "special": True},
        {"id": 2, "content": "<think>", "special": False},
        {"id": 3, "content": "[CALL]", "special": True},
    ]
    data = document(model={"type": "BPE", "vocab": {"a": 0}}, added_tokens=added)
    assert text_of([[0, 1, 2, 3, 0]], token_table(data)) == "a<think>a"
    assert text_of([[0, 1, 2, 3, 0]], token_table(data, shown=["[CALL]"])) == "a<think>[CALL]a"


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "Metaspace", "replacement": "▁"},
        {"type": "Sequence", "decoders": [{"type": "Replace"}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
    ],
)
def test_sentencepiece_pieces_stand_for_spaces_and_bytes(decoder: dict[str, Any]) -> None:
    """U+2581 is a space, <0xE2> a byte; the space before a first word stays."""
    vocab = [["▁Hello", 0.0], ["<0xE2>", 0.0], ["<0x82>", 0.0], ["<0xAC>", 0.0]]
    table = token_table(document(model={"type": "Unigram", "vocab": vocab}, decoder=decoder))
    assert text_of([[0], [1], [2], [3]], table) == " Hello€"


def test_ids_beyond_the_vocabulary_are_asked_for() -> None:
    """An engine that invents tokens tells their bytes; without it, and below zero, unknown ids have no text."""
    data = document(model={"type": "BPE", "vocab": {"a": 0}})
    assert text_of([[0, 700, 0]], token_table(data, beyond=lambda token_id: b"<%d>" % token_id)) == "a<700>a"
    assert text_of([[0, 700, -1, 0]], token_table(data)) == "aa"


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (document(decoder={"type": "WordPiece"}), "not WordPiece"),
        (document(decoder=None), "not none"),
        (b"{", "is not a tokenizer"),
        (b"[]", "is not a tokenizer"),
        (b"{}", "is not a tokenizer"),
    ],
)
def test_tokenizers_that_are_not_understood_are_refused(data: bytes, sentence: str) -> None:
    """A sentence says what is wrong, before a single token is decoded wrongly."""
    with pytest.raises(UnsupportedTokenizer, match=sentence):
        token_table(data)
