"""Words to tokens and back, for the scripts of one model."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence
from functools import cached_property

from tokenizers import Tokenizer

from ...core.detokenize import token_table
from ...engine import ModelInfo
from .models import Family
from .script import Special, Token

# Above every vocabulary.
_FIRST_INTERNED = 1 << 20
_ID_BYTES = 4


class Interned:
    """Tokens that no vocabulary has, because a script may call any bytes one token.

    Grows with the scripts that have been played and with nothing else.
    """

    def __init__(self) -> None:
        self._ids: dict[bytes, int] = {}
        self._bytes: list[bytes] = []

    def token_id(self, data: bytes) -> int:
        known = self._ids.get(data)
        if known is None:
            known = self._ids[data] = _FIRST_INTERNED + len(self._bytes)
            self._bytes.append(data)
        return known

    def bytes_of(self, token_id: int) -> bytes:
        place = token_id - _FIRST_INTERNED
        return self._bytes[place] if 0 <= place < len(self._bytes) else b""


class Lexicon:
    """Costs nothing until a request for its model comes."""

    def __init__(self, model: ModelInfo, family: Family, interned: Interned) -> None:
        self._model = model
        self._family = family
        self._interned = interned

    def token_id(self, token: Token) -> int:
        """The vocabulary's id where it has this very token, else an invented one."""
        if isinstance(token, Special):
            # A special token that the vocabulary lacks has no text either.
            return self._added.get(token.name, self._interned.token_id(b""))
        known = self._plain.get(token)
        return self._interned.token_id(token) if known is None else known

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text with special tokens written out."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def text(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=True)

    def last_message(self, prompt: Sequence[int]) -> Sequence[int]:
        """The tokens of the last user message; of a prompt without turns all that are not special."""
        ids = prompt if isinstance(prompt, array) else array("I", prompt)
        data, opening = ids.tobytes(), self._opening.tobytes()
        found = data.rfind(opening)
        while found > 0 and found % _ID_BYTES:
            found = data.rfind(opening, 0, found + len(opening) - 1)
        if found < 0:
            return [token_id for token_id in ids if token_id not in self._flagged]
        start = found // _ID_BYTES + len(self._opening)
        for end in range(start, len(ids)):
            if ids[end] in self._closing:
                return ids[start:end]
        return ids[start:]

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self._model.tokenizer_json.decode())

    @cached_property
    def _added(self) -> dict[str, int]:
        return {token["content"]: token["id"] for token in json.loads(self._model.tokenizer_json)["added_tokens"]}

    @cached_property
    def _flagged(self) -> frozenset[int]:
        return frozenset(self._added[content] for content in self._family.flagged)

    @cached_property
    def _closing(self) -> frozenset[int]:
        return self._flagged | {self._added[self._family.turn[1]]}

    @cached_property
    def _opening(self) -> array[int]:
        return array("I", self._tokenizer.encode(self._family.turn[0], add_special_tokens=False).ids)

    @cached_property
    def _plain(self) -> dict[bytes, int]:
        table = token_table(self._model.tokenizer_json, shown=self._model.structural_marks)
        return {table[token_id]: token_id for token_id in range(self._model.vocab_size) if table[token_id]}
