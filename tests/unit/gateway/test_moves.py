"""Where a request goes on, told as what happens to it and what it does next."""

from __future__ import annotations

import pytest

from gateway.core.moves import PAUSES_S, REFUSALS, Moves, Park, Pause
from inferway.errors import ApiError, Reason

NOW = 1000.0
DEADLINE = NOW + 30.0
RETRY = "x-should-retry"


def error(reason: Reason) -> ApiError:
    return ApiError(reason, reason.label)


FULL, LOST, NOT_READY = error(Reason.OVERLOADED), error(Reason.WORKER_FAILED), error(Reason.MODEL_NOT_READY)


def test_whom_it_avoids() -> None:
    """All that have not served it, each for its own reason."""
    moves = Moves(DEADLINE)
    moves.failed("full", error(Reason.OVERLOADED))
    moves.failed("drains", error(Reason.SHUTTING_DOWN))
    moves.failed("broke", error(Reason.WORKER_FAILED), session_broke=True)
    moves.cannot_reach("away")
    moves.cannot_use("other")
    assert set(moves.avoided) == {"full", "drains", "broke", "away", "other"}


@pytest.mark.parametrize("reason", Reason)
def test_what_may_be_followed(reason: Reason) -> None:
    """Refusals at any time, a lost worker once, and nothing that is of the request."""
    moves = Moves(DEADLINE)
    assert moves.may_follow(error(reason)) == (reason in REFUSALS or reason is Reason.WORKER_FAILED)
    moves.failed("a", error(Reason.WORKER_FAILED))
    assert moves.may_follow(error(reason)) == (reason in REFUSALS)


def test_what_its_caller_is_told() -> None:
    """Not to come again with what has lost two workers; a first loss, or a refusal after one, says nothing of it."""
    moves = Moves(DEADLINE)
    assert RETRY not in moves.final(error(Reason.WORKER_FAILED)).extra_headers
    moves.failed("a", error(Reason.WORKER_FAILED))
    assert moves.final(error(Reason.WORKER_FAILED)).extra_headers == {RETRY: "false"}
    assert RETRY not in moves.final(error(Reason.CONTEXT_LENGTH_EXCEEDED)).extra_headers


def test_full_workers_are_asked_again() -> None:
    """After each pause all that were full are asked; then the last answer stands."""
    moves, now = Moves(DEADLINE), NOW
    for pause_s in PAUSES_S:
        moves.failed("a", FULL)
        moves.cannot_reach("away")
        moves.cannot_use("other")
        assert moves.after_rejection(error(Reason.OVERLOADED), now) == Pause(now + pause_s)
        assert moves.avoided == ("other",)
        now += pause_s
    moves.failed("a", FULL)
    assert moves.after_rejection(error(Reason.OVERLOADED), now) is FULL


def test_no_pause_ends_after_the_deadline() -> None:
    """Whoever was full is not waited for when the queue's time is over before."""
    moves = Moves(NOW + PAUSES_S[0])
    moves.failed("a", FULL)
    assert moves.after_rejection(error(Reason.OVERLOADED), NOW) is FULL


@pytest.mark.parametrize(
    ("answer", "now", "parks"),
    [(Reason.OVERLOADED, NOW, True), (Reason.MODEL_NOT_READY, NOW, True), (Reason.OVERLOADED, DEADLINE, False)],
)
def test_who_is_away_is_waited_for(answer: Reason, now: float, *, parks: bool) -> None:
    """Once each time, until the queue's time is over."""
    moves, said = Moves(DEADLINE), error(answer)
    moves.cannot_reach("away")
    assert moves.after_rejection(said, now) == (Park() if parks else said)
    assert moves.after_rejection(said, now) is said


def test_the_better_answer() -> None:
    """What a worker said, unless the router knows that the prompt kills workers."""
    moves = Moves(DEADLINE)
    assert moves.after_rejection(FULL, NOW) is FULL
    moves.failed("a", NOT_READY)
    assert moves.after_rejection(FULL, NOW) is NOT_READY
    assert moves.after_rejection(LOST, NOW) is LOST
    assert LOST.extra_headers == {RETRY: "false"}
