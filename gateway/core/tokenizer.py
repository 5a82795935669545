"""Text to token ids as the model's own tokenizer does it, with places kept free for text that needs its own ids."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from fastokens import Tokenizer as FastTokenizer
from tokenizers import AddedToken
from tokenizers import Tokenizer as ReferenceTokenizer

_TAG = re.compile(r"[<\[]\S+[>\]]")
SEGMENT_CACHE_BYTES = 64 << 20
# A noncharacter. Added to the tokenizers as a special token, it splits a text as a control token does, whatever
# normalizer and pre-tokenizer do at such borders.
GAP = "\ufdef"
# Strings on which the fast tokenizer must agree with the reference before it serves.
_SAMPLE = (
    "Hello, world! It's 3.14159 o'clock.\n\n  def f(x):\n\treturn x**2  # squared\r\n",
    "Größe über naïve façade, Ελληνικά, русский текст, עברית, العربية, हिन्दी",
    "中文字符和日本語のテキスト、한국어 👩‍👩‍👧‍👦 🇩🇪 👍🏽 e\u0301 \u200b\ufeff",
    "a" * 300 + " " * 40 + "0123456789" * 8 + "\x00\x07\x1b[0m",
    f" a {GAP} b{GAP}{GAP}\nc {GAP}",
)


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]: ...


def _gap() -> AddedToken:
    return AddedToken(GAP, special=True, normalized=False)


class _Fast:
    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = FastTokenizer.from_json_str(tokenizer_json)
        self._tokenizer.add_tokens([_gap()])
        self._tokenizer.enable_segment_cache(SEGMENT_CACHE_BYTES)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


class _Reference:
    def __init__(self, tokenizer_json: str) -> None:
        self._tokenizer = ReferenceTokenizer.from_str(tokenizer_json)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.add_special_tokens([_gap()])
        gap_id = self._tokenizer.token_to_id(GAP)
        assert gap_id is not None, "added above"
        self.gap_id = gap_id

    def encode(self, text: str) -> list[int]:
        # As a batch of one, which lets other threads run meanwhile, and without offsets, which are half the work.
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        if self.gap_id in ids:
            ids = [token_id for token_id in ids if token_id != self.gap_id]
        text: str = self._tokenizer.decode_batch([ids], skip_special_tokens=False)[0]
        return text

    def normalized(self, text: str) -> str:
        normalizer = self._tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def frame(self) -> tuple[list[int], list[int]]:
        """What the tokenizer's post-processor puts before and after a text."""
        framed = self._tokenizer.encode("a")
        inner = [place for place, is_special in enumerate(framed.special_tokens_mask) if not is_special]
        return framed.ids[: inner[0]], framed.ids[inner[-1] + 1 :]


class Tokenizer:
    """Token ids of trusted text, and of text that spells a mark and must not be one.

    The fast tokenizer serves where it gives the ids of the reference on a fixed sample and on the model's own
    added tokens; otherwise the reference does. `encode` may take milliseconds for long text, is safe to call from
    threads and lets others run.
    """

    # What the tokenizer itself puts before and after a text that is not rendered by a template, such as BOS.
    prefix_ids: Sequence[int]
    suffix_ids: Sequence[int]
    # Whether a text may spell a control token only once it is normalized (a full-width "＜", for example).
    normalizes_control_tokens: bool

    def __init__(self, tokenizer_json: bytes) -> None:
        """Raises ValueError for what is no tokenizer.json."""
        text = tokenizer_json.decode()
        reference = _Reference(text)
        parsed = json.loads(text)
        added = parsed.get("added_tokens", ())
        self.prefix_ids, self.suffix_ids = reference.frame()
        self.control_tokens = tuple(entry["content"] for entry in added if _is_control(entry))
        self._reference = reference
        self._gap_id = reference.gap_id
        self.normalizes_control_tokens = parsed.get("normalizer") is not None and any(
            entry.get("normalized") for entry in added if _is_control(entry)
        )
        self._encoder: _Encoder = _fast_if_equal(text, reference, [entry["content"] for entry in added])
        # Spellings of marks, of which there are few.
        self._as_text: dict[str, list[int]] = {}
        parsed["added_tokens"] = []
        parsed["post_processor"] = None
        self._ordinary = _Reference(json.dumps(parsed))

    @property
    def is_fast(self) -> bool:
        return isinstance(self._encoder, _Fast)

    def normalized(self, text: str) -> str:
        """The text as the vocabulary sees it."""
        return self._reference.normalized(text)

    def encode(self, text: str) -> list[int]:
        """Ids of text in which control tokens are meant."""
        try:
            return self._encoder.encode(text)
        except ValueError:
            # A run of some 800,000 spaces is more than the fast one's regular expressions can take.
            return self._reference.encode(text)

    def encode_with(self, text: str, spelled: Sequence[str]) -> list[int]:
        """Ids of text in which each GAP stands for the next of `spelled`, which are marks and become none."""
        ids: list[int] = []
        spellings = iter(spelled)
        encoded = self.encode(text)
        at = 0
        for spelling in spellings:
            gap = encoded.index(self._gap_id, at)
            ids += encoded[at:gap]
            ids += self._encode_as_text(spelling)
            at = gap + 1
        return ids + encoded[at:]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens written out; those that the tokenizer does not know have none."""
        return self._reference.decode(ids)

    def _encode_as_text(self, mark: str) -> list[int]:
        """Ids of a mark as text, cut so that they are not the mark's own, even where it is ordinary text itself."""
        ids = self._as_text.get(mark)
        if ids is None:
            own = self._encoder.encode(mark)
            cuts = [[mark[:at], mark[at:]] for at in range(1, len(mark))]
            for pieces in (*cuts, list(mark)):
                ids = [
                    token_id
                    for token_id in self._ordinary.encode(GAP + GAP.join(pieces))
                    if token_id != self._ordinary.gap_id
                ]
                if ids != own:
                    break
            self._as_text[mark] = ids = ids or []
        return ids


def _is_control(added_token: Mapping[str, Any]) -> bool:
    """Flagged special, or shaped like a tag; other added tokens (runs of spaces, words) are ordinary text."""
    return bool(added_token.get("special")) or _TAG.fullmatch(added_token["content"]) is not None


def _fast_if_equal(tokenizer_json: str, reference: _Reference, added_tokens: Sequence[str]) -> _Encoder:
    try:
        fast = _Fast(tokenizer_json)
        samples = (*_SAMPLE, "x" + " y ".join(added_tokens) + "\nz")
        if all(fast.encode(text) == reference.encode(text) for text in samples):
            return fast
    except (ValueError, RuntimeError, NotImplementedError):
        pass
    return reference
