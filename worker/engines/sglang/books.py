"""What the engine holds and how loaded it is. Pure.

SGLang's scheduler writes its load after each of its steps; a request is in it some milliseconds after it was sent, and
out of it some after its end was told. The books know both at once, so the numbers of the two are put together: never
more requests than are held here, and those that the scheduler has not seen yet wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ...engine import Load

# Share of the newest reading in the running mean of the prompt pass's speed, and the tokens that make a reading.
_SPEED_WEIGHT = 0.3
_SPEED_MIN_TOKENS = 256


@dataclass(frozen=True, slots=True)
class Reading:
    """The scheduler's own numbers, summed over its ranks."""

    running: int = 0
    waiting: int = 0
    waiting_uncached_tokens: int = 0
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    # Since the start: tokens computed in prompt passes, and how long these took.
    prefilled_tokens: int = 0
    prefill_us: int = 0


@dataclass(slots=True)
class _Held:
    uncached_tokens: int
    has_output: bool = False


class Books:
    def __init__(self, *, max_running: int, max_waiting: int) -> None:
        self._max_running = max_running
        self._max_waiting = max_waiting
        self._held: dict[int, _Held] = {}
        # Prompt tokens of choices without output, less those that the cache was expected to have.
        self._pending_tokens = 0
        self._answered = 0
        # The scheduler's prefilled tokens at the last answer to a prompt. What came since is for the next one: it
        # computes one prompt in parts at a time. (In mixed steps its count has tokens of running choices too.)
        self._settled_tokens = 0
        self._must_settle = False
        self._speed_from = Reading()
        self._tokens_per_s = 0.0
        self.reading = Reading()

    def __len__(self) -> int:
        return len(self._held)

    def lower_max_running(self, most: int) -> int:
        """No more than `most` run at a time; 0 is unknown. Returns how many do."""
        if most:
            self._max_running = min(self._max_running, most)
        return self._max_running

    @property
    def is_full(self) -> bool:
        return len(self._held) >= self._max_running + self._max_waiting

    def admit(self, key: int, *, prompt_tokens: int, cached_tokens: int) -> None:
        uncached = prompt_tokens - cached_tokens
        self._held[key] = _Held(uncached)
        self._pending_tokens += uncached

    def answered(self, key: int) -> None:
        """The prompt of a choice has been computed."""
        held = self._held.get(key)
        if held is not None and not held.has_output:
            held.has_output = True
            self._answered += 1
            self._pending_tokens -= held.uncached_tokens
            self._must_settle = True

    def end(self, key: int) -> None:
        held = self._held.pop(key, None)
        if held is not None and held.has_output:
            self._answered -= 1
        elif held is not None:
            self._pending_tokens -= held.uncached_tokens

    def read(self, reading: Reading) -> None:
        """Take the newest reading."""
        self.reading = reading
        if self._must_settle or not self._pending_tokens:
            self._settled_tokens = reading.prefilled_tokens
            self._must_settle = False
        tokens = reading.prefilled_tokens - self._speed_from.prefilled_tokens
        microseconds = reading.prefill_us - self._speed_from.prefill_us
        if tokens >= _SPEED_MIN_TOKENS and microseconds > 0:
            speed = tokens * 1e6 / microseconds
            known = self._tokens_per_s
            self._tokens_per_s = known + (speed - known) * _SPEED_WEIGHT if known else speed
            self._speed_from = reading

    def load(self) -> Load:
        reading, held = self.reading, len(self._held)
        # Choices with output run, also while the scheduler counts none because its batch is one of prompts; less those
        # that it put back into its queue because the cache was full.
        running = max(reading.running, min(self._answered, held - reading.waiting), held - self._max_waiting)
        running = min(held, self._max_running, running)
        computed = max(0, reading.prefilled_tokens - self._settled_tokens)
        in_flight = max(0, self._pending_tokens - computed)
        if held > running:
            in_flight = max(in_flight, reading.waiting_uncached_tokens)
        return Load(
            num_requests_running=running,
            num_requests_waiting=held - running,
            uncached_tokens_in_flight=in_flight,
            kv_used_tokens=min(reading.kv_used_tokens, reading.kv_total_tokens),
            kv_total_tokens=reading.kv_total_tokens,
            prefill_tokens_per_s=self._tokens_per_s,
        )


def total(readings: Iterable[Reading]) -> Reading:
    """The sum over ranks."""
    sums = [0] * 7
    for one in readings:
        values = (
            one.running,
            one.waiting,
            one.waiting_uncached_tokens,
            one.kv_used_tokens,
            one.kv_total_tokens,
            one.prefilled_tokens,
            one.prefill_us,
        )
        sums = [so_far + value for so_far, value in zip(sums, values, strict=True)]
    return Reading(*sums)
