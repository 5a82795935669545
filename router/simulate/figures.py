"""What a replay says about its policy, as numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TypeVar

from .replay import Outcome

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Figures:
    """Of those requests that ran; None where none did. Percentiles are values that occurred (nearest rank)."""

    requests: int
    failed: int
    ttft_mean_s: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    e2e_mean_s: float | None
    e2e_p99_s: float | None
    # In the router's queue.
    queue_mean_s: float | None
    # Prompt tokens that workers had cached, as a share of all; and those that the router expected them to have.
    hit_ratio: float | None
    predicted_hit_ratio: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """The most that a worker got over the mean of all workers: 1.0 is even."""

    requests: float | None
    # Tokens that were computed: prompt tokens that were not cached, and those of answers.
    tokens: float | None


@dataclass(frozen=True, slots=True)
class Summary:
    figures: Figures
    spread: Spread
    # From the last arrival to the last answer's end.
    drain_s: float
    # Empty where the trace has one only.
    tenants: dict[str, Figures]
    priorities: dict[int, Figures]


def summarize(outcomes: Sequence[Outcome], *, workers: int) -> Summary:
    """`outcomes` is not empty."""
    ran = [outcome for outcome in outcomes if not outcome.error]
    last_end = max((outcome.arrived_at + outcome.e2e_s for outcome in ran), default=0.0)
    last_arrival = max(outcome.arrived_at for outcome in outcomes)
    return Summary(
        figures=figures(outcomes),
        spread=Spread(
            requests=_spread(ran, workers, lambda outcome: 1),
            tokens=_spread(ran, workers, _computed_tokens),
        ),
        drain_s=max(0.0, last_end - last_arrival),
        tenants=_by(outcomes, lambda outcome: outcome.request.tenant_id),
        priorities=_by(outcomes, lambda outcome: outcome.request.priority),
    )


def figures(outcomes: Sequence[Outcome]) -> Figures:
    ran = [outcome for outcome in outcomes if not outcome.error]
    ttft = sorted(outcome.ttft_s for outcome in ran)
    e2e = sorted(outcome.e2e_s for outcome in ran)
    prompts = sum(outcome.request.prompt_tokens for outcome in ran)
    cached = sum(outcome.cached_tokens for outcome in ran)
    predicted = sum(outcome.predicted_cached_tokens for outcome in ran)
    return Figures(
        requests=len(outcomes),
        failed=len(outcomes) - len(ran),
        ttft_mean_s=mean(ttft),
        ttft_p50_s=percentile(ttft, 0.5),
        ttft_p99_s=percentile(ttft, 0.99),
        e2e_mean_s=mean(e2e),
        e2e_p99_s=percentile(e2e, 0.99),
        queue_mean_s=mean([outcome.queue_s for outcome in ran]),
        hit_ratio=cached / prompts if ran else None,
        predicted_hit_ratio=predicted / prompts if ran else None,
    )


def mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def percentile(ordered: Sequence[float], share: float) -> float | None:
    """The least of the ordered values that at least this share of them does not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def _by(outcomes: Sequence[Outcome], key: Callable[[Outcome], Key]) -> dict[Key, Figures]:
    groups: dict[Key, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    return {name: figures(group) for name, group in groups.items()} if len(groups) > 1 else {}


def _computed_tokens(outcome: Outcome) -> int:
    return outcome.request.prompt_tokens - outcome.cached_tokens + outcome.request.completion_tokens


def _spread(ran: Sequence[Outcome], workers: int, weigh: Callable[[Outcome], int]) -> float | None:
    weights = [0] * workers
    for outcome in ran:
        weights[outcome.worker] += weigh(outcome)
    return max(weights) * workers / sum(weights) if ran else None
