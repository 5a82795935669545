"""Ranges of the sampling fields: one table for the edge, which tells callers, and for workers, which trust no peer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferway.errors import invalid


@dataclass(frozen=True, slots=True)
class Range:
    """Values from `least` to `most`; with `above`, `least` itself is out."""

    least: float
    most: float
    above: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.least < value if self.above else self.least <= value) and value <= self.most

    def __str__(self) -> str:
        if self.above:
            return f"above {self.least:g} and at most {self.most:g}"
        return f"between {self.least:.10g} and {self.most:.10g}"


_UINT32_MAX = 0xFFFFFFFF

# Every scalar field of types.proto's Sampling that has a range; what has none is a boolean or any 64-bit integer.
RANGES: Mapping[str, Range] = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above=True),
    # 0 keeps all candidates.
    "top_k": Range(0, _UINT32_MAX),
    "min_p": Range(0, 1),
    "frequency_penalty": Range(-2, 2),
    "presence_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, 2, above=True),
    "seed": Range(-(2**63), 2**63 - 1),
    "max_tokens": Range(1, _UINT32_MAX),
    "min_tokens": Range(0, _UINT32_MAX),
}
# As max_tokens: nothing is generated. Workers take it; callers may ask for it only where the prompt is told.
PROMPT_ONLY = 0
LOGIT_BIAS = Range(-100, 100)
PRIORITY = Range(0, 9)
TOP_LOGPROBS = Range(0, 20)
COMPLETION_LOGPROBS = Range(0, 5)
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 64


def check_range(name: str, value: float | None, within: Range) -> None:
    """Raise a 400 that names field, limit and observed value; None is absent and passes."""
    if value is not None and value not in within:
        raise invalid(name, f"'{name}' must be {within}, got {shown(value)}.")


def shown(value: float) -> str:
    """Integers have no largest one: neither their digits nor their conversion may hurt."""
    if isinstance(value, int) and abs(value) >= 10**20:
        return "an integer of more than 20 digits"
    return f"{value:.10g}" if isinstance(value, float) else str(value)
