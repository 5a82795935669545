"""Keeps processes running: what to start, when to start it again, in which order to stop.

A process is one of

    RUNNING   started; it leaves this state only by `exited`
    WAITING   it ended by itself and is due to start again at a known time
    STOPPED   it ended and stays so

and the whole is starting (nothing has been served yet), serving, or stopping. While starting, a process that gives
up by itself (an exit status above 0) has said that it cannot run here, and everything is stopped; one that was
killed gets a few more tries. Once something has been served, whatever ends is started again for as long as it takes,
with a pause that doubles up to a bound. Stopping goes through the processes in the reverse of their order, one at a
time, so that each finishes what it has while those that it depends on still run.

The caller carries the actions out, in order, and reports what happens; times are monotonic seconds.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True)
class Start:
    name: str


@dataclass(frozen=True, slots=True)
class Terminate:
    """Ask the process to finish (SIGTERM)."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    name: str


@dataclass(frozen=True, slots=True)
class Report:
    """One line for the person at the terminal."""

    text: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Nothing runs any more; the last action of all. `failed` says why it had to end, None: it was asked to."""

    failed: Failure | None


@dataclass(frozen=True, slots=True)
class Failure:
    """`name` is the process whose log explains it."""

    name: str
    sentence: str


Action = Start | Terminate | Kill | Report | Finish


@dataclass(frozen=True, slots=True)
class Policy:
    first_pause_s: float = 0.5
    longest_pause_s: float = 10.0
    # A process that ran this long starts again after the first pause, whatever happened before.
    steady_after_s: float = 30.0
    # Times that a process may be killed before anything was served.
    kills_while_starting: int = 3
    # From the request to finish to the kill.
    stop_grace_s: float = 10.0


class State(Enum):
    RUNNING = auto()
    WAITING = auto()
    STOPPED = auto()


@dataclass(slots=True)
class Process:
    state: State = State.STOPPED
    started_at: float = 0.0
    # When to start it again; only while WAITING.
    due_at: float = 0.0
    # Ends in a row, none of them after a steady run.
    failures: int = 0


class Supervisor:
    """`names` in the order of starting: each depends on those before it at most."""

    def __init__(self, names: Sequence[str], policy: Policy | None = None) -> None:
        self._policy = policy or Policy()
        self._processes = {name: Process() for name in names}
        self._serving = False
        self._stopping = False
        self._failed: Failure | None = None
        # The process that has been asked to finish, and when patience with it ends (None: it has been killed).
        self._finishing: str | None = None
        self._kill_at: float | None = None

    def begin(self, *, now: float) -> list[Action]:
        return [self._start(name, now) for name in self._processes]

    def served(self) -> None:
        """The whole answers requests: from now on nothing that ends is given up."""
        self._serving = True

    def exited(self, name: str, status: int, *, now: float) -> list[Action]:
        """`status` as subprocess gives it: -9 is "killed by signal 9"."""
        process = self._processes[name]
        assert process.state is State.RUNNING, f"{name} was not running"
        process.state = State.STOPPED
        if self._stopping:
            return self._stop_next(now=now)
        process.failures = 1 if now - process.started_at >= self._policy.steady_after_s else process.failures + 1
        how = describe_exit(status)
        if not self._serving and (status > 0 or process.failures > self._policy.kills_while_starting):
            return self.give_up(Failure(name, f"{name} cannot start: it {how}"), now=now)
        pause = min(self._policy.first_pause_s * 2 ** (process.failures - 1), self._policy.longest_pause_s)
        process.state = State.WAITING
        process.due_at = now + pause
        return [Report(f"{name} {how}; starting it again in {pause:g} s")]

    def give_up(self, failure: Failure, *, now: float) -> list[Action]:
        """Stop everything because of `failure`, unless it is stopping already."""
        if self._stopping:
            return []
        self._failed = failure
        return self.stop(now=now)

    def stop(self, *, now: float) -> list[Action]:
        """Begin to stop; asked once more, kill whatever still runs."""
        if self._stopping:
            self._kill_at = None
            return [Kill(name) for name, process in self._processes.items() if process.state is State.RUNNING]
        self._stopping = True
        for process in self._processes.values():
            if process.state is State.WAITING:
                process.state = State.STOPPED
        return self._stop_next(now=now)

    def tick(self, *, now: float) -> list[Action]:
        """Whatever is due by now."""
        if self._stopping:
            if self._finishing is None or self._kill_at is None or now < self._kill_at:
                return []
            self._kill_at = None
            waited = f"{self._finishing} did not finish within {self._policy.stop_grace_s:g} s and was killed"
            return [Report(waited), Kill(self._finishing)]
        due = [name for name, p in self._processes.items() if p.state is State.WAITING and p.due_at <= now]
        return [self._start(name, now) for name in due]

    def next_deadline(self) -> float | None:
        """When `tick` has something to do; None: not before something happens."""
        if self._stopping:
            return self._kill_at
        return min((p.due_at for p in self._processes.values() if p.state is State.WAITING), default=None)

    def _start(self, name: str, now: float) -> Start:
        process = self._processes[name]
        process.state = State.RUNNING
        process.started_at = now
        return Start(name)

    def _stop_next(self, *, now: float) -> list[Action]:
        running = [name for name, process in self._processes.items() if process.state is State.RUNNING]
        if not running:
            self._finishing = self._kill_at = None
            return [Finish(self._failed)]
        if running[-1] == self._finishing:
            return []
        self._finishing = running[-1]
        self._kill_at = now + self._policy.stop_grace_s
        return [Terminate(self._finishing)]


def describe_exit(status: int) -> str:
    """What happened to a process, as the end of a sentence about it."""
    if status >= 0:
        return f"exited with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
