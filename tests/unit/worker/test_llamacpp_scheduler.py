"""The scheduler against a cache that is only lists, and a model that says what it saw."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.errors import ApiError, Reason
from worker.engine import FinishReason, GenerateRequest, Output, Sampling, TokenLogprob
from worker.engines.llamacpp.scheduler import SCORED_ROWS, Copy, Plan, Scheduler, Truncate

END = 9
VOCAB = 10


class Machine:
    """Does what plans say to a cache of lists, and checks that each row is computed on exactly its own past."""

    def __init__(self, slots: int = 2, waiting: int = 4, context: int = 400) -> None:
        self.scheduler = Scheduler(max_running=slots, max_waiting=waiting, context_length=context, end_tokens=[END])
        self.cells: list[list[int]] = [[] for _ in range(slots)]
        self.salts: list[set[bytes]] = [set() for _ in range(slots)]
        self.requests: dict[int, GenerateRequest] = {}
        self.said: dict[int, list[int]] = {}
        self.cached: dict[int, int | None] = {}
        self.ends: dict[int, Output] = {}
        self.prompt_logprobs: dict[int, list[TokenLogprob]] = {}
        self.computed = 0
        self.say: Callable[[list[int]], int] = lambda past: sum(past) % (VOCAB - 1)

    def submit(
        self,
        key: int,
        prompt: list[int],
        max_tokens: int | None = 3,
        priority: int = 0,
        salt: bytes = b"",
        ignore_eos: bool = False,
        is_scored: bool = False,
        is_blocked: bool = False,
    ) -> None:
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=ignore_eos)
        request = GenerateRequest(key, f"r{key}", "m", prompt, sampling, priority, salt, prompt_logprobs=is_scored)
        self.scheduler.submit(request, is_blocked=is_blocked)
        self.requests[key] = request
        self.said[key] = []

    def abort(self, key: int) -> None:
        if (output := self.scheduler.abort(key)) is not None:
            self.book([output])

    def step(self, budget: int = 100) -> Plan:
        plan = self.scheduler.begin(lambda _: budget)
        for move in plan.moves:
            if isinstance(move, Truncate):
                assert len(self.cells[move.slot]) >= move.length
                del self.cells[move.slot][move.length :]
                if not move.length:
                    self.salts[move.slot] = set()
            else:
                assert isinstance(move, Copy)
                self.cells[move.target] = self.cells[move.source][: move.length]
                self.salts[move.target] = set(self.salts[move.source])
                assert len(self.cells[move.target]) == move.length
        chosen: dict[int, int] = {}
        scores: dict[int, TokenLogprob] = {}
        for row, (token, position, slot) in enumerate(zip(plan.tokens, plan.positions, plan.slots, strict=True)):
            assert len(self.cells[slot]) == position
            self.cells[slot].append(token)
            if row in plan.sampled:
                choice = plan.sampled[row]
                key = choice.request.key
                assert self.cells[slot] == [*self.requests[key].prompt_token_ids, *self.said[key]]
                self.salts[slot].add(choice.request.cache_salt)
                assert self.salts[slot] == {choice.request.cache_salt}
                chosen[row] = self.say(self.cells[slot])
            if row in plan.scored:
                past, whole = self.cells[slot], plan.scored[row].prompt
                assert past == whole[: len(past)]
                assert plan.wanted[row]
                scores[row] = TokenLogprob(whole[len(past)], -float(len(past)))
        assert len(plan.scored) <= SCORED_ROWS
        assert sum(plan.wanted) == len(plan.scored) + len(plan.sampled)
        self.computed += plan.prompt_tokens
        self.book(plan.outputs + self.scheduler.finish(plan, chosen, scores))
        return plan

    def book(self, outputs: list[Output]) -> None:
        keys = [output.key for output in outputs]
        assert len(keys) == len(set(keys))
        for output in outputs:
            assert output.key not in self.ends
            is_whole = output.finish_reason is FinishReason.LENGTH and not output.token_ids
            if (output.token_ids or is_whole) and not self.said[output.key]:
                self.cached[output.key] = output.cached_tokens
                if output.prompt_logprobs is not None:
                    self.prompt_logprobs[output.key] = list(output.prompt_logprobs)
            else:
                assert output.cached_tokens is None
                assert output.prompt_logprobs is None
            self.said[output.key] += output.token_ids
            if output.finish_reason is not None or output.error is not None:
                self.ends[output.key] = output

    def run(self, budget: int = 100) -> None:
        for _ in range(10_000):
            if not self.scheduler.has_work():
                return
            self.step(budget)
        pytest.fail("does not come to an end")

    def reason(self, key: int) -> FinishReason | None:
        return self.ends[key].finish_reason


def prompt(length: int, seed: int = 0) -> list[int]:
    return [random.Random(seed).randrange(VOCAB - 1) for _ in range(length)] if seed else [1] * length


def test_length_and_stop() -> None:
    """A choice ends at max_tokens by LENGTH and at an end token by STOP, which then is its last token."""
    machine = Machine()
    machine.submit(1, prompt(5), max_tokens=4)
    machine.run()
    assert (len(machine.said[1]), machine.reason(1)) == (4, FinishReason.LENGTH)
    machine.say = lambda past: END if len(past) == 7 else 2
    machine.submit(2, prompt(5), max_tokens=10)
    machine.run()
    assert machine.said[2] == [2, 2, END]
    assert (machine.reason(2), machine.ends[2].ends_with_stop_token) == (FinishReason.STOP, True)


def test_end_token_at_the_limit() -> None:
    """An end token that is also the last one allowed is a STOP."""
    machine = Machine()
    machine.say = lambda _: END
    machine.submit(1, prompt(5), max_tokens=1)
    machine.run()
    assert machine.reason(1) is FinishReason.STOP


def test_ignored_end() -> None:
    """With ignore_eos an end token is one like any other."""
    machine = Machine()
    machine.say = lambda _: END
    machine.submit(1, prompt(5), max_tokens=3, ignore_eos=True)
    machine.run()
    assert (machine.said[1], machine.reason(1)) == ([END] * 3, FinishReason.LENGTH)
    assert not machine.ends[1].ends_with_stop_token


def test_context_length() -> None:
    """Prompt and completion together end at the context length."""
    machine = Machine(context=20)
    machine.submit(1, prompt(15), max_tokens=None)
    machine.submit(2, prompt(15, seed=1), max_tokens=50)
    machine.run()
    assert [len(machine.said[key]) for key in (1, 2)] == [5, 5]


def test_bounds() -> None:
    """Slots and queue take what they hold, and one more is OVERLOADED; the load says so at once."""
    machine = Machine(slots=2, waiting=3)
    for key in range(5):
        machine.submit(key, prompt(4))
    load = machine.scheduler.load(1.0)
    assert (load.num_requests_running, load.num_requests_waiting, load.uncached_tokens_in_flight) == (2, 3, 20)
    with pytest.raises(ApiError) as caught:
        machine.submit(5, prompt(4))
    assert caught.value.reason is Reason.OVERLOADED
    machine.run()
    assert sorted(machine.ends) == [0, 1, 2, 3, 4]


def test_priority_then_arrival() -> None:
    """A slot that is free goes to the most urgent waiting choice, among equals to the first."""
    machine = Machine(slots=1)
    machine.submit(0, prompt(4))
    for key, priority in [(1, 0), (2, 5), (3, 9), (4, 5)]:
        machine.submit(key, prompt(4), priority=priority)
    machine.run()
    assert list(machine.ends) == [0, 3, 2, 4, 1]


def test_abort_waiting() -> None:
    """A waiting choice is answered at once and never runs."""
    machine = Machine(slots=1)
    machine.submit(1, prompt(4))
    machine.submit(2, prompt(4))
    machine.abort(2)
    assert machine.reason(2) is FinishReason.ABORTED
    machine.run()
    assert machine.said[2] == []


@pytest.mark.parametrize("steps", [0, 2, 6], ids=["before a step", "in its prompt", "while it decodes"])
def test_abort_running(steps: int) -> None:
    """A running choice is answered by the next step, and its slot is free for the next one."""
    machine = Machine(slots=1)
    machine.submit(1, prompt(40), max_tokens=100)
    machine.submit(2, prompt(4))
    for _ in range(steps):
        machine.step(budget=10)
    machine.abort(1)
    machine.step(budget=10)
    assert machine.reason(1) is FinishReason.ABORTED
    assert machine.scheduler.load(1.0).num_requests_running == 1
    machine.run()
    assert machine.reason(2) is FinishReason.LENGTH


def test_long_prompt_beside_decoding() -> None:
    """A step has one row for each decoding choice whatever else it does, and no more prompt than its budget."""
    machine = Machine()
    machine.submit(1, prompt(4), max_tokens=50)
    machine.step()
    machine.submit(2, prompt(100, seed=1))
    for _ in range(10):
        before = len(machine.said[1])
        plan = machine.step(budget=10)
        assert (plan.prompt_tokens, len(machine.said[1])) == (10, before + 1)


def test_repeated_prompt() -> None:
    """Of a prompt that was computed before only the last token is computed again."""
    machine = Machine()
    for key in (1, 2):
        machine.submit(key, prompt(50, seed=1))
        machine.run()
    assert machine.cached == {1: 0, 2: 49}


def test_next_turn() -> None:
    """The next turn of a conversation finds prompt and answer, but for the token that was never fed back."""
    machine = Machine()
    machine.submit(1, prompt(50, seed=1), max_tokens=10)
    machine.run()
    turn = [*prompt(50, seed=1), *machine.said[1], *prompt(5, seed=2)]
    machine.submit(2, turn)
    machine.run()
    assert machine.cached[2] == 59


def test_shared_prefix_is_copied() -> None:
    """A prefix that a busy slot holds is copied, and the copy's own tail computed."""
    machine = Machine()
    head = prompt(100, seed=1)
    machine.submit(1, [*head, 1, 1], max_tokens=50)
    machine.step(budget=200)
    machine.submit(2, [*head, 2, 2])
    plan = machine.step(budget=200)
    assert plan.moves == [Copy(source=0, target=1, length=100)]
    machine.run()
    assert machine.cached[2] == 100


def test_siblings_share_one_prefill() -> None:
    """Choices of one prompt that arrive together cost one prefill."""
    machine = Machine(slots=4)
    for key in range(4):
        machine.submit(key, prompt(100, seed=1))
    machine.run(budget=20)
    assert machine.computed < 100 + 3 * 33
    assert machine.cached[0] == 0


def test_leader_gone() -> None:
    """Those who wait for a prompt that is aborted take what is there of it and go on themselves."""
    machine = Machine(slots=3)
    for key in range(3):
        machine.submit(key, prompt(100, seed=1))
    machine.step(budget=50)
    machine.abort(0)
    machine.run(budget=20)
    assert (machine.reason(0), machine.reason(1)) == (FinishReason.ABORTED, FinishReason.LENGTH)
    assert machine.cached[1] == 50


def test_conversation_survives_a_stranger() -> None:
    """A prompt that shares little with a long conversation leaves its slot alone."""
    machine = Machine()
    head = prompt(40, seed=1)
    machine.submit(1, [*head, *prompt(200, seed=2)])
    machine.run()
    machine.submit(2, [*head, *prompt(20, seed=3)])
    machine.run()
    machine.submit(3, [*head, *prompt(200, seed=2)])
    machine.run()
    assert (machine.cached[2], machine.cached[3]) == (40, 239)


def test_salts_are_apart() -> None:
    """Nothing that was computed under one salt serves another, neither in place nor by copy nor by waiting."""
    machine = Machine(slots=3)
    for key, salt in enumerate([b"", b"a", b"b"]):
        machine.submit(key, prompt(100, seed=1), salt=salt)
    machine.run(budget=20)
    machine.submit(3, prompt(100, seed=1), salt=b"c")
    machine.submit(4, prompt(100, seed=1), salt=b"a")
    machine.run(budget=20)
    assert [machine.cached[key] for key in range(4)] == [0, 0, 0, 0]


@pytest.mark.parametrize("max_tokens", [0, 2])
@pytest.mark.parametrize("length", [1, 2, 50, 200])
def test_scored_prompt(length: int, max_tokens: int) -> None:
    """Each token but the first is scored once, in order and on its own past; with no token asked for none comes."""
    machine = Machine()
    machine.submit(1, prompt(length, seed=1), max_tokens=max_tokens, is_scored=True)
    machine.run(budget=30)
    given = machine.prompt_logprobs[1]
    assert [one.token_id for one in given] == prompt(length, seed=1)
    assert [one.logprob for one in given] == [None, *(-float(n) for n in range(1, length))]
    assert (len(machine.said[1]), machine.reason(1)) == (max_tokens, FinishReason.LENGTH)


def test_a_scored_prompt_is_computed_anew() -> None:
    """Neither the cache nor a prompt that is computed just now saves it a row, and it serves those who come later."""
    machine = Machine(slots=3)
    machine.submit(1, prompt(50, seed=1))
    machine.run()
    machine.submit(2, prompt(50, seed=1))
    machine.submit(3, prompt(50, seed=1), max_tokens=0, is_scored=True)
    machine.submit(4, prompt(50, seed=1), max_tokens=0, is_scored=True)
    machine.run(budget=20)
    assert [machine.cached[key] for key in (2, 3, 4)] == [49, 0, 0]
    machine.submit(5, prompt(50, seed=1), max_tokens=0)
    machine.run()
    assert machine.cached[5] == 49


def test_scored_rows_of_a_step_are_bounded() -> None:
    """Many prompts to score take turns, and a prompt that is not scored takes what the budget leaves."""
    machine = Machine(slots=3)
    machine.submit(1, prompt(200, seed=1), is_scored=True)
    machine.submit(2, prompt(200, seed=2), is_scored=True)
    machine.submit(3, prompt(200, seed=3))
    plan = machine.step(budget=100)
    assert (len(plan.scored), plan.prompt_tokens) == (SCORED_ROWS, 100)
    machine.run(budget=100)
    assert [len(machine.prompt_logprobs[key]) for key in (1, 2)] == [200, 200]


def test_decoding_goes_on_beside_scoring() -> None:
    """A step has a row for each choice that decodes, whatever is scored in it."""
    machine = Machine()
    machine.submit(1, prompt(4), max_tokens=50)
    machine.step()
    machine.submit(2, prompt(300, seed=1), is_scored=True)
    for _ in range(4):
        before = len(machine.said[1])
        machine.step(budget=90)
        assert len(machine.said[1]) == before + 1


def test_a_prompt_and_nothing_else() -> None:
    """With no token asked for, a choice ends with the step that completes its prompt, or with an abort before."""
    machine = Machine()
    machine.submit(1, prompt(50, seed=1), max_tokens=0)
    plan = machine.step(budget=100)
    assert not any(plan.wanted)
    assert (machine.reason(1), machine.said[1], machine.cached[1]) == (FinishReason.LENGTH, [], 0)
    machine.submit(2, prompt(50, seed=2), max_tokens=0, is_scored=True)
    machine.step(budget=20)
    machine.abort(2)
    machine.run()
    assert machine.reason(2) is FinishReason.ABORTED


def test_failed_step() -> None:
    """A step that could not be computed ends its choices in errors and empties their slots; the rest goes on."""
    machine = Machine()
    machine.submit(1, prompt(50, seed=1))
    plan = machine.scheduler.begin(lambda _: 10)
    machine.book(machine.scheduler.fail(plan, lambda: ApiError(Reason.WORKER_FAILED, "no")))
    assert machine.ends[1].error is not None
    machine.submit(2, prompt(50, seed=1))
    machine.run()
    assert machine.cached[2] == 0


def test_end_all() -> None:
    """The end of the engine is the end of every choice, running or waiting."""
    machine = Machine(slots=1)
    for key in range(3):
        machine.submit(key, prompt(5))
    machine.step(budget=2)
    machine.book(machine.scheduler.end_all(None))
    assert {machine.reason(key) for key in range(3)} == {FinishReason.ABORTED}
    assert not machine.scheduler.has_work()


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["submit", "submit", "step", "step", "abort"]),
        st.integers(0, 3),  # which of a few prompts that share beginnings, or which recent key
        st.integers(1, 120),  # length of the prompt, or the budget
        st.integers(0, 5),  # priority, salt, tokens, and whether the prompt is scored
    ),
    max_size=60,
)


@given(ACTIONS)
def test_any_history(actions: list[tuple[str, int, int, int]]) -> None:
    """Whatever comes in whatever order: rows follow their own past, salts stay apart, each choice ends once."""
    machine = Machine(slots=3, waiting=3, context=150)
    key = 0
    refusals = set()
    for action, which, number, kind in actions:
        if action == "submit":
            key += 1
            tokens = [*prompt(number, seed=1)[: 40 * which], *prompt(number, seed=2)][:number]
            try:
                salt = b"x" * (kind % 2)
                machine.submit(key, tokens, max_tokens=2 * (kind % 3), priority=kind, salt=salt, is_scored=kind > 2)
            except ApiError as error:
                refusals.add(error.reason)
        elif action == "abort":
            machine.abort(key - which)
        else:
            machine.step(budget=number)
        load = machine.scheduler.load(1.0)
        assert load.num_requests_running <= 3
        assert load.num_requests_waiting == 0 or load.num_requests_running == 3
        assert 0 <= load.kv_used_tokens <= load.kv_total_tokens
        assert load.uncached_tokens_in_flight >= 0
    machine.run()
    assert refusals <= {Reason.OVERLOADED}
    assert machine.ends.keys() == machine.requests.keys()
    assert machine.scheduler.load(1.0).kv_used_tokens == 0


class Nothing:
    """Stands for a compiled grammar, which the scheduler hands on unread."""


def release(machine: Machine, key: int) -> None:
    machine.scheduler.release(key, Nothing())  # type: ignore[arg-type]


def wrong() -> ApiError:
    return ApiError(Reason.INVALID_SCHEMA, "it is wrong")


def test_a_blocked_choice_computes_its_prompt() -> None:
    """All but its last token, whose row gives the first new one; then there is nothing to do until it is released."""
    machine = Machine()
    machine.submit(1, prompt(20), is_blocked=True)
    machine.run(budget=8)
    assert machine.computed == 19
    assert machine.said[1] == []
    assert machine.scheduler.load(0.0).num_requests_running == 1
    release(machine, 1)
    machine.run()
    assert (machine.computed, len(machine.said[1])) == (20, 3)


def test_a_blocked_choice_holds_nobody_up() -> None:
    """Others go on, also with the same prompt and with one that goes on from it, and a slot is a slot."""
    machine = Machine(slots=3)
    machine.submit(1, prompt(100), is_blocked=True)
    machine.submit(2, prompt(100))
    machine.submit(3, [*prompt(100), 5, 6])
    machine.submit(4, prompt(3))
    machine.run()
    assert sorted(machine.ends) == [2, 3, 4]
    release(machine, 1)
    machine.run()
    assert machine.reason(1) is FinishReason.LENGTH


@pytest.mark.parametrize("steps", [0, 1, 50])
def test_refused(steps: int) -> None:
    """The only output is the error, whenever it comes, and the slot is free."""
    machine = Machine(slots=1)
    machine.submit(1, prompt(50), is_blocked=True)
    for _ in range(steps):
        if machine.scheduler.has_work():
            machine.step(budget=8)
    assert machine.scheduler.refuse(1, wrong()) is None
    machine.submit(2, prompt(3))
    machine.run()
    error = machine.ends[1].error
    assert error is not None
    assert error.reason is Reason.INVALID_SCHEMA
    assert machine.said[1] == []
    assert machine.reason(2) is FinishReason.LENGTH


def test_refused_or_aborted_while_waiting() -> None:
    """It is answered at once, and what is said of it afterwards reaches nobody."""
    machine = Machine(slots=1)
    machine.submit(1, prompt(3), is_blocked=True)
    for key in (2, 3):
        machine.submit(key, prompt(3), is_blocked=True)
    refused = machine.scheduler.refuse(2, wrong())
    assert refused is not None
    machine.book([refused])
    machine.abort(3)
    assert machine.reason(3) is FinishReason.ABORTED
    release(machine, 3)
    assert machine.scheduler.refuse(3, wrong()) is None
    release(machine, 1)
    machine.run()
    assert machine.reason(1) is FinishReason.LENGTH


def test_aborted_while_blocked() -> None:
    """With its prompt computed it has nothing to do, and ends all the same."""
    machine = Machine(slots=1)
    machine.submit(1, prompt(3), is_blocked=True)
    machine.run()
    assert not machine.scheduler.has_work()
    machine.abort(1)
    assert machine.scheduler.has_work()
    machine.run()
    assert machine.reason(1) is FinishReason.ABORTED


def test_a_grammar_that_is_over() -> None:
    """The choice ends by STOP with the token behind which nothing can come; it is a stop token if it ends turns."""
    for token, ignore_eos in ((4, False), (END, False), (END, True)):
        machine = Machine(slots=1)
        machine.submit(1, prompt(3), ignore_eos=ignore_eos)
        plan = machine.scheduler.begin(lambda _: 100)
        (output,) = machine.scheduler.finish(plan, dict.fromkeys(plan.sampled, token), over=set(plan.sampled))
        assert (output.token_ids, output.finish_reason) == ((token,), FinishReason.STOP)
        assert output.ends_with_stop_token is (token == END)
        assert not machine.scheduler.has_work()


def test_a_choice_that_cannot_go_on() -> None:
    """It ends in its error, and the other one of the step has its token."""
    machine = Machine(slots=2)
    machine.submit(1, prompt(3))
    machine.submit(2, prompt(4, seed=2))
    plan = machine.scheduler.begin(lambda _: 100)
    rows = {choice.request.key: row for row, choice in plan.sampled.items()}
    outputs = machine.scheduler.finish(plan, {rows[2]: 4}, failed={rows[1]: wrong()})
    ended = {output.key: output for output in outputs}
    assert ended[1].error is not None
    assert not ended[1].token_ids
    assert ended[2].token_ids == (4,)


def test_the_time_in_the_queue_is_told() -> None:
    """With the first output: from the submission to the step that begins with the prompt."""
    scheduler = Scheduler(max_running=1, max_waiting=1, context_length=64, end_tokens=())
    for key in (1, 2):
        request = GenerateRequest(key, f"r{key}", "m", prompt(5, seed=key), Sampling(max_tokens=1))
        scheduler.submit(request, now=10.0 + key)
    waited = {}
    for now in (12.5, 20.0):
        plan = scheduler.begin(lambda _: 100, now=now)
        for output in scheduler.finish(plan, {row: 7 for row in range(len(plan.tokens)) if plan.wanted[row]}):
            waited[output.key] = output.queue_s
    assert waited == {1: 1.5, 2: 8.0}
