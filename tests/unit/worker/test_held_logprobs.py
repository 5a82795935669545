"""Log-probabilities wait for their text."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from worker.core.choice import Choice, Delta, Usage
from worker.core.detokenize import TokenTable
from worker.core.outbox import Outbox
from worker.core.stop import StopStrings
from worker.engine import FinishReason, Output, TokenLogprob

PIECES = [b"a", b"b", b"\xf0\x9f", b"\x91\x8b", b"end", b" ", b"xy"]
TABLE = TokenTable(PIECES, hidden={99: b"<|eot|>"})


def score(token_id: int) -> TokenLogprob:
    return TokenLogprob(token_id, -0.5, [(token_id, -0.5), (99, float("-inf"))])


def play(steps: list[list[int]], stop: str = "") -> list[Delta]:
    """The deltas of a choice that says these tokens, step by step, and ends."""
    choice = Choice(TABLE, 3, StopStrings([stop]) if stop else None, logprobs=True)
    deltas = []
    for place, ids in enumerate(steps):
        is_last = place == len(steps) - 1
        finish = FinishReason.LENGTH if is_last else None
        delta = choice.feed(Output(1, ids, finish, logprobs=[score(one) for one in ids]))
        if delta is not None:
            deltas.append(delta)
            if delta.finish_reason is not None:
                break
    return deltas


def test_a_token_waits_for_its_whole_character() -> None:
    """Half a character has no text yet; alternatives have their bytes, control tokens their names, all are finite."""
    deltas = play([[0, 2], [3], [1]])
    assert [(delta.text, [one.token for one in delta.logprobs]) for delta in deltas] == [
        ("a", [b"a"]),
        ("👋", [b"\xf0\x9f", b"\x91\x8b"]),
        ("b", [b"b"]),
    ]
    assert deltas[0].logprobs[0].top == [(b"a", -0.5), (b"<|eot|>", -9999.0)]


def test_what_a_stop_string_holds_back_has_no_score_yet_and_what_it_hides_never() -> None:
    """The beginning of a stop waits with its text; after the match only what is shown is scored."""
    deltas = play([[0], [4], [1]], stop="end!")
    told = [(delta.text, [one.token for one in delta.logprobs]) for delta in deltas]
    assert told == [("a", [b"a"]), ("", []), ("endb", [b"end", b"b"])]
    deltas = play([[0], [6], [4], [1]], stop="yend")
    assert "".join(delta.text for delta in deltas) == "ax"
    assert [one.token for delta in deltas for one in delta.logprobs] == [b"a", b"xy"]


@given(
    st.lists(st.lists(st.integers(0, len(PIECES) - 1), max_size=4), min_size=1, max_size=8),
    st.sampled_from(["", "b e", "abxy", "👋"]),
)
def test_any_split_gives_the_same_scores(steps: list[list[int]], stop: str) -> None:
    """However tokens come, scores are those of the shown tokens in order, and never ahead of the text."""
    deltas = play(steps, stop)
    flat = play([[one for step in steps for one in step]], stop)
    assert [one for delta in deltas for one in delta.logprobs] == [one for delta in flat for one in delta.logprobs]
    shown = ""
    told = b""
    for delta in deltas:
        shown += delta.text
        told += b"".join(one.token for one in delta.logprobs)
        if delta.finish_reason is None:
            assert len(told.decode("utf-8", "ignore")) <= len(shown)


def test_a_prompt_without_a_completion_is_told_in_one_delta() -> None:
    """The only output of a choice that was asked for no token has the prompt's scores, its counts and the end."""
    choice = Choice(TABLE, 2, logprobs=True)
    output = Output(1, (), FinishReason.LENGTH, cached_tokens=0, prompt_logprobs=[TokenLogprob(0, None), score(1)])
    delta = choice.feed(output)
    assert delta is not None
    assert (delta.text, delta.logprobs, delta.usage) == ("", [], Usage(2, 0, 0))
    assert [(one.token, one.logprob) for one in delta.prompt_logprobs] == [(b"a", None), (b"b", -0.5)]


def test_scores_of_a_long_prompt_are_cut_over_messages() -> None:
    """No message is too large, nothing is lost, and the order stays: the prompt's, then text and its own."""
    choice = Choice(TABLE, 3, logprobs=True)
    prompt = [score(number % 2) for number in range(2_000)]
    delta = choice.feed(Output(1, [0], logprobs=[score(0)], prompt_logprobs=prompt))
    assert delta is not None
    outbox = Outbox(batch_bytes=4_096)
    outbox.put(1, delta)
    outbox.put(1, Delta("more", 2, logprobs=[delta.logprobs[0]] * 3))
    parts = []
    while batch := outbox.take():
        parts += [part for _, part in batch]
    assert len(parts) > 10
    assert sum(len(part.prompt_logprobs) for part in parts) == 2_000
    assert "".join(part.text for part in parts) == "amore"
    assert sum(len(part.logprobs) for part in parts) == 4
    first_text = next(place for place, part in enumerate(parts) if part.text)
    assert not any(part.prompt_logprobs for part in parts[first_text + 1 :])
    assert outbox.size_bytes == 0
