"""From the metadata of a GGUF file to a tokenizer.json: same vocabulary, same merges, same ids.

Only byte-level BPE is exported, and of it only pre-tokenizers whose rule is written down here: a tokenizer that is
almost right gives ids that are silently wrong. tests/unit/worker compares the bundled model's with llama.cpp's
own on a table of strings, `first_difference` any other model's when it is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

_CONTROL, _USER_DEFINED = 3, 4
_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_WITHOUT_REGEX = _BYTE_LEVEL | {"use_regex": False}
_WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _split(pattern: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


# By `tokenizer.ggml.pre`.
_PRE_TOKENIZERS: Mapping[str, Sequence[Mapping[str, Any]]] = {
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    "gpt-2": [_BYTE_LEVEL],
    "llama-bpe": [_split(rf"{_WORDS}|\p{{N}}{{1,3}}|{_REST}"), _WITHOUT_REGEX],
    "qwen2": [_split(rf"{_WORDS}|\p{{N}}|{_REST}"), _WITHOUT_REGEX],
}
# Those that look whole words up before they merge.
_IGNORE_MERGES = frozenset({"llama-bpe"})

# Words, contractions, digits, spaces, line ends, punctuation, other scripts and emoji: where rules differ.
_SAMPLE = (
    "Hello, world! It's 12345 o'clock;  don't  you'LL\n\n\tdef f(x):\r\n    return x**2  # ok\n"
    "Ünïcödé 東京都 привет мир שלום عالم 👩‍👩‍👧 १२३ ½ …   trailing   "
)


def export(metadata: Mapping[str, Any]) -> bytes:
    """The tokenizer.json, 3.5 MB for the bundled model. Raises OSError naming what cannot be exported."""
    model, rule = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre", "gpt-2")
    if model != "gpt2":
        raise OSError(f"tokenizer type {model!r} is not supported; 'gpt2' (byte-level BPE) is")
    if rule not in _PRE_TOKENIZERS:
        raise OSError(f"pre-tokenizer {rule!r} is not supported; {', '.join(_PRE_TOKENIZERS)} are")
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    kinds: list[int] = metadata["tokenizer.ggml.token_type"]
    added = [
        {
            "id": token_id,
            "content": tokens[token_id],
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": kind == _CONTROL,
        }
        for token_id, kind in enumerate(kinds)
        if kind in (_CONTROL, _USER_DEFINED)
    ]
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": _PRE_TOKENIZERS[rule]},
        "post_processor": _begins_with(metadata) if metadata.get("tokenizer.ggml.add_bos_token") else None,
        "decoder": _BYTE_LEVEL,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": rule in _IGNORE_MERGES,
            "vocab": {token: token_id for token_id, token in enumerate(tokens)},
            "merges": metadata["tokenizer.ggml.merges"],
        },
    }
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def first_difference(tokenizer_json: bytes, tokenize: Callable[[str], Sequence[int]]) -> str | None:
    """The first word of a varied sample whose ids differ from those of `tokenize`, or None: the export is exact."""
    tokenizer = Tokenizer.from_buffer(tokenizer_json)
    for text in (_SAMPLE, *_SAMPLE.split(" ")):
        if tokenizer.encode(text, add_special_tokens=False).ids != list(tokenize(text)):
            return text
    return None


def token_text(metadata: Mapping[str, Any], key: str) -> str:
    """Text of the token that `tokenizer.ggml.<key>_token_id` names; empty when there is none."""
    token_id = metadata.get(f"tokenizer.ggml.{key}_token_id")
    return "" if token_id is None else str(metadata["tokenizer.ggml.tokens"][token_id])


def _begins_with(metadata: Mapping[str, Any]) -> dict[str, Any]:
    bos, text = metadata["tokenizer.ggml.bos_token_id"], token_text(metadata, "bos")
    special, first, second = (
        {"SpecialToken": {"id": text, "type_id": 0}},
        {"Sequence": {"id": "A", "type_id": 0}},
        {"Sequence": {"id": "B", "type_id": 1}},
    )
    return {
        "type": "TemplateProcessing",
        "single": [special, first],
        "pair": [special, first, second],
        "special_tokens": {text: {"id": text, "ids": [bos], "tokens": [text]}},
    }
