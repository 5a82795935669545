"""A GPU worker's scheduler without the GPU: batch steps, chunked prefill, prefix cache, queueing by priority.

Life of a job: waiting -> prefilling -> decoding -> gone. A step takes `step_s`; it ends with one output of each
decoding job whose next beat is due. Prompt tokens that are not in the cache are computed `prefill_tokens_per_step`
a step, first admitted first; the step that computes a job's last one also gives its first output. Between two steps
waiting jobs are admitted, highest priority first, while there is a slot and memory for prompt and answer. With
`step_s` 0 a step happens whenever a beat is due.

Memory is counted in blocks. A job that is admitted reserves its prompt and the answer it is expected to give, and is
never thrown out; its prompt's blocks enter the shared cache when they are computed, the answer's when it ends.

Not modelled: steps that get slower as the batch grows, speculative tokens, preemption, and running out of memory in
the middle of an answer: what goes beyond the expected length costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from math import inf

from inferway.blocks import BlocksRemoved, BlocksStored, KvEvent, block_hashes
from inferway.errors import ApiError

from ...engine import FinishReason, Load, Output, TokenLogprob
from .cache import BlockCache
from .play import Beat, Play


@dataclass(slots=True, eq=False)
class Job:
    """One choice. `limit_tokens` is what it may say at most, `expected_tokens` (at most that) what it reserves.

    With a limit of 0 it ends where its first beat would be said; what is scripted to fail there fails.
    """

    key: int
    request_id: str
    model: str
    prompt: Sequence[int]
    play: Play
    limit_tokens: int
    expected_tokens: int
    priority: int = 0
    cache_salt: bytes = b""
    # How many of the most likely tokens to name beside each; None: no log-probabilities.
    logprobs: int | None = None
    prompt_logprobs: bool = False
    # Below: the batch's own.
    hashes: Sequence[int] = ()
    cached_tokens: int = 0
    # Prompt tokens still to be computed; while waiting, as the cache is now.
    todo_tokens: int = 0
    said: list[int] = field(default_factory=list)
    locked_blocks: int = 0
    reserved_blocks: int = 0
    due_at: float = 0.0
    came_at: float = 0.0
    began_at: float = 0.0
    has_output: bool = False
    is_running: bool = False
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """For the log: what the script says that went wrong."""

    request_id: str
    detail: str


@dataclass(slots=True)
class StepResult:
    outputs: list[Output] = field(default_factory=list)
    kv_events: list[KvEvent] = field(default_factory=list)
    failures: list[Failed] = field(default_factory=list)


class Batch:
    def __init__(
        self, *, max_running: int, kv_tokens: int, block_size: int, step_s: float, prefill_tokens_per_s: float
    ) -> None:
        """`prefill_tokens_per_s` 0: a prompt takes one step, whatever its length."""
        self._max_running = max_running
        self._block_size = block_size
        self._step_s = step_s
        self._prefill_tokens_per_s = prefill_tokens_per_s
        self._budget = 0.0
        self._cache = BlockCache(kv_tokens // block_size)
        self._jobs: dict[int, Job] = {}
        self._waiting: list[tuple[int, int, Job]] = []
        self._prefilling: list[Job] = []
        self._decoding: dict[int, Job] = {}
        self._cancelled: list[Job] = []
        self._arrivals = 0
        self._reserved_blocks = 0
        self._step_ends_at = -inf
        # Someone came after the present step had begun, so that the next one has somebody to admit.
        self._has_newcomer = False
        # Of the decoding jobs, which change only within a step.
        self._next_due_at = inf
        # Of their prompts, what fills no block.
        self._tail_tokens = 0
        self._events: list[KvEvent] = []
        self._todo_tokens = 0
        self._said_tokens = 0
        self._num_waiting = 0

    @property
    def kv_tokens(self) -> int:
        return self._cache.capacity_blocks * self._block_size

    def submit(self, job: Job, *, now: float) -> None:
        """The job's prompt fits into the cache with room for `expected_tokens`, which the caller has seen to."""
        job.hashes = block_hashes(job.prompt, self._block_size, job.cache_salt)
        job.todo_tokens = len(job.prompt) - self._cached_blocks(job) * self._block_size
        self._todo_tokens += job.todo_tokens
        self._jobs[job.key] = job
        job.came_at = now
        self._num_waiting += 1
        heappush(self._waiting, (-job.priority, self._arrivals, job))
        self._arrivals += 1
        if now >= self._step_ends_at:
            self._start_step(now)
        else:
            self._has_newcomer = True

    def cancel(self, key: int) -> bool:
        """Whether the key is known; its slot is free, and it is answered, with the next step."""
        job = self._jobs.get(key)
        if job is None or job.is_cancelled:
            return False
        job.is_cancelled = True
        self._cancelled.append(job)
        return True

    def next_step_at(self) -> float | None:
        """When `step` has something to do; None: not before the next `submit` or `cancel`."""
        if self._cancelled or self._prefilling or self._events or self._has_newcomer:
            return self._step_ends_at
        if self._decoding:
            return max(self._step_ends_at, self._next_due_at)
        return None

    def step(self, *, now: float) -> StepResult:
        """End the present step: what it produced. The next one starts at once."""
        result = StepResult()
        for job in self._cancelled:
            self._leave(job)
            result.outputs.append(Output(job.key, finish_reason=FinishReason.ABORTED))
        self._cancelled.clear()
        if self._prefilling:
            self._prefill(now)
        for job in list(self._decoding.values()):
            if job.due_at <= now:
                self._say(job, now, result)
        self._next_due_at = min((job.due_at for job in self._decoding.values()), default=inf)
        self._start_step(now)
        result.kv_events, self._events = self._events, []
        return result

    def load(self) -> Load:
        running = len(self._prefilling) + len(self._decoding)
        private = self._tail_tokens + self._said_tokens
        return Load(
            num_requests_running=running,
            num_requests_waiting=self._num_waiting,
            uncached_tokens_in_flight=self._todo_tokens,
            kv_used_tokens=min(self.kv_tokens, self._cache.locked_blocks * self._block_size + private),
            kv_total_tokens=self.kv_tokens,
            prefill_tokens_per_s=self._prefill_tokens_per_s,
        )

    def _start_step(self, now: float) -> None:
        self._has_newcomer = False
        self._admit(now)
        self._step_ends_at = now + self._step_s
        if self._prefilling:
            self._budget += self._prefill_tokens_per_s * self._step_s
        else:
            self._budget = 0.0

    def _admit(self, now: float) -> None:
        while self._waiting and len(self._prefilling) + len(self._decoding) < self._max_running:
            job = self._waiting[0][2]
            if not job.is_cancelled and not self._reserve(job):
                return
            heappop(self._waiting)
            if job.is_cancelled:
                continue
            job.is_running = True
            job.began_at = now
            self._num_waiting -= 1
            self._prefilling.append(job)

    def _reserve(self, job: Job) -> bool:
        """Lock what is cached and reserve the rest, or do nothing."""
        matched = self._cached_blocks(job)
        cached = job.hashes[:matched]
        locked_before = self._cache.locked_blocks
        self._cache.lock(job.model, cached)
        total = -(-(len(job.prompt) + job.expected_tokens) // self._block_size)
        needed = total - matched
        if self._cache.locked_blocks + self._reserved_blocks + needed > self._cache.capacity_blocks:
            self._cache.unlock(job.model, cached)
            assert self._cache.locked_blocks == locked_before
            return False
        self._reserved_blocks += needed
        self._make_room()
        job.reserved_blocks, job.locked_blocks = needed, matched
        job.cached_tokens = matched * self._block_size
        todo = len(job.prompt) - job.cached_tokens
        self._todo_tokens += todo - job.todo_tokens
        job.todo_tokens = todo
        return True

    def _make_room(self) -> None:
        missing = len(self._cache) + self._reserved_blocks - self._cache.capacity_blocks
        if missing > 0:
            by_model: dict[str, list[int]] = {}
            for model, block_hash in self._cache.evict(missing):
                by_model.setdefault(model, []).append(block_hash)
            self._events += [BlocksRemoved(model, hashes) for model, hashes in by_model.items()]

    def _cached_blocks(self, job: Job) -> int:
        """At least one token of a prompt is always computed: the first answer comes out of it.

        All of them are where their log-probabilities are asked for.
        """
        if job.prompt_logprobs:
            return 0
        reusable = (len(job.prompt) - 1) // self._block_size
        return self._cache.match(job.model, job.hashes[:reusable])

    def _prefill(self, now: float) -> None:
        for job in list(self._prefilling):
            chunk = job.todo_tokens
            if self._prefill_tokens_per_s:
                chunk = min(chunk, int(self._budget))
                self._budget -= chunk
            job.todo_tokens -= chunk
            self._todo_tokens -= chunk
            if job.todo_tokens:
                break
            self._prefilling.remove(job)
            self._store(job, len(job.hashes))
            self._decoding[job.key] = job
            self._tail_tokens += len(job.prompt) % self._block_size
            job.due_at = now + (job.play.next.delay_s if job.play.next is not None else 0.0)

    def _store(self, job: Job, blocks: int) -> None:
        """Move a job's computed blocks from its reservation into the shared cache."""
        if blocks <= job.locked_blocks:
            return
        new = self._cache.insert(job.model, job.hashes[:blocks], job.locked_blocks)
        moved = blocks - job.locked_blocks
        job.locked_blocks = blocks
        job.reserved_blocks -= moved
        self._reserved_blocks -= moved
        if new:
            self._events.append(BlocksStored(job.model, new))

    def _say(self, job: Job, now: float, result: StepResult) -> None:
        """Play the beat that is due."""
        beat = job.play.next
        assert beat is not None, "a play ends with a finish or a failure"
        job.play.advance()
        output = self._output(job, beat)
        result.outputs.append(output)
        if beat.failure is not None:
            result.failures.append(Failed(job.request_id, beat.failure.detail))
        job.said += output.token_ids
        self._said_tokens += len(output.token_ids)
        if output.finish_reason is not None or output.error is not None:
            self._leave(job)
            return
        delay = job.play.next.delay_s if job.play.next is not None else 0.0
        # From the due time, so that a timer's lateness does not add up, unless the batch is behind.
        job.due_at = (job.due_at if now - job.due_at < delay else now) + delay

    def _output(self, job: Job, beat: Beat) -> Output:
        if not job.limit_tokens and beat.failure is None:
            beat = Beat(finish=FinishReason.LENGTH)
        room = job.limit_tokens - len(job.said)
        if beat.is_plain and job.has_output and job.logprobs is None and len(beat.token_ids) < room:
            return Output(job.key, beat.token_ids)
        counts, token_ids, finish = beat.counts, beat.token_ids, beat.finish
        ends_with_stop_token = beat.ends_with_stop_token
        error: ApiError | None = beat.failure.error if beat.failure is not None else None
        completion = counts.completion
        if error is None and len(token_ids) >= room and (finish is None or len(token_ids) > room):
            ending = job.play.next
            if len(token_ids) == room and ending is not None and _only_finishes(ending):
                # The script ends here too, and says how.
                counts, finish, completion = ending.counts, ending.finish, ending.counts.completion
            else:
                if len(token_ids) > room:
                    token_ids, completion, ends_with_stop_token = token_ids[:room], None, False
                finish = FinishReason.LENGTH
        output = Output(
            job.key,
            token_ids,
            finish,
            error,
            cached_tokens=counts.cached,
            ends_with_stop_token=ends_with_stop_token,
            prompt_tokens=counts.prompt,
            completion_tokens=completion,
            reasoning_tokens=counts.reasoning,
        )
        if job.logprobs is not None:
            output.logprobs = _scores(beat, token_ids, job.logprobs)
        if not job.has_output and job.prompt_logprobs:
            output.prompt_logprobs = _prompt_scores(job.prompt, job.play.input_logprobs)
        if not job.has_output:
            job.has_output = True
            first = job.play.first_counts
            output.cached_tokens = job.cached_tokens if first.cached is None else first.cached
            output.prompt_tokens = first.prompt
            output.queue_s = job.began_at - job.came_at
        return output

    def _leave(self, job: Job) -> None:
        """Free slot and memory; what was computed stays in the cache for the next one."""
        del self._jobs[job.key]
        self._todo_tokens -= job.todo_tokens
        if not job.is_running:
            self._num_waiting -= 1
            self._forget_waiting(job)
            return
        if self._decoding.pop(job.key, None) is None:
            self._prefilling.remove(job)
        else:
            self._tail_tokens -= len(job.prompt) % self._block_size
        self._said_tokens -= len(job.said)
        blocks = (len(job.prompt) - job.todo_tokens + len(job.said)) // self._block_size
        if blocks > len(job.hashes):
            job.hashes = block_hashes([*job.prompt, *job.said], self._block_size, job.cache_salt)
        self._store(job, min(blocks, job.locked_blocks + job.reserved_blocks))
        self._cache.unlock(job.model, job.hashes[: job.locked_blocks])
        self._reserved_blocks -= job.reserved_blocks

    def _forget_waiting(self, job: Job) -> None:
        self._waiting = [entry for entry in self._waiting if entry[2] is not job]
        heapify(self._waiting)


def _scores(beat: Beat, token_ids: Sequence[int], top: int) -> list[TokenLogprob]:
    """Of a token that the script has no score for, the one that says: it could be no other."""
    scores = beat.scores or [TokenLogprob(token_id, 0.0, [(token_id, 0.0)]) for token_id in token_ids]
    return [replace(score, top=score.top[:top]) for score in scores[: len(token_ids)]]


def _prompt_scores(prompt: Sequence[int], said: Sequence[float | None]) -> list[TokenLogprob]:
    return [
        TokenLogprob(token_id, (said[place] if place < len(said) else 0.0) if place else None)
        for place, token_id in enumerate(prompt)
    ]


def _only_finishes(beat: Beat) -> bool:
    return beat.finish is not None and not beat.is_implied and not beat.token_ids
