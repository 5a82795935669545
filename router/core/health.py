"""How far a worker is trusted: a breaker for one that fails, and a slow start for one that has just come.

    CLOSED --failures--> OPEN --its period--> HALF_OPEN --successes--> CLOSED
                           ^                      |
                           '---- failed probe ----'  the next period is twice as long, up to a cap

Only what the worker itself is to blame for counts: a transport that broke, an engine that stalled or gave up. What
its callers did wrong, honest refusals and cancels count neither way. CLOSED opens after `failures_to_open` failures
in a row, or when twice as many are among the last four times as many results (10 of the last 20): the first is quick
where everything fails, the second catches a worker that fails every other request. A first token ends a row, because
it shows that transport and engine work; a finished request is a result.

HALF_OPEN lets one request through at a time. Its first token is its success: answers may take minutes. However it
ends otherwise, its place is given back, so that a probe which is cancelled, refused or forgotten wedges nothing.

What was dispatched before the breaker last opened has no say any more: it neither closes it nor lengthens its period,
so many requests that fail together open it once. Times are monotonic seconds; every input costs O(1).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from .messages import ReleaseOutcome

# The window of results, and how many failures in it open the breaker, by `failures_to_open`.
_WINDOW_RESULTS, _WINDOW_FAILURES = 4, 2
# A cold worker begins with one of so many parts of its slots, and gains the rest in WARM steps.
_FIRST_OF = 10
WARM = 20


@dataclass(frozen=True, slots=True)
class HealthRules:
    """Where a number is 0, that part is off."""

    failures_to_open: int = 5
    # The first open period, and the longest.
    open_s: float = 2.0
    open_max_s: float = 60.0
    # Probes that succeed, one after the other, until the breaker closes.
    successes_to_close: int = 2
    # From the first share of the slots to all of them.
    slow_start_s: float = 10.0
    # For which a prompt that may have killed two workers is sent to none.
    quarantine_s: float = 60.0


# Every worker gets all that it has room for, whatever became of the last requests.
TRUSTING = HealthRules(failures_to_open=0, slow_start_s=0.0, quarantine_s=0.0)


class BreakerState(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """Of one incarnation of one worker. Told of each lease at most once how it ended."""

    def __init__(self, rules: HealthRules) -> None:
        self.state = BreakerState.CLOSED
        self._rules = rules
        self._failures_in_row = 0
        # True: failed.
        self._results: deque[bool] = deque(maxlen=max(1, _WINDOW_RESULTS * rules.failures_to_open))
        self._opened_at = float("-inf")
        self._closed_at = float("-inf")
        self._period_s = rules.open_s
        self._successes = 0
        self._probe: int | None = None

    @property
    def admits(self) -> bool:
        """Whether a request may be sent now."""
        if self.state is BreakerState.CLOSED:
            return True
        return self.state is BreakerState.HALF_OPEN and self._probe is None

    @property
    def next_deadline(self) -> float | None:
        """When `advance` has something to do."""
        return self._opened_at + self._period_s if self.state is BreakerState.OPEN else None

    def advance(self, *, now: float) -> bool:
        """Let time pass; returns whether the state has changed."""
        deadline = self.next_deadline
        if deadline is None or now < deadline:
            return False
        self.state = BreakerState.HALF_OPEN
        self._successes = 0
        self._probe = None
        return True

    def dispatched(self, lease_id: int) -> None:
        """A request goes to the worker, which the breaker has admitted."""
        assert self.admits
        if self.state is BreakerState.HALF_OPEN:
            self._probe = lease_id

    def first_token(self, lease_id: int, *, dispatched_at: float, now: float) -> bool:
        """Returns whether the state has changed, like all that follow."""
        if dispatched_at <= self._opened_at:
            return False
        self._failures_in_row = 0
        return self._probe_succeeded(lease_id, now)

    def released(self, lease_id: int, outcome: ReleaseOutcome, *, dispatched_at: float, now: float) -> bool:
        """A request has ended. FAILED is the worker's fault."""
        if dispatched_at <= self._opened_at:
            return False
        match outcome:
            case ReleaseOutcome.OK:
                self._failures_in_row = 0
                self._results.append(False)
                return self._probe_succeeded(lease_id, now)
            case ReleaseOutcome.FAILED:
                return self._failed(now)
            case ReleaseOutcome.REFUSED | ReleaseOutcome.CANCELLED:
                self.abandoned(lease_id)
                return False

    def abandoned(self, lease_id: int) -> None:
        """Nobody will hear how a request ended."""
        if lease_id == self._probe:
            self._probe = None

    def _probe_succeeded(self, lease_id: int, now: float) -> bool:
        if lease_id != self._probe:
            return False
        self._probe = None
        self._successes += 1
        if self._successes < self._rules.successes_to_close:
            return False
        self.state = BreakerState.CLOSED
        self._closed_at = now
        self._failures_in_row = 0
        self._results.clear()
        return True

    def _failed(self, now: float) -> bool:
        if self.state is BreakerState.HALF_OPEN:
            self._open(min(self._rules.open_max_s, 2 * self._period_s), now)
            return True
        self._failures_in_row += 1
        self._results.append(True)
        least = self._rules.failures_to_open
        if not least or (self._failures_in_row < least and self._results.count(True) < _WINDOW_FAILURES * least):
            return False
        if now - self._closed_at < self._rules.open_max_s:
            # It was closed too soon.
            self._open(min(self._rules.open_max_s, 2 * self._period_s), now)
        else:
            self._open(self._rules.open_s, now)
        return True

    def _open(self, period_s: float, now: float) -> None:
        self.state = BreakerState.OPEN
        self._period_s = period_s
        self._opened_at = now
        self._probe = None


class SlowStart:
    """The share of its slots that a worker gets: a tenth when it comes, all of them after `slow_start_s`.

    The share is meant beside workers that are warm. Beside others that are cold themselves it is what it is in relation
    to theirs: those that come together are not held back, or a whole fleet would start with a tenth of its capacity.
    """

    def __init__(self, rules: HealthRules) -> None:
        self._step_s = rules.slow_start_s / WARM
        # Steps done: how warm it is.
        self.warmth = WARM
        # None: since the next `advance`.
        self._since: float | None = None

    @property
    def is_cold(self) -> bool:
        return self.warmth < WARM

    @property
    def next_deadline(self) -> float | None:
        """When the share grows; in the past before the first `advance`."""
        if not self.is_cold:
            return None
        return float("-inf") if self._since is None else self._since + (self.warmth + 1) * self._step_s

    def begin(self, *, now: float | None = None) -> None:
        """From `now` on; without it, from the next `advance` on."""
        if self._step_s:
            self.warmth = 0
            self._since = now

    def advance(self, *, now: float) -> bool:
        """Let time pass; returns whether the share has grown."""
        if self._since is None:
            self._since = now
        before = self.warmth
        while self.is_cold and now >= self._since + (self.warmth + 1) * self._step_s:
            self.warmth += 1
        return self.warmth > before

    def slots(self, of: int, *, warmest: int) -> int:
        """How many of its slots it gets beside workers the warmest of which has this warmth; at least one."""
        if self.warmth >= warmest:
            return of
        return max(1, of * _share(self.warmth) // _share(warmest))


def _share(warmth: int) -> int:
    """In parts of `_FIRST_OF * WARM`."""
    return WARM + (_FIRST_OF - 1) * warmth
