"""`best_of`: of the candidates of each prompt, those whose tokens the model found likeliest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from .sse import ChoiceText


def best(candidates: Sequence[ChoiceText], *, keep: int, prompt_scores: Sequence[int]) -> list[ChoiceText]:
    """The best `keep` of each prompt's candidates, best first, prompt by prompt.

    Each candidate has scores; for each prompt, `prompt_scores` says how many of them are the prompt's own and do not
    count. The measure is OpenAI's: log-probability per token. Of equals the earlier goes first.
    """
    each = len(candidates) // len(prompt_scores)
    kept: list[ChoiceText] = []
    for place, skipped in enumerate(prompt_scores):
        mine = candidates[place * each : (place + 1) * each]
        kept += sorted(mine, key=partial(_mean, skipped=skipped), reverse=True)[:keep]
    return kept


def without_scores(choices: Sequence[ChoiceText]) -> list[ChoiceText]:
    """For a caller who did not ask for them."""
    return [replace(choice, scores=None) for choice in choices]


def _mean(candidate: ChoiceText, *, skipped: int) -> float:
    logprobs = [one.logprob or 0.0 for one in (candidate.scores or ())[skipped:]]
    return sum(logprobs) / len(logprobs) if logprobs else float("-inf")
