"""What was produced for requests that their gateway has not settled, kept so that it is booked also when that is gone.

A choice with a settlement is `begin`-ed in its session, `end`-ed with its counts, and forgotten when its session says
that it is `settle`-d. Where the session is `lose`-d first, its choices of one settlement become an orphan once all of
them have ended. Life of an orphan:

    own -> waiting -> offered to one session -> booked (forgotten)
                ^-------------'  that session broke, or said nothing for ANSWER_S

`own`: for OWN_S after its session broke only the same gateway, connected anew, is offered it: a gateway that has lost
no more than a connection may have sent the request elsewhere, and knows best what is to be booked. Each session is
offered `window` orphans at a time at most.

`limit` choices that have ended and orphans are kept together, the oldest go first. Every call costs the same however
many there are, but for `lose`, which goes through the session's choices.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from inferway.errors import OK

from .choice import Usage

OWN_S = 3.0
ANSWER_S = 30.0

S = TypeVar("S", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Orphan:
    """What the choices of one settlement came to, as worker.proto has it."""

    orphan_id: int
    settlement: bytes
    gateway_id: str
    usage: Usage
    outcome: str
    ended_at: float


@dataclass(slots=True, eq=False)
class _Record(Generic[S]):
    """A choice; `usage` is None while it runs."""

    session: S
    key: int
    settlement: bytes
    prompt_tokens: int
    usage: Usage | None = None
    outcome: str = ""
    ended_at: float = 0.0


@dataclass(slots=True)
class _Lost:
    """A session that broke: what still runs of each settlement, and its keys in order."""

    gateway_id: str
    lost_at: float
    keys: dict[bytes, list[int]] = field(default_factory=dict)
    running: dict[bytes, int] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Kept(Generic[S]):
    orphan: Orphan
    # The session that has it now, or had it last.
    session: S | None = None
    is_offered: bool = False


class Orphans(Generic[S]):
    """`S` is whatever stands for a session. Times are monotonic seconds."""

    def __init__(self, *, limit: int = 100_000, window: int = 256) -> None:
        self._limit = limit
        self._window = window
        self._records: dict[S, dict[int, _Record[S]]] = {}
        self._lost: dict[S, _Lost] = {}
        # Those that have ended, oldest first.
        self._ended: OrderedDict[_Record[S], None] = OrderedDict()
        # All of them, oldest first.
        self._kept: OrderedDict[int, _Kept[S]] = OrderedDict()
        # Ids in the states of the diagram; what is no longer kept is passed over when its turn comes. In the first
        # state they are by gateway, with the time at which its session broke; in the last with that of the offer.
        self._own: dict[str, deque[tuple[int, float]]] = {}
        self._waiting: deque[int] = deque()
        self._offered: dict[S, OrderedDict[int, float]] = {}
        self._last_id = 0
        # Since the start: orphans made and booked, and choices and orphans that were given up for others.
        self.made = self.booked = self.dropped = 0

    def __len__(self) -> int:
        """Orphans that are not booked yet."""
        return len(self._kept)

    @property
    def num_unsettled(self) -> int:
        """Choices that have ended and are neither settled nor part of an orphan."""
        return len(self._ended)

    def begin(self, session: S, key: int, settlement: bytes, prompt_tokens: int) -> None:
        records = self._records.setdefault(session, {})
        if (old := records.get(key)) is not None:  # a key that is used again
            self._ended.pop(old, None)
        records[key] = _Record(session, key, settlement, prompt_tokens)

    def end(self, session: S, key: int, usage: Usage, outcome: str, *, now: float) -> None:
        """Keys that are not known, or settled already, are ignored."""
        record = self._records.get(session, {}).get(key)
        if record is None:
            return
        record.usage, record.outcome, record.ended_at = usage, outcome, now
        self._ended[record] = None
        if (lost := self._lost.get(session)) is not None:
            lost.running[record.settlement] -= 1
            if not lost.running[record.settlement]:
                self._make(session, lost, record.settlement)
        self._bound()

    def settle(self, session: S, keys: Iterable[int]) -> None:
        """Forget choices of a session that is open, running ones too. Unknown keys are ignored."""
        assert session not in self._lost
        records = self._records.get(session, {})
        for key in keys:
            if (record := records.pop(key, None)) is not None:
                self._ended.pop(record, None)
        if not records:
            self._records.pop(session, None)

    def lose(self, session: S, gateway_id: str, *, now: float) -> None:
        """A session broke. What still runs of it is expected to `end`."""
        for orphan_id in self._offered.pop(session, ()):
            self._kept[orphan_id].is_offered = False
            self._waiting.append(orphan_id)
        lost = _Lost(gateway_id, now)
        for record in self._records.get(session, {}).values():
            lost.keys.setdefault(record.settlement, []).append(record.key)
            lost.running.setdefault(record.settlement, 0)
            lost.running[record.settlement] += record.usage is None
        if not lost.keys:
            self._records.pop(session, None)
            return
        self._lost[session] = lost
        for settlement, running in list(lost.running.items()):
            if not running:
                self._make(session, lost, settlement)

    def book(self, orphan_ids: Iterable[int]) -> None:
        """Forget orphans, whoever was offered them. Unknown ids are ignored."""
        for orphan_id in orphan_ids:
            if (kept := self._kept.pop(orphan_id, None)) is not None:
                self._take_back(kept)
                self.booked += 1

    def offers(self, sessions: Mapping[S, str], *, now: float) -> list[tuple[S, Orphan]]:
        """What to tell which session; `sessions` are those that are open, by the id of their gateway."""
        for offered in self._offered.values():
            while offered and (first := next(iter(offered))) and offered[first] + ANSWER_S <= now:
                del offered[first]
                self._kept[first].is_offered = False
                self._waiting.append(first)
        result = self._offer_own(sessions, now)
        while self._waiting:
            kept = self._kept.get(self._waiting[0])
            if kept is not None:
                session = self._choose(sessions, kept)
                if session is None:
                    break
                result.append(self._offer(session, kept, now))
            self._waiting.popleft()
        return result

    def next_at(self) -> float | None:
        """When `offers` has something to do although no session opens, breaks or answers."""
        times = [next(iter(offered.values())) + ANSWER_S for offered in self._offered.values() if offered]
        times += [ids[0][1] + OWN_S for ids in self._own.values()]
        return min(times, default=None)

    def _offer_own(self, sessions: Mapping[S, str], now: float) -> list[tuple[S, Orphan]]:
        result: list[tuple[S, Orphan]] = []
        for gateway_id, ids in list(self._own.items()):
            own = [session for session, other in sessions.items() if other == gateway_id]
            while ids:
                orphan_id, lost_at = ids[0]
                kept = self._kept.get(orphan_id)
                if kept is not None:
                    session = next((one for one in own if self._room(one)), None)
                    if session is not None:
                        result.append(self._offer(session, kept, now))
                    elif lost_at + OWN_S <= now:
                        self._waiting.append(orphan_id)
                    else:
                        break
                ids.popleft()
            if not ids:
                del self._own[gateway_id]
        return result

    def _choose(self, sessions: Mapping[S, str], kept: _Kept[S]) -> S | None:
        """The one with the most room, if possible not the one that had it before."""
        others = [session for session in sessions if session is not kept.session] or list(sessions)
        session = max(others, key=self._room, default=None)
        return session if session is not None and self._room(session) else None

    def _room(self, session: S) -> int:
        return self._window - len(self._offered.get(session, ()))

    def _offer(self, session: S, kept: _Kept[S], now: float) -> tuple[S, Orphan]:
        kept.session, kept.is_offered = session, True
        self._offered.setdefault(session, OrderedDict())[kept.orphan.orphan_id] = now
        return session, kept.orphan

    def _make(self, session: S, lost: _Lost, settlement: bytes) -> None:
        """An orphan of what is left of the choices of a settlement."""
        records = self._records[session]
        theirs = [record for key in lost.keys.pop(settlement) if (record := records.pop(key, None)) is not None]
        del lost.running[settlement]
        if not lost.keys:
            self._lost.pop(session, None)
            del self._records[session]
        for record in theirs:
            del self._ended[record]
        if not theirs:
            return  # given up for others
        self._last_id += 1
        ended_at = max(record.ended_at for record in theirs)
        outcome = next((record.outcome for record in theirs if record.outcome != OK), OK)
        orphan = Orphan(self._last_id, settlement, lost.gateway_id, _sum(theirs), outcome, ended_at)
        self._kept[self._last_id] = _Kept(orphan)
        self._own.setdefault(lost.gateway_id, deque()).append((self._last_id, lost.lost_at))
        self.made += 1
        self._bound()

    def _bound(self) -> None:
        while len(self._ended) + len(self._kept) > self._limit:
            record = next(iter(self._ended), None)
            kept = next(iter(self._kept.values()), None)
            if record is None or (kept is not None and kept.orphan.ended_at <= record.ended_at):
                assert kept is not None
                del self._kept[kept.orphan.orphan_id]
                self._take_back(kept)
            else:
                del self._ended[record]
                del self._records[record.session][record.key]
            self.dropped += 1

    def _take_back(self, kept: _Kept[S]) -> None:
        if kept.is_offered and kept.session is not None:
            del self._offered[kept.session][kept.orphan.orphan_id]
            kept.is_offered = False


def _sum(records: Sequence[_Record[S]]) -> Usage:
    """As a gateway counts (gateway/generation.py): what failed or was stopped before its first token says nothing."""
    known = [
        record.usage
        for record in records
        if record.usage is not None and (record.usage.completion_tokens or record.outcome == OK)
    ]
    return Usage(
        prompt_tokens=max((usage.prompt_tokens for usage in known), default=records[0].prompt_tokens),
        completion_tokens=sum(usage.completion_tokens for usage in known),
        cached_tokens=min((usage.cached_tokens for usage in known), default=0),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in known),
    )
