"""Choosing tokens from logits: each filter alone, and the properties that hold for all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from worker.engine import Sampling
from worker.engines.llamacpp.sampler import Defaults, Sampler

END = 0
# Probabilities 0.5, 0.25, 0.125, ... of tokens 1, 2, 3, ...; token 0 ends the turn and is as likely as token 2.
LOGITS = np.log(np.array([0.25, 0.5, 0.25, 0.125, 0.0625, 0.03125], np.float32))


class Allowing:
    """A grammar that allows one set of tokens after the other, and after the last one nothing."""

    def __init__(self, *steps: set[int]) -> None:
        self.steps = list(steps)
        self.taken: list[int] = []

    @property
    def is_over(self) -> bool:
        return len(self.taken) == len(self.steps)

    def allowed(self) -> NDArray[np.bool_]:
        return np.isin(np.arange(LOGITS.size), list(self.steps[len(self.taken)]))

    def take(self, token: int) -> None:
        assert token in self.steps[len(self.taken)]
        self.taken.append(token)


def sampler(
    *, prompt: Sequence[int] = (), defaults: Defaults | None = None, matcher: Allowing | None = None, **sampling: Any
) -> Sampler:
    return Sampler(
        Sampling(**sampling),
        defaults or Defaults(),
        prompt=prompt,
        vocab_size=LOGITS.size,
        end_tokens=np.array([END]),
        rng=np.random.default_rng(sampling.get("seed", 1)),
        matcher=matcher,
    )


def reachable(draws: int = 400, **sampling: Any) -> set[int]:
    """Tokens that come up as the first of a choice."""
    rng = np.random.default_rng(3)
    found = set()
    for _ in range(draws):
        chooser = sampler(**sampling)
        chooser._rng = rng
        found.add(chooser.choose(LOGITS))
    return found


@pytest.mark.parametrize(
    ("sampling", "tokens"),
    [
        ({"temperature": 0.0}, {1}),
        ({"temperature": 1.0}, {0, 1, 2, 3, 4, 5}),
        ({"temperature": 0.01}, {1}),
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {0, 1, 2}),
        ({"top_k": 100}, {0, 1, 2, 3, 4, 5}),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.45}, {0, 1}),
        ({"top_p": 0.75}, {0, 1, 2}),
        ({"top_p": 0.001}, {1}),
        ({"min_p": 1.0}, {1}),
        ({"min_p": 0.4}, {0, 1, 2}),
        ({"top_k": 4, "min_p": 0.3}, {0, 1, 2}),
        ({"top_k": 3, "top_p": 0.5}, {1}),
        ({"logit_bias": {1: -100.0}, "temperature": 0.0}, {0}),
        ({"logit_bias": {5: 100.0}}, {5}),
        ({"ignore_eos": True}, {1, 2, 3, 4, 5}),
        ({"ignore_eos": True, "logit_bias": {0: 100.0}, "temperature": 0.0}, {1}),
        ({"min_tokens": 1}, {1, 2, 3, 4, 5}),
        ({"prompt": [1], "repetition_penalty": 1.5, "temperature": 0.0}, {1}),
        ({"prompt": [1], "repetition_penalty": 2.0, "temperature": 0.0}, {0, 1}),
    ],
    ids=str,
)
def test_filters(sampling: dict[str, Any], tokens: set[int]) -> None:
    """Exactly the tokens that a filter leaves can come up."""
    assert reachable(**sampling) <= tokens
    if "temperature" not in sampling or sampling["temperature"] == 1.0:
        assert reachable(**sampling) == tokens


def test_min_tokens_ends() -> None:
    """An end token is possible from the min_tokens-th token on."""
    chooser = sampler(min_tokens=2, temperature=0.0, logit_bias={END: 100.0})
    assert [chooser.choose(LOGITS) for _ in range(3)] == [1, 1, END]


@pytest.mark.parametrize("penalty", ["frequency_penalty", "presence_penalty"])
def test_penalties(penalty: str) -> None:
    """A penalty on what was said lets another token come next; the prompt does not count."""
    options: dict[str, Any] = {penalty: 1.0}
    chooser = sampler(prompt=[2, 2, 2], ignore_eos=True, temperature=0.0, **options)
    assert [chooser.choose(LOGITS) for _ in range(2)] == [1, 2]


def test_frequency_grows() -> None:
    """Frequency counts each time, presence only whether."""
    frequent = sampler(ignore_eos=True, temperature=0.0, frequency_penalty=0.5)
    present = sampler(ignore_eos=True, temperature=0.0, presence_penalty=0.5)
    assert [frequent.choose(LOGITS) for _ in range(4)] == [1, 1, 2, 1]
    assert [present.choose(LOGITS) for _ in range(4)] == [1, 1, 1, 1]


def test_defaults() -> None:
    """A field that is not given is the model's; one that is given wins, also when it is zero."""
    greedy = Defaults(temperature=0.0)
    assert sampler(defaults=greedy).choose(LOGITS) == 1
    assert sampler(defaults=Defaults(top_k=1)).choose(LOGITS) == 1
    assert sampler(defaults=Defaults(temperature=1.0), temperature=0.0).choose(LOGITS) == 1


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.3, "top_p": 0.5, "top_k": 2, "min_p": 0.2}], ids=str)
def test_scores_are_before_temperature_and_filters(sampling: dict[str, Any]) -> None:
    """The token is the one that `choose` gives, and its number is that of the model's own distribution."""
    plain, scoring = sampler(seed=4, **sampling), sampler(seed=4, **sampling)
    own = LOGITS - np.log(np.exp(LOGITS).sum())
    for _ in range(20):
        chosen = scoring.choose_scored(LOGITS, 2)
        assert chosen.token_id == plain.choose(LOGITS)
        assert chosen.logprob == pytest.approx(own[chosen.token_id], abs=1e-6)
        assert [token for token, _ in chosen.top] == [1, 0]


def test_scores_are_behind_bias_and_masks() -> None:
    """A token that was made certain is certain, and one that may not come is nowhere among the best."""
    biased = sampler(logit_bias={5: 100.0}, temperature=0.0).choose_scored(LOGITS, 1)
    assert (biased.token_id, biased.logprob) == (5, pytest.approx(0.0, abs=1e-6))
    masked = sampler(ignore_eos=True, temperature=0.0).choose_scored(LOGITS, 5)
    assert END not in [token for token, _ in masked.top]


@pytest.mark.parametrize(
    "sampling",
    [
        {},
        {"temperature": 0.0},
        {"top_k": 2, "top_p": 0.4},
        {"min_p": 0.9},
        {"logit_bias": {1: 100.0, 3: -100.0}},
        {"repetition_penalty": 2.0, "frequency_penalty": 2.0, "presence_penalty": 2.0, "prompt": [3, 4, 5]},
    ],
    ids=str,
)
def test_nothing_gets_past_a_grammar(sampling: dict[str, Any]) -> None:
    """Whatever the request says, only what is allowed comes, also what is least likely."""
    grammar = Allowing({3}, {4, 5}, {2, 3}, {5})
    chooser = sampler(matcher=grammar, **sampling)
    for _ in range(4):
        assert not chooser.is_over
        chooser.choose(LOGITS)
    assert chooser.is_over
    assert grammar.taken[0] == 3
    assert grammar.taken[3] == 5


@pytest.mark.parametrize("sampling", [{"ignore_eos": True}, {"min_tokens": 2}], ids=str)
def test_a_whole_text_ends(sampling: dict[str, Any]) -> None:
    """An end is put off while the grammar has something else, and no longer."""
    grammar = Allowing({END, 5}, {END})
    chooser = sampler(matcher=grammar, temperature=0.0, logit_bias={END: 100.0}, **sampling)
    assert [chooser.choose(LOGITS) for _ in range(2)] == [5, END]
    assert chooser.is_over


def test_scores_are_behind_a_grammar() -> None:
    """The only token that is allowed is certain, and what is not allowed has no probability."""
    chooser = sampler(matcher=Allowing({5}, {3, 4}))
    alone = chooser.choose_scored(LOGITS, 2)
    assert (alone.token_id, alone.logprob) == (5, 0.0)
    assert alone.top[0] == (5, 0.0)
    assert alone.top[1][1] == -np.inf
    pair = chooser.choose_scored(LOGITS, 3)
    assert [token for token, _ in pair.top[:2]] == [3, 4]
    assert np.exp(pair.top[0][1]) + np.exp(pair.top[1][1]) == pytest.approx(1.0)


def test_frequencies() -> None:
    """Tokens come up as often as they are likely."""
    chooser = sampler(seed=5)
    count = 20_000
    counts = np.bincount([chooser.choose(LOGITS) for _ in range(count)], minlength=LOGITS.size) / count
    expected = np.exp(LOGITS) / np.exp(LOGITS).sum()
    assert np.abs(counts - expected).max() < 0.02


@given(
    logits=st.lists(st.floats(-30, 30, width=32), min_size=6, max_size=6),
    temperature=st.floats(0.0, 2.0),
    top_p=st.floats(0.01, 1.0),
    top_k=st.none() | st.integers(1, 8),
    min_p=st.floats(0.0, 1.0),
    repetition_penalty=st.floats(0.1, 2.0),
    frequency_penalty=st.floats(-2.0, 2.0),
    seed=st.integers(0, 2**63),
)
def test_any_setting(logits: list[float], seed: int, **sampling: Any) -> None:
    """Any valid setting gives tokens of the vocabulary, the same ones for the same seed, and keeps the logits."""
    array = np.array(logits, np.float32)
    runs = []
    for _ in range(2):
        chooser = sampler(seed=seed, **sampling)
        runs.append([chooser.choose(array) for _ in range(4)])
    assert runs[0] == runs[1]
    assert all(0 <= token < LOGITS.size for token in runs[0])
    assert array.tolist() == logits
