"""What a store has answered, kept for a while: bounded, and told how far it may still be trusted.

An answer is fresh for some time and is then asked for again. While the store cannot be reached, an older one serves,
up to an age at which nobody would believe it any more. Names that there are not are kept apart and for a shorter time,
so that a flood of them pushes out nothing but each other.

Cost: O(1) each, `doubt` included. Times are monotonic seconds.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answer(Generic[T]):
    """What the store said of a name; None: there is none."""

    value: T | None
    is_fresh: bool


@dataclass(frozen=True, slots=True)
class _Kept(Generic[T]):
    value: T | None
    at: float
    doubts: int


class Remembered(Generic[T]):
    """Answers by name, the least recently used of which are dropped above `most` (as many again for absent names)."""

    def __init__(self, *, most: int, fresh_s: float, absent_s: float, oldest_s: float) -> None:
        self._most = most
        self._fresh_s, self._absent_s, self._oldest_s = fresh_s, absent_s, oldest_s
        self._present: OrderedDict[str, _Kept[T]] = OrderedDict()
        self._absent: OrderedDict[str, _Kept[T]] = OrderedDict()
        self._doubts = 0

    def __len__(self) -> int:
        return len(self._present) + len(self._absent)

    def get(self, name: str, *, now: float, trust_s: float = inf) -> Answer[T] | None:
        """The last answer, or None where there is none that may still be used; fresh at most for `trust_s`.

        That there is no such name is never said on the strength of an answer that is not fresh.
        """
        kept = self._present.get(name)
        if kept is not None:
            if now - kept.at >= self._oldest_s:
                del self._present[name]
                return None
            self._present.move_to_end(name)
            return Answer(kept.value, kept.doubts == self._doubts and now - kept.at < min(self._fresh_s, trust_s))
        kept = self._absent.get(name)
        if kept is None or kept.doubts != self._doubts or now - kept.at >= min(self._absent_s, trust_s):
            return None
        return Answer(None, True)

    def put(self, name: str, value: T | None, *, now: float) -> None:
        kept = _Kept(value, now, self._doubts)
        here, there = (self._absent, self._present) if value is None else (self._present, self._absent)
        there.pop(name, None)
        here[name] = kept
        here.move_to_end(name)
        if len(here) > self._most:
            here.popitem(last=False)

    def forget(self, name: str) -> None:
        """It has changed: nothing older serves any more, whatever becomes of the store."""
        self._present.pop(name, None)
        self._absent.pop(name, None)

    def doubt(self) -> None:
        """Changes may have been missed: everything is to be asked for again, and serves only if nobody answers."""
        self._doubts += 1
