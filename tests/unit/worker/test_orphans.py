"""What lost gateways had not settled: summed once, offered to one session at a time, kept until it is booked."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.core.choice import Usage
from worker.core.orphans import ANSWER_S, OWN_S, Orphan, Orphans

# Sessions are letters; their gateways have the same name in capitals unless a test says otherwise.
LATER = OWN_S + 1


def gateways(sessions: str) -> dict[str, str]:
    return {session: session.upper() for session in sessions}


def offered(orphans: Orphans[str], sessions: str, *, now: float) -> list[tuple[str, int]]:
    return [(session, orphan.orphan_id) for session, orphan in orphans.offers(gateways(sessions), now=now)]


def orphaned(
    choices: Sequence[tuple[Usage, str]], *, prompt_tokens: int = 7, settlement: bytes = b"s"
) -> Orphan | None:
    """Of choices that ended so in a session that broke then."""
    orphans: Orphans[str] = Orphans()
    for key, (usage, outcome) in enumerate(choices):
        orphans.begin("a", key, settlement, prompt_tokens)
        orphans.end("a", key, usage, outcome, now=1.0)
    orphans.lose("a", "A", now=2.0)
    told = orphans.offers(gateways("b"), now=2.0 + OWN_S)
    assert len(told) <= 1
    return told[0][1] if told else None


@pytest.mark.parametrize(
    ("choices", "usage", "outcome"),
    [
        ([(Usage(7, 3, 5, 1), "ok")], Usage(7, 3, 5, 1), "ok"),
        # The prompt once and the least that was cached; completions and thoughts of all.
        ([(Usage(7, 3, 0, 1), "ok"), (Usage(7, 4, 6, 2), "ok")], Usage(7, 7, 0, 3), "ok"),
        ([(Usage(7, 3, 4), "ok"), (Usage(7, 2, 6), "client_closed_request")], Usage(7, 5, 4), "client_closed_request"),
        # Nothing of a choice that was stopped before its first token says anything about the prompt.
        ([(Usage(7, 3, 4), "ok"), (Usage(7, 0, 0), "client_closed_request")], Usage(7, 3, 4), "client_closed_request"),
        ([(Usage(7, 0, 4), "worker_failed")], Usage(7, 0, 0), "worker_failed"),
        # A prompt that was all that was asked for does.
        ([(Usage(7, 0, 4), "ok"), (Usage(7, 0, 6), "ok")], Usage(7, 0, 4), "ok"),
        # As the engine counts it.
        ([(Usage(9, 1, 0), "ok")], Usage(9, 1, 0), "ok"),
    ],
)
def test_choices_of_a_settlement_are_summed(choices: list[tuple[Usage, str]], usage: Usage, outcome: str) -> None:
    orphan = orphaned(choices)
    assert orphan is not None
    assert (orphan.usage, orphan.outcome, orphan.settlement, orphan.gateway_id) == (usage, outcome, b"s", "A")


def test_what_is_settled_is_forgotten() -> None:
    """Running or ended: nothing of it is left when the session breaks, and unknown keys harm nobody."""
    orphans: Orphans[str] = Orphans()
    for key in range(4):
        orphans.begin("a", key, b"%d" % key, 7)
    orphans.end("a", 0, Usage(7, 1, 0), "ok", now=1.0)
    orphans.end("a", 1, Usage(7, 1, 0), "ok", now=1.0)
    orphans.settle("a", [0, 2, 99])
    orphans.end("a", 2, Usage(7, 5, 0), "ok", now=2.0)
    orphans.settle("b", [1])
    orphans.lose("a", "A", now=3.0)
    orphans.end("a", 3, Usage(7, 9, 0), "client_closed_request", now=3.5)
    told = [orphan.settlement for _, orphan in orphans.offers(gateways("b"), now=3.0 + OWN_S)]
    assert told == [b"1", b"3"]


def test_an_orphan_waits_for_the_last_of_its_choices() -> None:
    """It is made when the engine has told the final count of all, and is as old as the last of them."""
    orphans: Orphans[str] = Orphans()
    orphans.begin("a", 1, b"s", 7)
    orphans.begin("a", 2, b"s", 7)
    orphans.end("a", 1, Usage(7, 3, 0), "ok", now=1.0)
    orphans.lose("a", "A", now=2.0)
    assert offered(orphans, "b", now=2.0 + LATER) == []
    orphans.end("a", 2, Usage(7, 4, 0), "client_closed_request", now=9.0)
    ((_, orphan),) = orphans.offers(gateways("b"), now=9.0)
    assert (orphan.usage.completion_tokens, orphan.ended_at) == (7, 9.0)


def one_orphan(*, window: int = 256) -> Orphans[str]:
    """Of the gateway A, whose session broke at time 0."""
    orphans: Orphans[str] = Orphans(window=window)
    orphans.begin("a", 1, b"s", 7)
    orphans.end("a", 1, Usage(7, 3, 0), "ok", now=-1.0)
    orphans.lose("a", "A", now=0.0)
    return orphans


def test_its_own_gateway_comes_first_for_a_while() -> None:
    """One that has lost a connection only is told at once; others when it has not come back in time."""
    assert one_orphan().offers({"new": "A", "b": "B"}, now=0.1)[0][0] == "new"
    orphans = one_orphan()
    assert offered(orphans, "b", now=0.1) == []
    assert orphans.next_at() == OWN_S
    assert offered(orphans, "b", now=OWN_S) == [("b", 1)]


def test_it_is_offered_to_one_session_until_that_breaks_or_is_silent() -> None:
    """Then to another one; where there is no other, to the same again."""
    orphans = one_orphan()
    assert offered(orphans, "bc", now=LATER) == [("b", 1)]
    assert offered(orphans, "bc", now=LATER + ANSWER_S - 1) == []
    assert orphans.next_at() == LATER + ANSWER_S
    assert offered(orphans, "bc", now=LATER + ANSWER_S) == [("c", 1)]
    orphans.lose("c", "C", now=100.0)
    assert offered(orphans, "b", now=100.0) == [("b", 1)]
    assert offered(orphans, "b", now=100.0 + ANSWER_S) == [("b", 1)]
    orphans.lose("b", "B", now=200.0)
    assert offered(orphans, "", now=200.0) == []
    assert orphans.next_at() is None
    assert offered(orphans, "d", now=201.0) == [("d", 1)]


def test_it_is_booked_once_by_whoever_says_so() -> None:
    """Also by a session that it was taken from again, and by id alone."""
    orphans = one_orphan()
    offered(orphans, "bc", now=LATER)
    offered(orphans, "bc", now=LATER + ANSWER_S)
    orphans.book([1, 1, 77])
    assert (len(orphans), orphans.booked) == (0, 1)
    assert offered(orphans, "bc", now=LATER + 3 * ANSWER_S) == []
    orphans = one_orphan()
    orphans.book([1])
    assert offered(orphans, "b", now=LATER) == []
    assert orphans.next_at() is None


def test_a_session_has_a_window_of_them() -> None:
    """The next one follows when one is booked."""
    orphans: Orphans[str] = Orphans(window=2)
    for key in range(5):
        orphans.begin("a", key, b"%d" % key, 7)
        orphans.end("a", key, Usage(7, 1, 0), "ok", now=0.0)
    orphans.lose("a", "A", now=0.0)
    assert offered(orphans, "b", now=LATER) == [("b", 1), ("b", 2)]
    assert offered(orphans, "bc", now=LATER) == [("c", 3), ("c", 4)]
    orphans.book([2])
    assert offered(orphans, "bc", now=LATER) == [("b", 5)]


def test_the_oldest_go_when_there_are_too_many() -> None:
    """Ended choices of open sessions and orphans alike, and they are counted; running ones are not among them."""
    orphans: Orphans[str] = Orphans(limit=3)
    orphans.begin("b", 1, b"running", 7)
    for key in range(3):
        orphans.begin("a", key, b"%d" % key, 7)
        orphans.end("a", key, Usage(7, 1, 0), "ok", now=float(key))
    orphans.lose("a", "A", now=3.0)
    assert orphans.dropped == 0
    orphans.begin("b", 2, b"ended", 7)
    orphans.end("b", 2, Usage(7, 1, 0), "ok", now=4.0)
    assert orphans.dropped == 1
    orphans.end("b", 1, Usage(7, 1, 0), "ok", now=5.0)
    assert (orphans.dropped, len(orphans)) == (2, 1)
    orphans.begin("b", 3, b"more", 7)
    orphans.end("b", 3, Usage(7, 1, 0), "ok", now=6.0)
    orphans.begin("b", 4, b"most", 7)
    orphans.end("b", 4, Usage(7, 1, 0), "ok", now=7.0)
    assert (orphans.dropped, len(orphans)) == (4, 0)
    orphans.lose("b", "B", now=8.0)
    told = [orphan.settlement for _, orphan in orphans.offers(gateways("c"), now=8.0 + OWN_S)]
    assert told == [b"running", b"more", b"most"]


@given(st.integers(0, 2**32), st.integers(1, 4))
def test_nothing_is_lost_or_doubled(seed: int, window: int) -> None:
    """Whatever happens, each token is settled, or booked as an orphan, or still running or waiting at the end.

    An orphan is with one open session at a time, and no session has more than its window.
    """
    rng = random.Random(seed)
    orphans: Orphans[int] = Orphans(window=window)
    now, keys, names = 0.0, iter(range(1, 10_000)), iter(range(1, 10_000))
    open_sessions: dict[int, str] = {}
    running: dict[tuple[int, int], bytes] = {}
    ended: dict[tuple[int, int], bytes] = {}
    made: Counter[bytes] = Counter()
    accounted: Counter[bytes] = Counter()
    holder: dict[int, tuple[int, Orphan]] = {}

    def offer() -> None:
        for _, (session, orphan) in list(holder.items()):
            if offered_at[orphan.orphan_id] + ANSWER_S <= now or session not in open_sessions:
                del holder[orphan.orphan_id]
        for session, orphan in orphans.offers(open_sessions, now=now):
            assert session in open_sessions
            assert orphan.orphan_id not in holder
            holder[orphan.orphan_id] = (session, orphan)
            offered_at[orphan.orphan_id] = now
        assert all(count <= window for count in Counter(session for session, _ in holder.values()).values())

    offered_at: dict[int, float] = {}
    for _ in range(rng.randrange(60)):
        now += rng.choice((0.0, 0.1, 2.0, 20.0))
        match rng.randrange(7):
            case 0:
                open_sessions[next(names)] = rng.choice("XYZ")
            case 1 if open_sessions:
                session, settlement = rng.choice(list(open_sessions)), b"%d" % next(names)
                for _ in range(rng.randrange(1, 4)):
                    key = next(keys)
                    orphans.begin(session, key, settlement, 5)
                    running[session, key] = settlement
            case 2 | 3 if running:
                session, key = rng.choice(list(running))
                settlement, tokens = running.pop((session, key)), rng.randrange(5)
                orphans.end(session, key, Usage(5, tokens, 0), "ok", now=now)
                made[settlement] += tokens
                ended[session, key] = settlement
                if rng.random() < 0.5 and session in open_sessions:
                    orphans.settle(session, [key])
                    del ended[session, key]
                    accounted[settlement] += tokens
            case 4 if open_sessions:
                session = rng.choice(list(open_sessions))
                orphans.lose(session, open_sessions.pop(session), now=now)
            case 5 if holder:
                orphan_id, (_, orphan) = rng.choice(list(holder.items()))
                orphans.book([orphan_id])
                del holder[orphan_id]
                accounted[orphan.settlement] += orphan.usage.completion_tokens
        offer()
    # In the end every gateway breaks off, everything ends, and a last one books it.
    for session, gateway_id in list(open_sessions.items()):
        orphans.lose(session, gateway_id, now=now)
    open_sessions.clear()
    for (session, key), settlement in running.items():
        orphans.end(session, key, Usage(5, 2, 0), "client_closed_request", now=now)
        made[settlement] += 2
    now += LATER
    last = next(names)
    while told := orphans.offers({last: "last"}, now=now):
        for _, orphan in told:
            accounted[orphan.settlement] += orphan.usage.completion_tokens
        orphans.book([orphan.orphan_id for _, orphan in told])
    assert len(orphans) == 0
    assert +accounted == +made
