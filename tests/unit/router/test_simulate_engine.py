"""The engine of the simulator: times and memory that were worked out by hand, and a model that goes step by step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.blocks import BlocksRemoved, BlocksStored
from router.simulate.engine import Engine, EngineLoad, EngineSettings, Job
from tests.support.simulated import ENGINE as PLAIN


def job(key: int, prompt: int, output: int, *, hashes: range | list[int] | None = None, priority: int = 0) -> Job:
    """Without hashes, the prompt has nothing in common with any other."""
    blocks = range(1000 * key, 1000 * key + prompt // 10) if hashes is None else hashes
    return Job(key, prompt, output, list(blocks), priority)


@dataclass
class Seen:
    """When each job began and ended its answer, and what it had cached."""

    first: dict[int, float] = field(default_factory=dict)
    end: dict[int, float] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)


def play(settings: EngineSettings, *arrivals: tuple[float, Job]) -> Seen:
    """Submit each job at its time, in the order of the times, and run the engine dry."""
    engine, seen = Engine(settings, model="m"), Seen()
    for at, arriving in arrivals:
        run_until(engine, at, seen)
        engine.submit(arriving, now=at)
    run_until(engine, float("inf"), seen)
    return seen


def run_until(engine: Engine, at: float, seen: Seen) -> None:
    while (now := engine.happens_at()) < at:
        happened = engine.run()
        for begun in happened.first_tokens:
            seen.first[begun.key] = now
            seen.cached[begun.key] = begun.cached_tokens
        for ended in happened.finished:
            seen.end[ended.key] = now


@pytest.mark.parametrize(
    ("prompt", "output", "first", "end"),
    [
        # 10 + 50 ms.
        (50, 1, 0.060, 0.060),
        # Two full chunks of 10 + 100 ms and a last one of 10 + 50 ms.
        (250, 1, 0.280, 0.280),
        # A chunk, then two more tokens in steps of 10 + 1 ms.
        (100, 3, 0.110, 0.132),
        (1, 101, 0.011, 0.011 + 100 * 0.011),
    ],
)
def test_one_job(prompt: int, output: int, first: float, end: float) -> None:
    """A prompt is computed in chunks, the last of which makes the first token; each further one takes a step."""
    seen = play(PLAIN, (0.0, job(1, prompt, output)))
    assert seen.first == pytest.approx({1: first})
    assert seen.end == pytest.approx({1: end})


def test_a_job_that_comes_within_a_step_waits_for_its_end() -> None:
    """The second prompt is computed beside the first answer, which it slows down."""
    seen = play(PLAIN, (0.0, job(1, 100, 10)), (0.050, job(2, 100, 1)))
    # Until 110 ms the first prompt; until 221 ms the second, beside the first one's second token; then 8 more tokens.
    assert seen.first == pytest.approx({1: 0.110, 2: 0.221})
    assert seen.end == pytest.approx({1: 0.221 + 8 * 0.011, 2: 0.221})


def test_prompts_share_a_chunk() -> None:
    """What the first leaves of a step's prompt tokens goes to the next."""
    seen = play(PLAIN, (0.0, job(1, 150, 1)), (0.0, job(2, 30, 1)))
    # 100 of the first; then 50 + 30 of both.
    assert seen.first == pytest.approx({1: 0.200, 2: 0.200})


@pytest.mark.parametrize(
    ("overlap", "first"),
    # Beside a prompt chunk of 100 ms there are 11 ms of an answer.
    [(0.0, 0.110 + 0.111), (0.5, 0.105 + 0.1055), (1.0, 0.100 + 0.100)],
)
def test_prompts_in_the_shadow_of_answers(overlap: float, first: float) -> None:
    """With an overlap of 1 a step takes the longer of its two parts."""
    settings = replace(PLAIN, prefill_overlap=overlap)
    seen = play(settings, (0.0, job(1, 100, 50)), (0.050, job(2, 100, 1)))
    assert seen.first[2] == pytest.approx(first)


def test_the_batch_makes_steps_longer() -> None:
    """Three answers side by side: 13 ms a step."""
    seen = play(PLAIN, *((0.0, job(key, 10, 101)) for key in (1, 2, 3)))
    # 20 ms for the first prompt; 10 + 1 + 20 ms for both others beside its answer.
    assert seen.first == pytest.approx({1: 0.020, 2: 0.051, 3: 0.051})
    # The first has two tokens when the others begin, and with its end their last step gets shorter.
    assert seen.end == pytest.approx(
        {1: 0.051 + 99 * 0.013, 2: 0.051 + 99 * 0.013 + 0.012, 3: 0.051 + 99 * 0.013 + 0.012}
    )


def test_slots_go_by_priority_then_by_arrival() -> None:
    """With one slot, the highest waiting priority is next."""
    settings = replace(PLAIN, max_running=1)
    arrivals = [(0.0, job(1, 10, 1)), *((0.001, job(key, 10, 1, priority=key % 2)) for key in (2, 3, 4, 5))]
    seen = play(settings, *arrivals)
    assert sorted(seen.end, key=seen.end.__getitem__) == [1, 3, 5, 2, 4]


def test_memory_is_reserved_for_prompt_and_answer() -> None:
    """20 blocks: 15 and 5 fit; the next waits, and holds back one behind it that would fit once the second is gone."""
    settings = replace(PLAIN, kv_tokens=200)
    engine, seen = Engine(settings, model="m"), Seen()
    # 100 + 50 tokens: 15 blocks. 40 + 10: 5. 60 + 40: 10. 10 + 1: 2.
    for waiting in (job(1, 100, 50), job(2, 40, 10), job(3, 60, 40), job(4, 10, 1)):
        engine.submit(waiting, now=0.0)
    assert engine.load(now=0.0) == EngineLoad(running=1, waiting=3, todo_tokens=210, kv_used_tokens=0)
    run_until(engine, float("inf"), seen)
    assert seen.end[2] < seen.end[1] < seen.first[3] <= seen.first[4]


def test_too_large_for_any_cache() -> None:
    """A job needs room for its prompt and its answer together."""
    engine = Engine(replace(PLAIN, kv_tokens=200), model="m")
    assert engine.could_ever_take(150, 50)
    assert not engine.could_ever_take(150, 51)


@pytest.mark.parametrize(
    ("prompt", "shared", "cached"),
    [
        # Two and a half blocks, two of them shared.
        (25, 2, 20),
        # The last token is always computed, so the last block of a prompt of whole blocks is not used.
        (30, 3, 20),
        (31, 3, 30),
        # Only leading blocks count.
        (55, 1, 10),
    ],
)
def test_a_cached_prefix_is_not_computed(prompt: int, shared: int, cached: int) -> None:
    """The second job finds the blocks that it shares with the first, which has ended."""
    hashes = [*range(shared), *range(500, 500 + prompt // 10 - shared)]
    seen = play(PLAIN, (0.0, job(1, 10 * shared, 1, hashes=range(shared))), (10.0, job(2, prompt, 1, hashes=hashes)))
    assert seen.cached == {1: 0, 2: cached}
    assert seen.first[2] - 10.0 == pytest.approx(0.010 + (prompt - cached) * 0.001)


def test_a_prefix_is_shared_once_it_is_computed() -> None:
    """Of two that come together both compute it; one that is admitted after its first token finds it."""
    hashes = range(4)
    seen = play(PLAIN, *((at, job(key, 45, 30, hashes=hashes)) for key, at in ((1, 0.0), (2, 0.0), (3, 0.1))))
    assert seen.cached == {1: 0, 2: 40, 3: 40}


def test_eviction_is_by_age_and_leaves_first() -> None:
    """Whoever was used last stays; of a chain the deepest block goes first; the router is told."""
    engine, seen = Engine(replace(PLAIN, kv_tokens=80), model="m"), Seen()
    for at, (key, hashes) in enumerate([(1, [11, 12]), (2, [21, 22]), (3, [31, 32]), (4, [11, 12])]):
        engine.submit(job(key, 20, 1, hashes=hashes), now=float(at))
        run_until(engine, at + 0.5, seen)
    assert seen.cached == {1: 0, 2: 0, 3: 0, 4: 10}
    stored = [BlocksStored("m", hashes) for hashes in ([11, 12], [21, 22], [31, 32])]
    assert engine.take_kv_events() == stored
    # Six blocks are cached; a job of four needs two of them to go.
    engine.submit(job(5, 30, 1, hashes=[51, 52, 53]), now=10.0)
    run_until(engine, 11.0, seen)
    assert engine.take_kv_events() == [BlocksRemoved("m", [22, 21]), BlocksStored("m", [51, 52, 53])]


def test_what_runs_is_not_evicted() -> None:
    """The oldest blocks stay while somebody runs on them; of the others the older go."""
    engine, seen = Engine(replace(PLAIN, kv_tokens=100), model="m"), Seen()
    engine.submit(job(1, 20, 30, hashes=[11, 12]), now=0.0)
    engine.submit(job(2, 20, 1, hashes=[21, 22]), now=0.0)
    run_until(engine, 0.1, seen)
    assert set(seen.end) == {2}
    engine.take_kv_events()
    # Five blocks are the first one's, two are idle, four are wanted.
    engine.submit(job(3, 39, 1, hashes=[31, 32, 33]), now=0.1)
    run_until(engine, 0.5, seen)
    assert BlocksRemoved("m", [22]) in engine.take_kv_events()
    assert set(seen.end) == {1, 2, 3}


def test_answers_stay_in_the_cache_until_room_is_needed() -> None:
    """An answer of two blocks leaves them there, and they go before the prompt that they hang on."""
    engine, seen = Engine(replace(PLAIN, kv_tokens=60), model="m"), Seen()
    engine.submit(job(1, 10, 25, hashes=[11]), now=0.0)
    run_until(engine, 1.0, seen)
    engine.submit(job(2, 40, 1, hashes=[21, 22, 23, 24]), now=1.0)
    run_until(engine, 2.0, seen)
    engine.submit(job(3, 15, 1, hashes=[11]), now=2.0)
    run_until(engine, 3.0, seen)
    # 3 blocks of the first (its answer's are the deeper two), 5 for the second: the answer's go.
    assert seen.cached == {1: 0, 2: 0, 3: 10}


@pytest.mark.parametrize(
    ("now", "load"),
    [
        # A prompt of 250 in chunks of 110 ms.
        (0.0, EngineLoad(1, 0, 250, 0)),
        (0.109, EngineLoad(1, 0, 250, 0)),
        (0.111, EngineLoad(1, 0, 150, 0)),
        (0.221, EngineLoad(1, 0, 50, 0)),
        # 25 blocks and a tail of 4 tokens; then a token every 11 ms.
        (0.285, EngineLoad(1, 0, 0, 254 + 1)),
        (0.296, EngineLoad(1, 0, 0, 254 + 2)),
        (0.309, EngineLoad(1, 0, 0, 254 + 3)),
    ],
)
def test_load(now: float, load: EngineLoad) -> None:
    """A reading is as of the last step that has ended."""
    engine = Engine(PLAIN, model="m")
    engine.submit(job(1, 254, 100), now=0.0)
    expected = load if load.kv_used_tokens else replace(load, todo_tokens=load.todo_tokens + 4)
    run_until(engine, now, Seen())
    assert engine.load(now=now) == expected


# A model of the same rules that goes from step to step.


@dataclass
class Chain:
    """A job of the model."""

    key: int
    arrived_at: float
    prompt: int
    output: int
    hashes: list[int]
    priority: int
    todo: int = 0
    said: int = 0


class StepByStep:
    """What the engine does, one step at a time, with lists that are searched; memory is never short."""

    def __init__(self, settings: EngineSettings, jobs: list[Chain]) -> None:
        self.settings, self.coming = settings, sorted(jobs, key=lambda one: one.arrived_at)
        self.seen, self.cache = Seen(), set[int]()

    def play(self) -> Seen:
        waiting: list[Chain] = []
        prefilling: list[Chain] = []
        decoding: list[Chain] = []
        now = 0.0
        while self.coming or waiting or prefilling or decoding:
            if not (waiting or prefilling or decoding) and self.coming[0].arrived_at > now:
                # Who comes to an idle engine is admitted at once, alone.
                waiting.append(self.coming.pop(0))
                now = waiting[0].arrived_at
            while self.coming and self.coming[0].arrived_at <= now:
                waiting.append(self.coming.pop(0))
            waiting.sort(key=lambda one: -one.priority)
            while waiting and len(prefilling) + len(decoding) < self.settings.max_running:
                prefilling.append(self.admit(waiting.pop(0)))
            now += self.step(prefilling, decoding)
            for one in [one for one in prefilling if not one.todo]:
                prefilling.remove(one)
                decoding.append(one)
                self.cache.update(one.hashes)
                self.seen.first[one.key] = now
            for one in list(decoding):
                one.said += 1
                if one.said == one.output:
                    decoding.remove(one)
                    self.seen.end[one.key] = now
        return self.seen

    def admit(self, one: Chain) -> Chain:
        cached = 0
        while cached < (one.prompt - 1) // 10 and cached < len(one.hashes) and one.hashes[cached] in self.cache:
            cached += 1
        self.seen.cached[one.key] = cached * 10
        one.todo = one.prompt - cached * 10
        return one

    def step(self, prefilling: list[Chain], decoding: list[Chain]) -> float:
        budget = self.settings.chunk_tokens
        for one in prefilling:
            chunk = min(budget, one.todo)
            one.todo -= chunk
            budget -= chunk
        prompt = (self.settings.chunk_tokens - budget) / self.settings.prefill_tokens_per_s
        decode = self.settings.step_s + self.settings.step_s_per_request * len(decoding)
        return decode + prompt - self.settings.prefill_overlap * min(decode, prompt)


jobs = st.lists(
    st.tuples(
        st.integers(0, 3000),
        st.integers(1, 400),
        st.integers(1, 60),
        st.integers(0, 3),
        st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
)


@given(jobs, st.sampled_from([0.0, 0.3, 1.0]), st.sampled_from([7, 100]), st.lists(st.floats(0.0, 4.0), max_size=8))
def test_many_steps_at_once_are_the_same(
    drawn: list[tuple[int, int, int, int, int]], overlap: float, chunk: int, looks: list[float]
) -> None:
    """Whatever comes when, and whenever somebody asks for the load, it is as if each step were taken by itself."""
    settings = replace(PLAIN, prefill_overlap=overlap, chunk_tokens=chunk, max_running=3, kv_tokens=1_000_000)
    chains = []
    for key, (ms, prompt, output, family, priority) in enumerate(sorted(drawn)):
        # Nobody comes just when a step ends: what counts as earlier is then a matter of rounding.
        arrived_at = ms / 1000 + key * 1.7e-6
        hashes = [*range(100 * family, 100 * family + prompt // 10)]
        chains.append(Chain(key, arrived_at, prompt, output, hashes, priority))
    expected = StepByStep(settings, chains).play()
    engine, seen = Engine(settings, model="m"), Seen()
    events = [(one.arrived_at, one.key) for one in chains] + [(at, -1) for at in looks]
    by_key = {one.key: one for one in chains}
    for at, key in sorted(events):
        run_until(engine, at, seen)
        if key >= 0:
            one = by_key[key]
            engine.submit(Job(key, one.prompt, one.output, one.hashes, one.priority), now=at)
        assert engine.load(now=at).todo_tokens >= 0
    run_until(engine, float("inf"), seen)
    assert seen.cached == expected.cached
    assert seen.first == pytest.approx(expected.first)
    assert seen.end == pytest.approx(expected.end)
    assert engine.load(now=1e9) == EngineLoad(0, 0, 0, 0)
