"""What a worker's engine does with the requests that it is given, computed instead of waited for.

Life of a job: waiting -> prefilling -> decoding -> gone. The engine moves in steps. A step computes up to
`chunk_tokens` prompt tokens that are not in the cache, first admitted first, and one token of each answer that has
begun; the step that computes a prompt's last token also makes the first one of its answer. It takes

    decode = step_s + step_s_per_request * answers in it
    prompt = prompt tokens in it / prefill_tokens_per_s
    time   = decode + prompt - prefill_overlap * the lesser of both

Between two steps waiting jobs are admitted, highest priority first, while there is a slot and memory for the prompt
and the answer; the first that does not fit holds back the others. A prompt's blocks enter the cache when its last
token is computed, an answer's when it ends. What is not in use stays until room is needed, least recently used first.

Steps in which nobody is admitted, begins or ends are alike but for the prompt that they work on, so that all up to
the next one that is not are taken at once: the cost is that of admissions, beginnings and ends, whatever their length.

Not modelled: preemption (an answer's length is known when it is admitted), prompts that get slower to compute as they
get longer, speculative tokens, caches beyond the engine's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil, inf

from inferway.blocks import BlocksRemoved, BlocksStored, KvEvent

from .cache import PrefixCache

# Hashes from here on, so many for each engine, are those of answers; a trace's are random, or small.
_FIRST_ANSWER_BLOCK = 1 << 63
_ANSWER_BLOCKS = 1 << 40


@dataclass(frozen=True, slots=True)
class EngineSettings:
    prefill_tokens_per_s: float
    step_s: float
    # Time that each answer in the batch adds to a step.
    step_s_per_request: float
    # 0: a step takes the time of its prompt tokens and that of its answers; 1: the longer of both.
    prefill_overlap: float
    chunk_tokens: int
    max_running: int
    kv_tokens: int
    block_size: int


@dataclass(slots=True, eq=False)
class Job:
    """`output_tokens` >= 1; `hashes` are those of the prompt's full blocks."""

    key: int
    prompt_tokens: int
    output_tokens: int
    hashes: Sequence[int]
    priority: int = 0
    # Below: the engine's own.
    cached_tokens: int = 0
    # Prompt tokens still to be computed; while waiting, as the cache was when the job came.
    todo_tokens: int = 0
    locked_blocks: int = 0
    reserved_blocks: int = 0
    # The step that makes the answer's first token.
    first_step: int = 0


@dataclass(slots=True)
class Happened:
    """What a step has brought. A job may be in `first_tokens` and in `finished`."""

    first_tokens: list[Job] = field(default_factory=list)
    finished: list[Job] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    running: int
    waiting: int
    # Prompt tokens to be computed, of those that wait as well.
    todo_tokens: int
    kv_used_tokens: int


class Engine:
    """Times never fall. What is submitted or asked at a time sees every step that has ended by then."""

    def __init__(self, settings: EngineSettings, *, model: str, number: int = 0) -> None:
        """`number` tells the engines of a fleet apart."""
        self._settings = settings
        self._model = model
        self._capacity_blocks = settings.kv_tokens // settings.block_size
        self._cache = PrefixCache()
        self._reserved_blocks = 0
        self._waiting: list[tuple[int, int, Job]] = []
        self._order = count()
        self._prefilling: list[Job] = []
        # By the step that makes their last token.
        self._decoding: list[tuple[int, int, Job]] = []
        # Hashes for the blocks of answers, which no prompt of a trace finds again.
        self._answer_blocks = count(_FIRST_ANSWER_BLOCK + number * _ANSWER_BLOCKS)
        self._events: list[KvEvent] = []
        self._todo_tokens = 0
        # Of decoding jobs: prompt tokens that fill no block, and the sum of `first_step`.
        self._tail_tokens = 0
        self._first_steps = 0
        # Steps that have ended, and when the present one began.
        self._steps = 0
        self._began_at = -inf
        self._has_newcomer = False
        # The plan: so many alike steps of this length, then one at whose end something happens.
        self._alike_steps = 0
        self._alike_s = 0.0
        self._happens_at = inf

    @property
    def kv_tokens(self) -> int:
        return self._capacity_blocks * self._settings.block_size

    def could_ever_take(self, prompt_tokens: int, output_tokens: int) -> bool:
        return self._blocks_of(prompt_tokens + output_tokens) <= self._capacity_blocks

    def submit(self, job: Job, *, now: float) -> None:
        """The job can be taken (`could_ever_take`)."""
        assert self.could_ever_take(job.prompt_tokens, job.output_tokens)
        job.todo_tokens = job.prompt_tokens - self._matched_blocks(job) * self._settings.block_size
        self._todo_tokens += job.todo_tokens
        heappush(self._waiting, (-job.priority, next(self._order), job))
        if self._is_idle:
            self._begin_step(now)
        else:
            self._catch_up(now)
            self._has_newcomer = True
            self._plan()

    def happens_at(self) -> float:
        """When the next job is admitted, begins its answer or ends; infinite while the engine is idle."""
        return self._happens_at

    def run(self) -> Happened:
        """Go to `happens_at`."""
        happened = Happened()
        self._take_alike_steps(self._alike_steps)
        self._steps += 1
        if self._prefilling:
            self._prefill(happened.first_tokens)
        while self._decoding and self._decoding[0][0] <= self._steps:
            job = heappop(self._decoding)[2]
            self._leave(job)
            happened.finished.append(job)
        self._begin_step(self._happens_at)
        return happened

    def load(self, *, now: float) -> EngineLoad:
        """As of the last step that has ended by then."""
        if not self._is_idle:
            self._catch_up(now)
        said = len(self._decoding) * (self._steps + 1) - self._first_steps
        used = self._cache.locked_blocks * self._settings.block_size + self._tail_tokens + said
        return EngineLoad(
            running=len(self._prefilling) + len(self._decoding),
            waiting=len(self._waiting),
            todo_tokens=self._todo_tokens,
            kv_used_tokens=min(self.kv_tokens, used),
        )

    def take_kv_events(self) -> Sequence[KvEvent]:
        """Changes of the cache since the last call."""
        events, self._events = self._events, []
        return events

    @property
    def _is_idle(self) -> bool:
        return not (self._prefilling or self._decoding)

    def _begin_step(self, now: float) -> None:
        self._began_at = now
        self._has_newcomer = False
        self._admit()
        self._plan()

    def _plan(self) -> None:
        """Find the next step at whose end something happens; the present one has begun already."""
        settings, decoding = self._settings, len(self._decoding)
        steps = self._decoding[0][0] - self._steps if decoding else 0
        chunk = 0
        if self._prefilling:
            chunk = settings.chunk_tokens
            until_first = ceil(self._prefilling[0].todo_tokens / chunk)
            steps = min(steps, until_first) if decoding else until_first
        elif not decoding:
            self._happens_at = inf
            return
        if self._has_newcomer:
            steps = 1
        self._alike_steps = steps - 1
        self._alike_s = self._step_s(chunk)
        last = min(chunk, self._prefilling_tokens() - self._alike_steps * chunk) if chunk else 0
        last_s = self._alike_s if last == chunk else self._step_s(last)
        self._happens_at = self._began_at + self._alike_steps * self._alike_s + last_s

    def _step_s(self, prompt_tokens: int) -> float:
        settings = self._settings
        decode = settings.step_s + settings.step_s_per_request * len(self._decoding)
        prompt = prompt_tokens / settings.prefill_tokens_per_s
        return decode + prompt - settings.prefill_overlap * min(decode, prompt)

    def _prefilling_tokens(self) -> int:
        return sum(job.todo_tokens for job in self._prefilling)

    def _catch_up(self, now: float) -> None:
        """Take the steps of the plan that have ended by now, less the last."""
        if self._alike_steps:
            ended = min(self._alike_steps, int((now - self._began_at) / self._alike_s))
            self._take_alike_steps(ended)
            self._began_at += ended * self._alike_s
            self._alike_steps -= ended

    def _take_alike_steps(self, steps: int) -> None:
        self._steps += steps
        if self._prefilling:
            self._compute(self._prefilling[0], steps * self._settings.chunk_tokens)

    def _compute(self, job: Job, tokens: int) -> None:
        job.todo_tokens -= tokens
        self._todo_tokens -= tokens

    def _prefill(self, first_tokens: list[Job]) -> None:
        """The prompts of one step."""
        budget = self._settings.chunk_tokens
        while self._prefilling and budget:
            job = self._prefilling[0]
            chunk = min(budget, job.todo_tokens)
            budget -= chunk
            self._compute(job, chunk)
            if job.todo_tokens:
                return
            self._prefilling.pop(0)
            self._store(job, job.hashes[job.locked_blocks :])
            job.first_step = self._steps
            self._first_steps += job.first_step
            self._tail_tokens += job.prompt_tokens % self._settings.block_size
            heappush(self._decoding, (self._steps + job.output_tokens - 1, next(self._order), job))
            first_tokens.append(job)

    def _admit(self) -> None:
        running = len(self._prefilling) + len(self._decoding)
        while self._waiting and running < self._settings.max_running and self._reserve(self._waiting[0][2]):
            self._prefilling.append(heappop(self._waiting)[2])
            running += 1

    def _reserve(self, job: Job) -> bool:
        """Lock what is cached and reserve the rest, or do nothing."""
        matched = self._matched_blocks(job)
        cached = job.hashes[:matched]
        needed = self._blocks_of(job.prompt_tokens + job.output_tokens) - matched
        cache = self._cache
        locked = cache.locked_blocks + cache.idle_among(cached)
        if locked + self._reserved_blocks + needed > self._capacity_blocks:
            return False
        cache.lock(cached)
        self._reserved_blocks += needed
        missing = len(cache) + self._reserved_blocks - self._capacity_blocks
        if missing > 0:
            self._events.append(BlocksRemoved(self._model, cache.evict(missing)))
        job.reserved_blocks, job.locked_blocks = needed, matched
        job.cached_tokens = matched * self._settings.block_size
        self._compute(job, job.todo_tokens - (job.prompt_tokens - job.cached_tokens))
        return True

    def _store(self, job: Job, hashes: Sequence[int]) -> None:
        """Move computed blocks, the next of the job's chain, from its reservation into the cache."""
        new = self._cache.add(hashes)
        job.locked_blocks += len(hashes)
        job.reserved_blocks -= len(hashes)
        self._reserved_blocks -= len(hashes)
        if new:
            self._events.append(BlocksStored(self._model, new))

    def _leave(self, job: Job) -> None:
        """Free slot and memory; what was computed stays in the cache."""
        self._first_steps -= job.first_step
        self._tail_tokens -= job.prompt_tokens % self._settings.block_size
        full = (job.prompt_tokens + job.output_tokens) // self._settings.block_size
        answer = [next(self._answer_blocks) for _ in range(full - len(job.hashes))]
        self._store(job, answer)
        self._cache.unlock([*job.hashes, *answer])
        self._reserved_blocks -= job.reserved_blocks

    def _matched_blocks(self, job: Job) -> int:
        """At least one token of a prompt is always computed: the answer's first comes out of it."""
        reusable = (job.prompt_tokens - 1) // self._settings.block_size
        return self._cache.match(job.hashes[:reusable] if reusable < len(job.hashes) else job.hashes)

    def _blocks_of(self, tokens: int) -> int:
        return -(-tokens // self._settings.block_size)
