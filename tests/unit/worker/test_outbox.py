"""What waits for a session: merged by key, cut into messages, bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import ApiError, Reason
from worker.core.choice import Delta, Usage
from worker.core.outbox import Outbox
from worker.engine import FinishReason


def drain(outbox: Outbox) -> list[list[tuple[int, Delta]]]:
    batches = []
    while batch := outbox.take():
        batches.append(batch)
    return batches


def test_deltas_of_one_step_leave_in_one_message() -> None:
    """Each key once, those of one size in the order in which they came."""
    outbox = Outbox()
    for key in (3, 1, 2):
        outbox.put(key, Delta("x", 1))
    assert [key for key, _ in outbox.take()] == [3, 1, 2]
    assert not outbox
    assert outbox.size_bytes == 0


def test_while_the_writer_is_busy_deltas_of_a_key_grow_together() -> None:
    """Text is appended, counts are replaced, the end is kept."""
    outbox = Outbox()
    outbox.put(1, Delta("a", 1, usage=Usage(5, 1, 2)))
    outbox.put(2, Delta("z", 1))
    outbox.put(1, Delta("b", 2))
    outbox.put(1, Delta("c", 3, FinishReason.STOP, Usage(5, 3, 2)))
    assert outbox.take() == [(2, Delta("z", 1)), (1, Delta("abc", 3, FinishReason.STOP, Usage(5, 3, 2)))]


def test_the_first_usage_survives_a_merge() -> None:
    """A delta without usage does not take away the one that waits."""
    outbox = Outbox()
    outbox.put(1, Delta("a", 1, usage=Usage(5, 1, 2)))
    outbox.put(1, Delta("b", 2))
    assert outbox.take() == [(1, Delta("ab", 2, usage=Usage(5, 1, 2)))]


def test_a_text_larger_than_a_message_is_cut_and_its_end_comes_last() -> None:
    """No message is too large, no character is lost, and the finish reason is in the last part only."""
    outbox = Outbox(batch_bytes=1_000)
    text = "ab👋" * 2_000
    outbox.put(1, Delta(text, 9, FinishReason.STOP, Usage(5, 9, 0)))
    outbox.put(2, Delta("z", 1))
    batches = drain(outbox)
    parts = [delta for batch in batches for key, delta in batch if key == 1]
    assert "".join(part.text for part in parts) == text
    assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + [FinishReason.STOP]
    assert all(sum(len(delta.text.encode()) for _, delta in batch) < 1_000 for batch in batches)
    assert batches[0][0] == (2, Delta("z", 1))


def test_messages_of_a_large_text_are_full() -> None:
    """A text of one byte a character fills its messages."""
    outbox = Outbox(batch_bytes=1_096)
    outbox.put(1, Delta("x" * 10_000, 1))
    assert len(drain(outbox)) == 10


def test_a_token_does_not_wait_for_the_floods_beside_it() -> None:
    """The smallest go first; a flood waits for the round in which it is, not for the next."""
    outbox = Outbox(batch_bytes=1_000)
    for key in range(5):
        outbox.put(key, Delta("x" * 600, 1))
    outbox.put(5, Delta("token", 1))
    first = outbox.take()
    assert [key for key, _ in first] == [5, 0]
    outbox.put(6, Delta("token", 1))
    outbox.put(0, Delta("x" * 500, 2))
    assert [key for batch in drain(outbox) for key, _ in batch] == [1, 2, 3, 4, 6, 0]


def test_a_token_does_not_wait_for_a_flood_that_grows_as_fast_as_it_is_read() -> None:
    """Each key gives one message a round at most, however much of it comes meanwhile."""
    outbox = Outbox(batch_bytes=1_000)
    outbox.put(1, Delta("x" * 5_000, 1))
    outbox.take()
    outbox.put(2, Delta("token", 1))
    keys = []
    for _ in range(3):
        outbox.put(1, Delta("x" * 900, 1))
        keys += [key for key, _ in outbox.take()]
    assert 2 in keys


def test_a_refusal_is_told_before_the_words_of_its_siblings() -> None:
    """However long its sentence: a gateway moves a request only while no choice of it has spoken."""
    outbox = Outbox()
    outbox.put(1, Delta("a", 1, usage=Usage(5, 1, 0)))
    error = ApiError(Reason.OVERLOADED, "This worker takes 8 requests at a time and has 8.")
    outbox.put(2, Delta(error=error))
    assert [key for key, _ in outbox.take()] == [2, 1]


@given(st.lists(st.tuples(st.integers(1, 4), st.text("aé👋", max_size=60), st.booleans()), max_size=40))
def test_nothing_is_lost_or_mixed_however_it_is_taken(puts: list[tuple[int, str, bool]]) -> None:
    """Each key's text is its puts in order, whatever is taken between them; the size falls back to nothing."""
    outbox = Outbox(batch_bytes=200)
    sent: dict[int, str] = {}
    expected: dict[int, str] = {}
    for key, text, take in puts:
        outbox.put(key, Delta(text, 1))
        expected[key] = expected.get(key, "") + text
        if take:
            for taken, delta in outbox.take():
                sent[taken] = sent.get(taken, "") + delta.text
    for batch in drain(outbox):
        for taken, delta in batch:
            sent[taken] = sent.get(taken, "") + delta.text
    assert sent == expected
    assert outbox.size_bytes == 0


def test_above_the_limit_the_largest_choices_are_given_up() -> None:
    """They lose their text, get an error and are named, so that they are aborted; small ones keep all."""
    outbox = Outbox(limit_bytes=10_000)
    outbox.put(1, Delta("small", 1))
    assert outbox.put(2, Delta("x" * 6_000, 1)) == ()
    assert outbox.put(3, Delta("y" * 6_000, 1)) == [2]
    deltas = dict(pair for batch in drain(outbox) for pair in batch)
    assert deltas[1].text == "small"
    assert deltas[2].text == ""
    assert deltas[2].error is not None
    assert deltas[2].error.reason is Reason.OVERLOADED
    assert len(deltas[3].text) in (0, 6_000)


def test_the_final_counts_of_a_choice_that_is_given_up() -> None:
    """They go with its error, in place of those that waited."""
    outbox = Outbox(limit_bytes=1_000)
    outbox.put(1, Delta("x", 1, usage=Usage(5, 1, 2)))
    assert outbox.put(1, Delta("x" * 2_000, 9)) == [1]
    outbox.tell_usage(1, Usage(5, 9, 2))
    ((_, delta),) = outbox.take()
    assert delta.error is not None
    assert (delta.completion_tokens, delta.usage) == (9, Usage(5, 9, 2))


def test_a_finished_choice_that_is_given_up_needs_no_abort() -> None:
    """Its text is dropped as well, but the engine has nothing left to stop."""
    outbox = Outbox(limit_bytes=1_000)
    assert outbox.put(1, Delta("x" * 2_000, 1, FinishReason.STOP)) == []
    ((_, delta),) = outbox.take()
    assert delta.finish_reason is None
    assert delta.error is not None


def test_an_error_is_told_with_the_text_before_it() -> None:
    """A failure does not swallow what was produced."""
    outbox = Outbox()
    error = ApiError(Reason.WORKER_FAILED, "The engine failed on this request.")
    outbox.put(1, Delta("par", 1))
    outbox.put(1, Delta("", 1, error=error))
    assert outbox.take() == [(1, Delta("par", 1, error=error))]
