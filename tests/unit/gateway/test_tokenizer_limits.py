"""gateway.core.tokenizer: texts that the fast tokenizer cannot take."""

from __future__ import annotations

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from gateway.core.tokenizer import Tokenizer

# As GPT-2 has them, and most after it: a run of spaces is looked at from both of its ends.
BYTES = {letter: number for number, letter in enumerate(pre_tokenizers.ByteLevel.alphabet())}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(vocab=BYTES, merges=[]))
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    return Tokenizer(made.to_str().encode())


@pytest.mark.parametrize("space", [" ", "\n", "\t"], ids=repr)
def test_endless_runs_of_spaces_have_their_ids(tokenizer: Tokenizer, space: str) -> None:
    """What is too much for the fast tokenizer's regular expressions is left to the reference."""
    assert tokenizer.is_fast
    assert len(tokenizer.encode(space * 1_000_000)) == 1_000_000
