"""How fast a trace may come for a fleet to carry it.

A fleet carries a speed when it turns nobody away and requests get their first token, on average, within ten times the
time that the trace's mean prompt takes on an idle worker. A little beyond that speed the queue grows for as long as the
trace lasts, so that another factor would not change much: twice the factor raises the speed of Mooncake's conversation
trace by some 4 % for 8 workers and 10 % for 32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .engine import EngineSettings
from .trace import TraceRequest

_SLOWDOWN = 10.0
# The speed is found to within this share.
_PRECISION = 0.01
_STEP = 1.25
# Steps away from the first guess: 1.25 ** 40 is 7,500.
_MAX_STEPS = 40


class NoCapacity(Exception):
    """Says why."""


def ttft_bound_s(requests: Sequence[TraceRequest], engine: EngineSettings) -> float:
    """The mean time to first token up to which a speed counts as carried."""
    prompt_tokens = sum(request.prompt_tokens for request in requests) / len(requests)
    return _SLOWDOWN * (prompt_tokens / engine.prefill_tokens_per_s + engine.step_s)


def first_guess(requests: Sequence[TraceRequest], workers: int, engine: EngineSettings) -> float:
    """The speed at which prompts come as fast as the fleet could compute them all. Raises NoCapacity."""
    duration_s = requests[-1].at_s
    if not duration_s:
        raise NoCapacity("all requests of the trace come at once: there is no speed to choose")
    prompt_tokens = sum(request.prompt_tokens for request in requests)
    return workers * engine.prefill_tokens_per_s * duration_s / prompt_tokens


def capacity(carries: Callable[[float], bool], guess: float) -> float:
    """The highest speed that is carried, by bisection. Raises NoCapacity when it is too far from the guess."""
    low = high = guess
    steps = 0
    if carries(guess):
        while carries(high := low * _STEP):
            low = high
            steps += 1
            if steps == _MAX_STEPS:
                raise NoCapacity(f"even {low:.4g} times the recorded speed is carried: the trace is too short")
    else:
        while not carries(low := high / _STEP):
            high = low
            steps += 1
            if steps == _MAX_STEPS:
                raise NoCapacity(f"not even {low:.4g} times the recorded speed is carried")
    while high - low > _PRECISION * low:
        middle = (low + high) / 2
        low, high = (middle, high) if carries(middle) else (low, middle)
    return low
