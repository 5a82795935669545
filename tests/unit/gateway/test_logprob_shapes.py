"""Log-probabilities in the shapes of chat and of completions."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.core.logprobs import LegacyLogprobs, ScoredToken, chat_logprobs

WAVE = "👋".encode()
TOKENS = [
    ScoredToken(b"Hi", None),
    ScoredToken(b" ", -0.5, [(b"!", -0.4), (b" ", -0.5)]),
    ScoredToken(WAVE[:2], -1.0, [(b"x", -0.1)]),
    ScoredToken(WAVE[2:], -2.0),
    ScoredToken(b"end", -3.0),
]


def test_chat_has_an_entry_with_bytes_for_each_token() -> None:
    """Half a character is shown as its replacement, and its bytes are exact."""
    content = chat_logprobs(TOKENS)["content"]
    assert [entry["token"] for entry in content] == ["Hi", " ", "\ufffd", "\ufffd\ufffd", "end"]
    assert bytes(byte for entry in content for byte in entry["bytes"]) == "Hi 👋end".encode()
    assert content[0]["logprob"] is None
    assert content[1]["top_logprobs"] == [
        {"token": "!", "logprob": -0.4, "bytes": [33]},
        {"token": " ", "logprob": -0.5, "bytes": [32]},
    ]


def test_completions_have_lists_of_one_length() -> None:
    """The token itself is always among its alternatives; offsets count whole characters; half ones are written out."""
    given = LegacyLogprobs().feed(TOKENS)
    assert given["tokens"] == ["Hi", " ", "bytes:\\xf0\\x9f", "bytes:\\x91\\x8b", "end"]
    assert given["token_logprobs"] == [None, -0.5, -1.0, -2.0, -3.0]
    assert given["top_logprobs"][0] is None
    assert given["top_logprobs"][2] == {"x": -0.1, "bytes:\\xf0\\x9f": -1.0}
    assert given["text_offset"] == [0, 2, 3, 3, 4]


@given(st.lists(st.integers(0, len(TOKENS)), max_size=4))
def test_any_split_gives_the_same_offsets(cuts: list[int]) -> None:
    """Offsets go on from part to part."""
    whole = LegacyLogprobs().feed(TOKENS)
    parts, legacy = [], LegacyLogprobs()
    places = [0, *sorted(cuts), len(TOKENS)]
    for start, end in itertools.pairwise(places):
        parts.append(legacy.feed(TOKENS[start:end]))
    for name, values in whole.items():
        assert [value for part in parts for value in part[name]] == values
