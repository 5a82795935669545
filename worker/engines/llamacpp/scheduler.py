"""What the next step computes, and what its result means for each choice. Pure; one caller at a time.

    submit -> waiting -> (begin) a slot: prefill, in pieces -> decode, a token a step -> (finish, fail or abort) end

A step has one row for each choice that decodes and, up to a budget, rows of prompts, most urgent choice first: so a
long prompt delays the tokens of others by one budget, not by its length. A prompt whose beginning is in another
slot is copied from there; one whose beginning another prompt is computing just now waits for that, which makes n
choices of one prompt cost one prefill. Nobody waits for a less urgent choice, so nobody waits in a circle.

A prompt whose log-probabilities are asked for is computed from its first token on and shares nothing with others that
are asked the same; each of its rows but the last says how likely the next token was. What such rows say is reduced to
numbers before the next step, and a step has at most `SCORED_ROWS` of them.

A choice whose grammar is still being compiled is submitted blocked: it has its place, and its prompt is computed up to
the last token, until `release` or `refuse` says how it goes on.

Not done: running choices are never preempted, and a full cache cannot happen (each slot has its own cells).
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inferway.errors import ApiError, Reason

from ...engine import FinishReason, GenerateRequest, Load, Output, TokenLogprob
from .slots import Choice, Slot, place

if TYPE_CHECKING:
    from .grammar import Grammar

# A copy moves a slot's whole memory: as long as some ten tokens take, so it must save more.
COPY_MIN_TOKENS = 32
# A row of logits is large, and prompts of 64 tokens a step are computed nearly as fast as longer ones.
SCORED_ROWS = 64


@dataclass(frozen=True, slots=True)
class Truncate:
    """Forget what slot `slot` holds from position `length` on."""

    slot: int
    length: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Let slot `target` hold the first `length` tokens of slot `source`."""

    source: int
    target: int
    length: int


@dataclass(slots=True)
class Plan:
    """A step: cache moves, in order, then one batch.

    `sampled` has the choice of each row that gives a new token, `scored` of each that tells of its prompt's next one.
    """

    outputs: list[Output] = field(default_factory=list)
    moves: list[Truncate | Copy] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    wanted: list[bool] = field(default_factory=list)
    sampled: dict[int, Choice] = field(default_factory=dict)
    scored: dict[int, Choice] = field(default_factory=dict)
    # Slots whose prompt this step completes, and which generate nothing.
    completed: list[Slot] = field(default_factory=list)
    prompt_tokens: int = 0

    def add(self, slot: Slot, token: int, position: int, *, wanted: bool) -> None:
        if wanted and slot.choice is not None:
            self.sampled[len(self.tokens)] = slot.choice
        self._add(slot, token, position, wanted=wanted)

    def add_scored(self, slot: Slot, choice: Choice, position: int) -> None:
        """A row of a prompt that tells of the token behind it."""
        self.scored[len(self.tokens)] = choice
        self._add(slot, choice.prompt[position], position, wanted=True)

    def _add(self, slot: Slot, token: int, position: int, *, wanted: bool) -> None:
        self.tokens.append(token)
        self.positions.append(position)
        self.slots.append(slot.index)
        self.wanted.append(wanted)


class Scheduler:
    """Slots and the waiting queue: `max_running` choices in slots and at most `max_waiting` more.

    Choices wait only while no slot is free. A choice may enter a free slot while a step is being computed, for that
    step does not touch the slot; its cache moves come with the next.
    """

    def __init__(self, *, max_running: int, max_waiting: int, context_length: int, end_tokens: Collection[int]) -> None:
        self._slots = [Slot(index) for index in range(max_running)]
        self._waiting: list[Choice] = []
        self._moves: list[Truncate | Copy] = []
        self._max_waiting = max_waiting
        self._context_length = context_length
        self._end_tokens = frozenset(end_tokens)
        self._arrivals = 0
        self._steps = 0

    def submit(self, request: GenerateRequest, *, is_blocked: bool = False, now: float = 0.0) -> None:
        """Queue a request, or raise ApiError (OVERLOADED). The worker has checked prompt and sampling."""
        prompt = list(request.prompt_token_ids)
        room = self._context_length - len(prompt)
        assert prompt, "the worker refuses an empty prompt"
        assert room >= 1, "the worker refuses a prompt that leaves no room"
        if not self._free_slots() and len(self._waiting) >= self._max_waiting:
            raise ApiError(
                Reason.OVERLOADED,
                f"the worker runs {len(self._slots)} requests and holds {self._max_waiting} more; it is full",
            )
        self._arrivals += 1
        limit = room if request.sampling.max_tokens is None else min(room, request.sampling.max_tokens)
        choice = Choice(request, prompt, limit, self._arrivals, came_at=now, is_blocked=is_blocked)
        bisect.insort(self._waiting, choice, key=lambda choice: choice.rank)
        self._admit()

    def release(self, key: int, grammar: Grammar) -> None:
        """A blocked choice goes on, under its grammar. Unknown keys are ignored, as the choice may have ended."""
        for choice in self._choices():
            if choice.request.key == key:
                choice.grammar = grammar
                choice.is_blocked = False

    def refuse(self, key: int, error: ApiError) -> Output | None:
        """End a waiting choice at once in an error and return its output; let one in a slot end with the step."""
        for index, choice in enumerate(self._waiting):
            if choice.request.key == key:
                del self._waiting[index]
                return Output(key, error=error)
        for choice in self._choices():
            if choice.request.key == key:
                choice.error = error
        return None

    def abort(self, key: int) -> Output | None:
        """End a waiting choice at once and return its output; let a running one end with the step."""
        for index, choice in enumerate(self._waiting):
            if choice.request.key == key:
                del self._waiting[index]
                return Output(key, finish_reason=FinishReason.ABORTED)
        for slot in self._slots:
            if slot.choice is not None and slot.choice.request.key == key:
                slot.choice.aborted = True
        return None

    def has_work(self) -> bool:
        return any(slot.has_work for slot in self._slots)

    def load(self, prefill_tokens_per_s: float) -> Load:
        running = [slot for slot in self._slots if slot.choice is not None]
        waiting = sum(len(choice.prompt) for choice in self._waiting)
        return Load(
            num_requests_running=len(running),
            num_requests_waiting=len(self._waiting),
            uncached_tokens_in_flight=waiting + sum(slot.uncached_tokens for slot in running),
            kv_used_tokens=sum(len(slot.tokens) for slot in running),
            kv_total_tokens=len(self._slots) * self._context_length,
            prefill_tokens_per_s=prefill_tokens_per_s,
        )

    def begin(self, budget: Callable[[bool], int], *, now: float = 0.0) -> Plan:
        """Plan the next step. `budget(others_decode)` is the number of prompt tokens that it may compute."""
        self._steps += 1
        plan = Plan(outputs=self._end_leaving())
        self._admit()
        plan.moves, self._moves = self._moves, []
        running = sorted(
            ((slot.choice, slot) for slot in self._slots if slot.choice is not None), key=lambda pair: pair[0].rank
        )
        for choice, slot in running:
            if choice.completion:
                plan.add(slot, choice.completion[-1], len(slot.tokens), wanted=True)
        left = budget(bool(plan.tokens))
        ahead: list[Slot] = []
        for choice, slot in running:
            if choice.completion:
                continue
            if choice.cached_tokens is None and left > 0:
                self._start(choice, slot, ahead, plan)
                choice.began_at = now
            if choice.cached_tokens is not None:
                left -= _prefill(choice, slot, left, plan)
            ahead.append(slot)
        return plan

    def finish(
        self,
        plan: Plan,
        chosen: Mapping[int, int],
        scores: Mapping[int, TokenLogprob] | None = None,
        *,
        over: Collection[int] = (),
        failed: Mapping[int, ApiError] | None = None,
    ) -> list[Output]:
        """Book a computed step.

        `chosen` has the token for each row of plan.sampled that is not in `failed`. `scores` has its log-probability
        where the request asks for them, and, for each row of plan.scored, that of the prompt's next token. `over` has
        the rows behind whose token nothing can come, `failed` those whose choice cannot go on.
        """
        scores = scores or {}
        for token, index in zip(plan.tokens, plan.slots, strict=True):
            self._slots[index].tokens.append(token)
        for row, choice in plan.scored.items():
            choice.prompt_logprobs.append(scores[row])
        outputs: list[Output] = []
        for row, token in chosen.items():
            choice = plan.sampled[row]
            if not choice.is_leaving:
                slot = self._slots[plan.slots[row]]
                outputs.append(self._gain(slot, choice, token, scores.get(row), is_over=row in over))
        for row, error in (failed or {}).items():
            plan.sampled[row].error = error
        for slot in plan.completed:
            if slot.choice is not None and not slot.choice.is_leaving:
                outputs.append(_first(slot.choice, Output(slot.choice.request.key, finish_reason=FinishReason.LENGTH)))
                self._free(slot)
        outputs += self._end_leaving()
        self._admit()
        return outputs

    def fail(self, plan: Plan, error: Callable[[], ApiError]) -> list[Output]:
        """Book a step that the engine could not compute: its choices end in errors and its slots are empty."""
        outputs: list[Output] = []
        for index in sorted(set(plan.slots)):
            slot = self._slots[index]
            slot.tokens = []
            if slot.choice is not None:
                outputs.append(Output(slot.choice.request.key, error=error()))
                self._free(slot)
        self._admit()
        return outputs

    def end_all(self, error: Callable[[], ApiError] | None) -> list[Output]:
        """End whatever is left, in `error` or, without one, as aborted."""
        choices = self._choices()
        self._waiting = []
        for slot in self._slots:
            slot.choice = None
        reason = FinishReason.ABORTED if error is None else None
        return [Output(c.request.key, finish_reason=reason, error=error() if error else None) for c in choices]

    def _free_slots(self) -> list[Slot]:
        return [slot for slot in self._slots if slot.choice is None]

    def _admit(self) -> None:
        while self._waiting and (free := self._free_slots()):
            choice = self._waiting.pop(0)
            slot = place(free, choice)
            kept = slot.reusable(choice)
            if kept < len(slot.tokens):
                self._moves.append(Truncate(slot.index, kept))
                del slot.tokens[kept:]
            slot.salt = choice.request.cache_salt
            slot.choice = choice

    def _start(self, choice: Choice, slot: Slot, ahead: list[Slot], plan: Plan) -> None:
        """Take what other slots hold of the prompt, unless a prompt ahead is about to hold more of it."""
        own = len(slot.tokens)
        donor = max(
            (other for other in self._slots if other is not slot), key=lambda s: s.reusable(choice), default=slot
        )
        at_hand = max(own, donor.reusable(choice))
        for leader in ahead:
            assert leader.choice is not None
            coming = leader.choice.prompt[:-1] if leader.choice.is_blocked else leader.choice.prompt
            expected = Slot(leader.index, coming, leader.salt).reusable(choice)
            if expected >= at_hand + COPY_MIN_TOKENS and len(leader.tokens) < expected:
                return
        if at_hand >= own + COPY_MIN_TOKENS:
            plan.moves.append(Copy(donor.index, slot.index, at_hand))
            slot.tokens = donor.tokens[:at_hand]
        choice.cached_tokens = len(slot.tokens)

    def _gain(self, slot: Slot, choice: Choice, token: int, score: TokenLogprob | None, *, is_over: bool) -> Output:
        choice.completion.append(token)
        ends = token in self._end_tokens and (is_over or not choice.request.sampling.ignore_eos)
        output = Output(choice.request.key, (token,), ends_with_stop_token=ends)
        if score is not None:
            output.logprobs = (score,)
        if len(choice.completion) == 1:
            _first(choice, output)
        if ends or is_over:
            output.finish_reason = FinishReason.STOP
        elif len(choice.completion) >= choice.limit:
            output.finish_reason = FinishReason.LENGTH
        if output.finish_reason is not None:
            self._free(slot)
        return output

    def _end_leaving(self) -> list[Output]:
        outputs: list[Output] = []
        for slot in self._slots:
            choice = slot.choice
            if choice is not None and choice.is_leaving:
                reason = FinishReason.ABORTED if choice.aborted else None
                error = None if choice.aborted else choice.error
                outputs.append(Output(choice.request.key, finish_reason=reason, error=error))
                self._free(slot)
        return outputs

    def _choices(self) -> list[Choice]:
        return [slot.choice for slot in self._slots if slot.choice is not None] + self._waiting

    def _free(self, slot: Slot) -> None:
        slot.choice = None
        slot.used_at = self._steps


def _first(choice: Choice, output: Output) -> Output:
    """Say in a choice's first output what only that one says."""
    output.cached_tokens = choice.cached_tokens
    if choice.cached_tokens is not None:
        output.queue_s = choice.began_at - choice.came_at
    if choice.request.prompt_logprobs:
        output.prompt_logprobs, choice.prompt_logprobs = choice.prompt_logprobs, []
    return output


def _prefill(choice: Choice, slot: Slot, budget: int, plan: Plan) -> int:
    """Plan the next rows of a prompt and return how many."""
    last = len(choice.prompt) - 1
    start = len(slot.tokens)
    is_scored = choice.request.prompt_logprobs
    if is_scored:
        budget = min(budget, SCORED_ROWS - len(plan.scored))
        if not start:
            choice.prompt_logprobs = [TokenLogprob(choice.prompt[0], None)]
    end = min(last if choice.is_blocked else last + 1, start + max(0, budget))
    for position in range(start, end):
        if is_scored and position < last:
            plan.add_scored(slot, choice, position)
        else:
            plan.add(slot, choice.prompt[position], position, wanted=position == last and choice.limit > 0)
    if end > max(start, last) and not choice.limit:
        plan.completed.append(slot)
    computed = max(0, end - start)
    plan.prompt_tokens += computed
    return computed
