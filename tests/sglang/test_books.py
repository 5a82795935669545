"""The load that the SGLang engine reports, from what it holds and what the scheduler says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.engines.sglang.books import Books, Reading, total

RUNNING, WAITING = 4, 12


def books(choices: int = 0, prompt_tokens: int = 100) -> Books:
    made = Books(max_running=RUNNING, max_waiting=WAITING)
    for key in range(choices):
        made.admit(key, prompt_tokens=prompt_tokens, cached_tokens=0)
    return made


def counts(one: Books) -> tuple[int, int]:
    load = one.load()
    return load.num_requests_running, load.num_requests_waiting


def test_counted_before_the_scheduler_knows() -> None:
    """A choice waits from its admission on, with all of its prompt to compute."""
    held = books(1)
    assert counts(held) == (0, 1)
    assert held.load().uncached_tokens_in_flight == 100


def test_more_than_wait_run() -> None:
    """What is held beyond the waiting places runs, whatever an old reading says."""
    held = books(RUNNING + WAITING)
    assert held.is_full
    assert counts(held) == (RUNNING, WAITING)


def test_the_schedulers_word() -> None:
    """Among what is held, the scheduler knows what runs."""
    held = books(6)
    held.read(Reading(running=3, waiting=3))
    assert counts(held) == (3, 3)


def test_old_reading_of_what_has_ended() -> None:
    """A reading from before an end counts nothing that is no longer held."""
    held = books(2)
    held.read(Reading(running=2))
    held.end(0)
    assert counts(held) == (1, 0)
    held.end(1)
    held.end(1)
    assert counts(held) == (0, 0)


def test_between_prompt_and_batch() -> None:
    """Choices with output run also when the scheduler has not put them into its batch yet."""
    held = books(3)
    held.read(Reading(running=0, waiting=0))
    for key in range(2):
        held.answered(key)
    assert counts(held) == (2, 1)


def test_prompt_in_parts() -> None:
    """Each part that the scheduler computes of a prompt leaves less of it in flight, and an answer the rest."""
    held = books(1, prompt_tokens=1500)
    for computed, left in ((0, 1500), (512, 988), (1024, 476)):
        held.read(Reading(running=1, prefilled_tokens=computed))
        assert held.load().uncached_tokens_in_flight == left
    held.answered(0)
    held.read(Reading(running=1, prefilled_tokens=1500))
    assert held.load().uncached_tokens_in_flight == 0
    held.admit(1, prompt_tokens=300, cached_tokens=128)
    assert held.load().uncached_tokens_in_flight == 172


def test_aborted_in_the_middle_of_its_prompt() -> None:
    """What was computed for a choice that is gone is not taken off the next one's prompt."""
    held = books(1, prompt_tokens=1500)
    held.read(Reading(running=1, prefilled_tokens=1024))
    held.end(0)
    held.read(Reading(prefilled_tokens=1024))
    held.admit(1, prompt_tokens=700, cached_tokens=0)
    assert held.load().uncached_tokens_in_flight == 700


def test_speed() -> None:
    """Prompt tokens a second are known after some hundred of them, and follow the newest readings."""
    held = books()
    held.read(Reading(prefilled_tokens=10, prefill_us=1))
    assert held.load().prefill_tokens_per_s == 0
    held.read(Reading(prefilled_tokens=1000, prefill_us=1_000_000))
    assert held.load().prefill_tokens_per_s == 1000
    held.read(Reading(prefilled_tokens=3000, prefill_us=2_000_000))
    assert held.load().prefill_tokens_per_s == 1300


def test_ranks_add_up() -> None:
    """The load of an engine with several schedulers is their sum."""
    one = Reading(1, 2, 3, 4, 5, 6, 7)
    assert total([one, one]) == Reading(2, 4, 6, 8, 10, 12, 14)
    assert total([]) == Reading()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(1, 2000), st.integers(0, 2000)),
        st.tuples(st.just("answered"), st.integers(0, 30), st.integers(0, 2000)),
        st.tuples(st.just("end"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("read"), st.integers(0, 20), st.integers(0, 20)),
    ),
    max_size=60,
)


@given(STEPS)
def test_always_in_range(steps: list[tuple[str, int, int]]) -> None:
    """Whatever readings say and in whatever order things end, the load stays within the engine's bounds."""
    held = books()
    keys = 0
    for what, first, second in steps:
        if what == "admit" and not held.is_full:
            held.admit(keys, prompt_tokens=first, cached_tokens=min(first, second))
            keys += 1
        elif what == "answered":
            held.answered(first)
        elif what == "end":
            held.end(first)
        elif what == "read":
            held.read(Reading(running=first, waiting=second, kv_used_tokens=first, kv_total_tokens=second))
        load = held.load()
        assert load.num_requests_running + load.num_requests_waiting == len(held)
        assert 0 <= load.num_requests_running <= RUNNING
        assert 0 <= load.num_requests_waiting <= WAITING
        assert load.uncached_tokens_in_flight >= 0
        assert 0 <= load.kv_used_tokens <= load.kv_total_tokens
