"""One choice: text that may be shown, counts, and when the engine must be stopped."""

from __future__ import annotations

from inferway.errors import ApiError, Reason
from worker.core.choice import Choice, Delta, Usage
from worker.core.detokenize import TokenTable
from worker.core.stop import StopStrings
from worker.engine import FinishReason, Output

# Token n is the n-th of these.
WORDS = [b"a", b" EN", b"D", b" more", b"\xf0\x9f", b"\x91\x8b", b"<end>"]
TABLE = TokenTable(WORDS)


def make(stop: list[str] | None = None, min_tokens: int = 0) -> Choice:
    return Choice(TABLE, 7, StopStrings(stop) if stop else None, min_tokens)


def play(choice: Choice, *outputs: Output) -> list[Delta]:
    deltas = []
    for output in outputs:
        delta = choice.feed(output)
        if delta is not None:
            deltas.append(delta)
            if delta.finish_reason or delta.error:
                break
    return deltas


def test_the_first_delta_tells_the_prompt_and_the_last_tells_all() -> None:
    """Usage comes twice; between them a delta has its text and the count so far."""
    deltas = play(
        make(),
        Output(1, [0], cached_tokens=5),
        Output(1, [3]),
        Output(1, [], FinishReason.STOP),
    )
    assert deltas == [
        Delta("a", 1, usage=Usage(7, 1, 5)),
        Delta(" more", 2),
        Delta("", 2, FinishReason.STOP, Usage(7, 2, 5)),
    ]


def test_a_stop_string_ends_the_choice_at_the_token_that_completed_it() -> None:
    """Tokens of the same output behind the match are not counted, and the engine must be stopped."""
    deltas = play(make(["END"]), Output(1, [0]), Output(1, [1, 2, 3]))
    assert deltas[-1] == Delta(" ", 3, FinishReason.STOP, Usage(7, 3, 0), must_abort=True)
    assert "".join(delta.text for delta in deltas) == "a "


def test_a_stop_string_in_the_engines_last_output_needs_no_abort() -> None:
    """The match wins over the engine's own reason; the engine has ended already."""
    (delta,) = play(make(["END"]), Output(1, [0, 1, 2], FinishReason.LENGTH))
    assert (delta.finish_reason, delta.must_abort, delta.completion_tokens) == (FinishReason.STOP, False, 3)


def test_how_tokens_are_grouped_makes_no_difference() -> None:
    """Text, reason and count are the same whether tokens come one by one or together."""
    for stop in (None, ["END"], ["more"], ["a EN?"]):
        one = play(make(stop), *(Output(1, [token]) for token in (0, 1, 2, 3)), Output(1, [], FinishReason.LENGTH))
        all_at_once = play(make(stop), Output(1, [0, 1, 2, 3], FinishReason.LENGTH))
        assert "".join(d.text for d in one) == "".join(d.text for d in all_at_once)
        assert one[-1].usage == all_at_once[-1].usage
        assert one[-1].finish_reason == all_at_once[-1].finish_reason


def test_stop_strings_wait_for_min_tokens() -> None:
    """A stop string inside the first tokens is text; from token number min_tokens on it ends the choice."""
    early = play(make(["a"], min_tokens=3), *(Output(1, [token]) for token in (0, 0, 2, 0)))
    assert "".join(delta.text for delta in early) == "aaD"
    assert early[-1].completion_tokens == 4


def test_held_text_is_flushed_at_the_end() -> None:
    """The beginning of a stop and the beginning of a character are shown when nothing follows."""
    deltas = play(make(["END!"]), Output(1, [1]), Output(1, [2]), Output(1, [4], FinishReason.LENGTH))
    assert "".join(delta.text for delta in deltas) == " END\ufffd"


def test_a_character_completed_by_the_last_output_is_shown() -> None:
    """Bytes of a character may come with the finish."""
    deltas = play(make(), Output(1, [4]), Output(1, [5], FinishReason.STOP))
    assert [delta.text for delta in deltas] == ["", "👋"]


def test_a_stop_token_is_counted_and_not_shown() -> None:
    """The token that ended the turn is in the count only; no text is cut for it."""
    (delta,) = play(make(), Output(1, [0, 6], FinishReason.STOP, ends_with_stop_token=True))
    assert (delta.text, delta.completion_tokens) == ("a", 2)


def test_an_output_with_nothing_new_gives_no_delta() -> None:
    """After the first, a delta needs text, a higher count or an end."""
    deltas = play(make(), Output(1, [0]), Output(1, []), Output(1, [4]))
    assert [(delta.text, delta.completion_tokens) for delta in deltas] == [("a", 1), ("", 2)]


def test_an_error_ends_the_choice_with_what_was_counted() -> None:
    """The text before it stands; the count is that of tokens, not of the error's text."""
    error = ApiError(Reason.WORKER_FAILED, "The engine failed on this request.")
    deltas = play(make(["END"]), Output(1, [0, 1]), Output(1, [], error=error))
    assert "".join(delta.text for delta in deltas) == "a EN"
    assert (deltas[-1].error, deltas[-1].finish_reason, deltas[-1].completion_tokens) == (error, None, 2)


def test_counts_of_the_engine_replace_those_of_the_worker() -> None:
    """A script says its own usage, and cached and reasoning tokens never exceed what they are parts of."""
    deltas = play(
        make(),
        Output(1, [0], prompt_tokens=30, completion_tokens=1, cached_tokens=16),
        Output(1, [], FinishReason.STOP, completion_tokens=5, reasoning_tokens=3),
    )
    assert deltas[0].usage == Usage(30, 1, 16)
    assert deltas[1].usage == Usage(30, 5, 16, 3)
    assert play(make(), Output(1, [0], FinishReason.STOP, cached_tokens=99))[0].usage == Usage(7, 1, 7)
