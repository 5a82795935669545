"""The batch: steps, chunked prefill, prefix cache, queue and memory, in a time that the tests choose."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.blocks import BlocksRemoved, BlocksStored, KvEvent, block_hashes
from worker.engine import FinishReason, Output
from worker.engines.scripted.batch import Batch, Job
from worker.engines.scripted.play import Part, Play, planned_tokens
from worker.engines.scripted.script import read_item

BLOCK = 4


def make(**options: Any) -> Batch:
    return Batch(
        **{
            "max_running": 2,
            "kv_tokens": 400,
            "block_size": BLOCK,
            "step_s": 0.0,
            "prefill_tokens_per_s": 0.0,
            **options,
        }
    )


def job(key: int, prompt: list[int], script: list[dict[str, Any]] | None = None, **more: Any) -> Job:
    """Without a script: three tokens, then stop."""
    items = tuple(read_item(item, "item") for item in script or [{"text": "x", "repeat": 3}, {"finish": "stop"}])
    who = Part("A", 0, lambda: prompt, lambda: "", lambda token: 10_000 + len(str(token)))
    limit = more.pop("limit_tokens", 1_000)
    expected = min(limit, planned_tokens(items) or 0)
    return Job(key, f"r{key}", "m", prompt, Play(items, who), limit, expected, **more)


class Clock:
    """Runs a batch and keeps what it said: (time, output), events, in order."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.now = 0.0
        self.outputs: list[tuple[float, Output]] = []
        self.events: list[KvEvent] = []

    def run(self, until: float = 1e9) -> None:
        for _ in range(10_000):
            at = self.batch.next_step_at()
            if at is None or at > until:
                self.now = max(self.now, until if until < 1e9 else self.now)
                return
            self.now = max(self.now, at)
            result = self.batch.step(now=self.now)
            self.outputs += [(self.now, output) for output in result.outputs]
            self.events += result.kv_events
        raise AssertionError("the batch never comes to rest")

    def submit(self, *jobs: Job) -> None:
        for one in jobs:
            self.batch.submit(one, now=self.now)

    def of(self, key: int) -> list[tuple[float, Output]]:
        return [(round(at, 6), output) for at, output in self.outputs if output.key == key]

    def ended_at(self, key: int) -> float:
        return self.of(key)[-1][0]


def test_without_load_options_a_script_plays_as_it_falls_due() -> None:
    """Nothing takes time but what the script says."""
    clock = Clock(make())
    clock.submit(job(1, [1], [{"text": "a"}, {"sleep_ms": 500}, {"text": "b", "repeat": 3, "gap_ms": 20}]))
    clock.run()
    assert [at for at, _ in clock.of(1)] == [0, 0.5, 0.52, 0.54, 0.54]


def test_a_late_timer_does_not_shift_what_follows() -> None:
    """The gaps of a script are kept on average; a batch that is far behind does not hurry after them."""
    clock = Clock(make())
    clock.submit(job(1, [1], [{"text": "t", "repeat": 100, "gap_ms": 20}]))
    clock.run(until=0.0)
    clock.now = 0.025
    clock.run(until=0.039)
    assert clock.batch.next_step_at() == pytest.approx(0.04)
    clock.now = 1.0
    clock.run(until=1.0)
    assert clock.batch.next_step_at() == pytest.approx(1.02)


def test_each_step_gives_one_token_to_every_running_choice() -> None:
    """With a step length, tokens come at its pace, for all choices in the same step."""
    clock = Clock(make(step_s=0.1))
    clock.submit(job(1, [1]), job(2, [2]))
    clock.run()
    assert [at for at, _ in clock.of(1)] == pytest.approx([0.1, 0.2, 0.3, 0.4])
    # The second came while the first step was under way.
    assert [at for at, _ in clock.of(2)] == pytest.approx([0.2, 0.3, 0.4, 0.5])


def test_a_prompt_is_computed_in_chunks() -> None:
    """First token after prompt / rate, rounded up to whole steps; others decode meanwhile."""
    clock = Clock(make(step_s=0.1, prefill_tokens_per_s=100))
    clock.submit(job(1, list(range(35))))
    clock.run(until=0.35)
    assert clock.of(1) == []
    assert clock.batch.load().uncached_tokens_in_flight == 5
    clock.run()
    assert clock.of(1)[0][0] == pytest.approx(0.4)


def test_a_repeated_prompt_is_found_in_the_cache() -> None:
    """Whole blocks are reused, the last token is always computed, salts and models keep to themselves."""
    prompt = list(range(12))
    for second, cached in ((prompt, 8), ([*prompt, 99], 12), ([0, 1, 2, 3, 9], 4), ([9, *prompt], 0)):
        clock = Clock(make())
        clock.submit(job(1, prompt))
        clock.run()
        clock.submit(job(2, second), job(3, second, cache_salt=b"other"))
        clock.run()
        assert clock.of(1)[0][1].cached_tokens == 0
        assert clock.of(2)[0][1].cached_tokens == cached
        assert clock.of(3)[0][1].cached_tokens == 0


def test_events_carry_the_shared_hashes() -> None:
    """What is stored are the hashes that the gateway computes for the same prompt."""
    clock = Clock(make())
    prompt = list(range(10))
    clock.submit(job(1, prompt, [{"finish": "stop"}]))
    clock.run()
    assert clock.events == [BlocksStored("m", block_hashes(prompt, BLOCK))]


def test_an_answer_enters_the_cache_with_its_prompt() -> None:
    """The next turn of a conversation finds the answer too."""
    clock = Clock(make())
    clock.submit(job(1, [1, 2, 3, 4, 5], [{"text": "x", "repeat": 4}, {"finish": "stop"}]))
    clock.run()
    said = [token for _, output in clock.of(1) for token in output.token_ids]
    clock.submit(job(2, [1, 2, 3, 4, 5, *said, 7]))
    clock.run()
    assert clock.of(2)[0][1].cached_tokens == 8


def test_above_max_running_the_highest_priority_goes_first() -> None:
    """Waiting choices start by priority, then by arrival."""
    clock = Clock(make(max_running=1, step_s=0.1))
    clock.submit(job(1, [1]), job(2, [2]), job(3, [3], priority=9), job(4, [4]))
    assert clock.batch.load().num_requests_waiting == 3
    clock.run()
    assert sorted((1, 2, 3, 4), key=clock.ended_at) == [1, 3, 2, 4]
    # Each is told how long it waited: until the one before it had ended.
    waited = [clock.of(key)[0][1].queue_s for key in (1, 3, 2, 4)]
    assert waited == [0.0, *(pytest.approx(clock.ended_at(key)) for key in (1, 3, 2))]


@pytest.mark.parametrize("key", [1, 2])
def test_a_cancelled_choice_is_answered_and_frees_its_place(key: int) -> None:
    """Running or waiting, the next step says aborted once and the slot is free."""
    clock = Clock(make(max_running=1))
    never = [{"sleep_ms": 600_000}]
    clock.submit(job(1, [1, 2, 3, 4, 5], never), job(2, [2], never))
    clock.run(until=1.0)
    assert clock.batch.cancel(key)
    assert not clock.batch.cancel(key)
    clock.run(until=2.0)
    assert [(at, output.finish_reason) for at, output in clock.of(key)] == [(1.0, FinishReason.ABORTED)]
    load = clock.batch.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (1, 0)
    assert not clock.batch.cancel(99)


def test_memory_that_is_needed_is_taken_from_the_least_recently_used() -> None:
    """Old prompts leave the cache, leaves before their parents; running ones never do."""
    clock = Clock(make(kv_tokens=5 * BLOCK))
    end = [{"finish": "stop"}]
    clock.submit(job(1, [1] * 8, end))
    clock.run()
    clock.submit(job(2, [2] * 8, end))
    clock.run()
    clock.submit(job(3, [1] * 9, end))
    clock.run()
    clock.submit(job(4, [4] * 8, end))
    clock.run()
    assert clock.events[-2] == BlocksRemoved("m", block_hashes([2] * 8, BLOCK)[:0:-1])
    assert clock.of(3)[0][1].cached_tokens == 8


def test_a_choice_waits_until_memory_is_free() -> None:
    """What does not fit beside the running ones starts when they end, in its order."""
    clock = Clock(make(kv_tokens=4 * BLOCK, step_s=0.1))
    clock.submit(job(1, [1] * 9), job(2, [2] * 9))
    clock.run(until=0.15)
    load = clock.batch.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (1, 1)
    assert load.kv_used_tokens <= load.kv_total_tokens
    clock.run()
    assert clock.of(2)[0][0] > clock.ended_at(1)


@pytest.mark.parametrize(
    ("script", "limit", "tokens", "reason", "completion"),
    [
        ([{"text": "a"}, {"text": "b"}, {"text": "c"}], 2, 2, FinishReason.LENGTH, None),
        ([{"text": "a"}, {"text": "b"}], 2, 2, FinishReason.LENGTH, None),
        ([{"text": "a"}, {"finish": "stop", "usage": {"completion": 9}}], 1, 1, FinishReason.STOP, 9),
        ([{"text": "a", "finish": "stop"}], 1, 1, FinishReason.STOP, None),
        ([{"pieces": ["a", "b", "c"], "finish": "stop", "usage": {"completion": 3}}], 2, 2, FinishReason.LENGTH, None),
        ([{"text": "a"}, {"finish": "stop"}], 5, 1, FinishReason.STOP, None),
        ([{"text": "a"}, {"finish": "stop"}], 0, 0, FinishReason.LENGTH, None),
        ([{"finish": "stop", "usage": {"completion": 9}}], 0, 0, FinishReason.LENGTH, None),
    ],
)
def test_max_tokens_ends_a_choice(
    script: list[dict[str, Any]], limit: int, tokens: int, reason: FinishReason, completion: int | None
) -> None:
    """The limit is kept to the token; a script that ends at the same token says how."""
    clock = Clock(make())
    clock.submit(job(1, [1], script, limit_tokens=limit))
    clock.run()
    outputs = [output for _, output in clock.of(1)]
    assert sum(len(output.token_ids) for output in outputs) == tokens
    assert (outputs[-1].finish_reason, outputs[-1].completion_tokens) == (reason, completion)
    assert all(output.finish_reason is None for output in outputs[:-1])


def test_a_prompt_that_is_scored_is_computed_anew() -> None:
    """Its log-probabilities are in the first output, and the cache saves nothing of it."""
    clock = Clock(make(step_s=0.1, prefill_tokens_per_s=100))
    prompt = list(range(20))
    for key in (1, 2):
        clock.submit(job(key, prompt, limit_tokens=0, logprobs=0, prompt_logprobs=True))
        clock.run()
    (_, first), (at, second) = *clock.of(1), *clock.of(2)
    assert (first.cached_tokens, second.cached_tokens) == (0, 0)
    # It came while a step was under way.
    assert at - clock.ended_at(1) == pytest.approx(0.1 + 0.2)
    for output in (first, second):
        assert [one.token_id for one in output.prompt_logprobs or ()] == prompt
        assert (list(output.token_ids), output.finish_reason) == ([], FinishReason.LENGTH)


def test_failures_are_told_to_the_log() -> None:
    """The step that fails a choice names its request and the script's own words."""
    batch = make()
    batch.submit(job(7, [1], [{"grpc_error": {"code": "INTERNAL", "details": "oom"}}]), now=0.0)
    result = batch.step(now=0.0)
    assert [(failed.request_id, failed.detail) for failed in result.failures] == [("r7", "INTERNAL: oom")]
    assert result.outputs[0].error is not None


PROMPTS = st.lists(st.sampled_from([1, 2]), min_size=1, max_size=14)


@given(
    st.lists(st.tuples(PROMPTS, st.integers(0, 9), st.booleans(), st.integers(1, 6)), min_size=1, max_size=14),
    st.sampled_from([0.0, 0.1]),
    st.sampled_from([0.0, 30.0]),
    st.integers(5, 12),
)
def test_every_choice_ends_once_and_memory_never_overflows(
    requests: list[tuple[list[int], int, bool, int]], step_s: float, rate: float, blocks: int
) -> None:
    """Whatever comes and is cancelled: one end each, books back to nothing, events rebuild the cache."""
    clock = Clock(make(kv_tokens=blocks * BLOCK, step_s=step_s, prefill_tokens_per_s=rate if step_s else 0.0))
    for key, (prompt, priority, cancelled, length) in enumerate(requests):
        script: list[dict[str, Any]] = [{"text": "x", "repeat": length, "gap_ms": 30}, {"finish": "stop"}]
        limit = 0 if priority % 4 == 1 else 1_000
        clock.submit(job(key, prompt, script, priority=priority, limit_tokens=limit, prompt_logprobs=priority % 3 == 1))
        clock.run(until=clock.now + 0.05)
        if cancelled:
            clock.batch.cancel(key)
        load = clock.batch.load()
        assert 0 <= load.kv_used_tokens <= load.kv_total_tokens
        assert load.num_requests_running <= 2
        assert load.uncached_tokens_in_flight >= 0
    clock.run()
    for key in range(len(requests)):
        ends = [output for _, output in clock.of(key) if output.finish_reason is not None]
        assert len(ends) == 1
        assert clock.of(key)[-1][1] is ends[0]
    load = clock.batch.load()
    assert (load.num_requests_running, load.num_requests_waiting) == (0, 0)
    assert (load.uncached_tokens_in_flight, load.kv_used_tokens) == (0, 0)
    held: set[int] = set()
    for event in clock.events:
        match event:
            case BlocksStored():
                assert not held & set(event.block_hashes)
                held |= set(event.block_hashes)
            case BlocksRemoved():
                assert set(event.block_hashes) <= held
                held -= set(event.block_hashes)
        assert len(held) <= blocks


@pytest.mark.parametrize("script", [[{"text": "x"}, {"finish": "stop"}], [{"text": "x"}, {"sleep_ms": 60_000}]])
def test_a_newcomer_within_a_step_is_admitted_by_the_next_one(script: list[dict[str, Any]]) -> None:
    """A request that comes within a step is not forgotten, whether nobody else runs or nobody has anything to say."""
    clock = Clock(make(step_s=1.0))
    clock.batch.submit(job(1, [1, 2], script), now=0.0)
    clock.run(until=2.0)
    clock.batch.submit(job(2, [3, 4]), now=2.5)
    clock.run(until=10.0)
    assert [output.finish_reason for _, output in clock.outputs if output.key == 2][-1:] == [FinishReason.STOP]
