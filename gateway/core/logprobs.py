"""Log-probabilities in OpenAI's two shapes: that of chat, and the older one of completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple


class ScoredToken(NamedTuple):
    """A token by its bytes; `logprob` None for a prompt's first one; `top` is (bytes, logprob), best first."""

    token: bytes
    logprob: float | None
    top: Sequence[tuple[bytes, float]] = ()


def chat_logprobs(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    return {
        "content": [
            {**_entry(one.token, one.logprob), "top_logprobs": [_entry(other, logprob) for other, logprob in one.top]}
            for one in tokens
        ],
        "refusal": None,
    }


def _entry(token: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": token.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(token)}


class LegacyLogprobs:
    """The older shape for one choice, in parts as they come: text offsets count the characters of the whole text."""

    def __init__(self) -> None:
        self._offset = 0
        # Of a character that several tokens make.
        self._begun = b""

    def feed(self, tokens: Sequence[ScoredToken]) -> dict[str, Any]:
        offsets = []
        for one in tokens:
            offsets.append(self._offset)
            self._begun += one.token
            text, used = _whole(self._begun)
            self._offset += len(text)
            self._begun = self._begun[used:]
        return {
            "tokens": [_name(one.token) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [_top(one) for one in tokens],
            "text_offset": offsets,
        }


def _top(one: ScoredToken) -> dict[str, float] | None:
    """The token itself is among them, whatever its rank; a prompt's first token has none."""
    if one.logprob is None:
        return None
    return {**{_name(token): logprob for token, logprob in one.top}, _name(one.token): one.logprob}


def _name(token: bytes) -> str:
    """Bytes that are no whole characters are written out."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _whole(data: bytes) -> tuple[str, int]:
    """The whole characters at the start of some bytes, and how many bytes they take."""
    for left in range(4):
        try:
            used = len(data) - left
            return data[:used].decode(), used
        except UnicodeDecodeError:
            continue
    return data.decode("utf-8", "replace"), len(data)
