"""Scripts as they are read and as a choice plays them."""

from __future__ import annotations

from typing import Any

import pytest

from inferway.errors import Reason
from worker.engine import FinishReason
from worker.engines.scripted.play import Beat, Part, Play, planned_tokens
from worker.engines.scripted.script import Counts, Score, ScriptError, Special, Token, read_item, read_scripts

MESSAGE = (901, 902)


def part(*, worker: str = "A", choice_index: int = 0, is_endless: bool = False, ids: Any = None) -> Part:
    names: dict[Token, int] = {} if ids is None else ids
    return Part(
        worker=worker,
        choice_index=choice_index,
        message_ids=lambda: MESSAGE,
        message_text=lambda: "p1",
        token_id=lambda token: names.setdefault(token, len(names)),
        is_endless=is_endless,
    )


def beats(script: Any, who: Part, limit: int = 50) -> list[Beat]:
    items = None if script is None else tuple(read_item(item, "item") for item in script)
    play = Play(items, who)
    played: list[Beat] = []
    while play.next is not None and len(played) < limit:
        played.append(play.next)
        play.advance()
    return played


def words(script: Any, **who: Any) -> list[Token]:
    """The tokens that are played, by name."""
    ids: dict[Token, int] = {}
    played = [token_id for beat in beats(script, part(ids=ids, **who)) for token_id in beat.token_ids]
    names = {token_id: token for token, token_id in ids.items()}
    return [names[token_id] for token_id in played]


@pytest.mark.parametrize(
    ("item", "tokens"),
    [
        ({"text": "Größe"}, ["Größe".encode()]),
        ({"text": ""}, [b""]),
        ({"pieces": ["a", "b"]}, [b"a", b"b"]),
        ({"bytes": "f09f"}, [b"\xf0\x9f"]),
        ({"special": "<|eot|>"}, [Special("<|eot|>")]),
        ({"tokens": [{"token": "Hi", "logprob": -0.1, "bytes": [72, 105], "top": []}]}, [b"Hi"]),
        ({"tokens": [{"token": " x", "logprob": -0.5}]}, [b" x"]),
        ({"text": "t", "repeat": 3}, [b"t"] * 3),
        ({"text": "t", "repeat": 0}, []),
    ],
)
def test_each_item_is_the_tokens_it_says(item: dict[str, Any], tokens: list[Token]) -> None:
    """One item is one token whatever its bytes; pieces are several; repeat says it again."""
    assert words([item, {"finish": "stop"}]) == tokens


def test_time_is_told_between_beats() -> None:
    """Sleep comes before what follows; the gap comes between repetitions, not before the first."""
    script = [{"sleep_ms": 100}, {"sleep_ms": 50, "text": "a"}, {"text": "b", "repeat": 3, "gap_ms": 20}]
    assert [round(beat.delay_s, 3) for beat in beats(script, part())] == [0.15, 0, 0.02, 0.02, 0]


def test_a_script_without_an_end_stops() -> None:
    """What ends a script that says nothing is an implied stop, after the time it waits."""
    (beat,) = beats([{"sleep_ms": 600_000}], part())
    assert (beat.delay_s, beat.finish, beat.is_implied) == (600, FinishReason.STOP, True)


def test_nothing_is_played_after_an_end() -> None:
    """Items behind finish or error are never reached."""
    assert words([{"text": "a", "finish": "length"}, {"text": "b"}]) == [b"a"]
    assert words([{"text": "a"}, {"grpc_error": {"code": "INTERNAL"}}, {"text": "b"}]) == [b"a"]


def test_choices_and_workers_play_their_own_items() -> None:
    """Items with an index or a worker are for that one, the others for everyone."""
    script = [
        {"index": 0, "text": "a"},
        {"index": 1, "text": "b"},
        {"text": "all"},
        {"worker": "B", "text": "B"},
        {"finish": "stop"},
    ]
    assert words(script) == [b"a", b"all"]
    assert words(script, choice_index=1, worker="B") == [b"b", b"all", b"B"]


@pytest.mark.parametrize("script", [None, [], [{"capability": {"grammar": False}}], [{"worker": "B", "text": "x"}]])
def test_where_nothing_is_meant_for_a_choice_it_echoes(script: Any) -> None:
    """No script, an empty one, or one of others: the last user message, a token a beat, then stop."""
    played = beats(script, part())
    assert [beat.token_ids for beat in played] == [(901,), (902,), ()]
    assert (played[-1].finish, played[-1].is_implied) == (FinishReason.STOP, True)


def test_an_endless_echo_begins_again() -> None:
    """With ignore_eos an echo goes on until a limit ends it."""
    assert [beat.token_ids for beat in beats(None, part(is_endless=True), 5)] == [(901,), (902,)] * 2 + [(901,)]


def test_echo_nonce_repeats_the_message() -> None:
    """The whole message is one output, once a repetition."""
    played = beats([{"echo_nonce": True, "repeat": 3, "gap_ms": 5}, {"finish": "stop"}], part())
    assert [beat.token_ids for beat in played] == [MESSAGE] * 3 + [()]


def test_per_prompt_answers_by_message_and_choice() -> None:
    """The message's text picks the list, the choice's number the answer."""
    script = [{"per_prompt": {"p0": ["a", "b"], "p1": ["c", "d"]}}]
    assert [words(script, choice_index=index) for index in (0, 1, 2)] == [[b"c"], [b"d"], [b"c"]]


def test_usage_is_reported_where_it_is_written_and_the_prompt_from_the_start() -> None:
    """Prompt and cached counts are known before the first token, wherever the script has them."""
    items = [{"text": "a"}, {"finish": "stop", "usage": {"prompt": 30, "completion": 9}, "cached": 16, "reasoning": 3}]
    script = tuple(read_item(item, "item") for item in items)
    play = Play(script, part())
    assert play.first_counts == Counts(prompt=30, cached=16)
    assert beats(items, part())[-1].counts == Counts(30, 9, 16, 3)


def test_a_finish_with_a_matched_token_hides_it() -> None:
    """The end-of-turn token is the last token of the last output."""
    script = [{"text": "Hi"}, {"special": "<|im_end|>", "finish": "stop", "matched_token": True}]
    last = beats(script, part())[-1]
    assert (last.ends_with_stop_token, len(last.token_ids), last.finish) == (True, 1, FinishReason.STOP)


def test_meta_only_is_an_output_without_tokens() -> None:
    """It has nothing but its place in time."""
    assert [beat.token_ids for beat in beats([{"text": "a"}, {"meta_only": True}, {"finish": "stop"}], part())] == [
        (0,),
        (),
        (),
    ]


@pytest.mark.parametrize(
    ("item", "reason"),
    [
        ({"grpc_error": {"code": "UNAVAILABLE", "details": "gone"}}, Reason.WORKER_FAILED),
        ({"grpc_error": {"code": "INTERNAL", "details": "oom"}}, Reason.WORKER_FAILED),
        ({"grpc_error": {"code": "UNKNOWN", "details": "Traceback at 10.1.2.3"}}, Reason.WORKER_FAILED),
        ({"grpc_error": {"code": "RESOURCE_EXHAUSTED", "details": "queue full"}}, Reason.OVERLOADED),
        ({"grpc_error": {"code": "INVALID_ARGUMENT", "details": "too long"}}, Reason.INVALID_REQUEST),
        ({"grpc_error": {"code": "DEADLINE_EXCEEDED"}}, Reason.UPSTREAM_TIMEOUT),
        ({"eof": True}, Reason.WORKER_FAILED),
    ],
)
def test_failures_have_a_reason_and_keep_their_details_to_the_log(item: dict[str, Any], reason: Reason) -> None:
    """The sentence for callers is general; the script's own words are for the log."""
    (beat,) = beats([item], part())
    assert beat.failure is not None
    assert beat.failure.error.reason is reason
    details = item.get("grpc_error", {}).get("details", "")
    assert details in beat.failure.detail
    assert not details or details not in beat.failure.error.message


def test_numbers_may_be_infinite_or_none_at_all() -> None:
    """Log-probabilities and embeddings are read with their special numbers."""
    item = read_item({"embedding": ["nan", 1.0], "input_logprobs": [1]}, "item")
    assert item.embedding is not None
    assert item.embedding[0] != item.embedding[0]
    assert item.input_logprobs == (1.0,)
    scored = read_item({"tokens": [{"token": "a", "logprob": 0.0, "top": [["b", "-inf", [98]]]}]}, "item")
    assert scored.scores == (Score(b"a", 0.0, [(b"b", float("-inf"))]),)


@pytest.mark.parametrize(
    ("script", "tokens"),
    [
        ([{"text": "t", "repeat": 50}, {"pieces": ["a", "b"]}, {"finish": "stop"}], 52),
        ([{"echo_nonce": True}], None),
        ([{"per_prompt": {"p": ["a"]}}], None),
        ([], None),
    ],
)
def test_the_length_of_a_script_is_known_unless_it_hangs_on_the_prompt(script: Any, tokens: int | None) -> None:
    """What a batch reserves memory for."""
    assert planned_tokens(tuple(read_item(item, "item") for item in script)) == tokens


FILE = {
    "SSE-01": [{"text": "one"}],
    "TCH-01": {"auto": [{"text": "auto"}], "named": [{"text": "named"}]},
    "VAL-04": None,
}


@pytest.mark.parametrize(
    ("request_id", "text"),
    [
        ("SSE-01", b"one"),
        ("SSE-01.7", b"one"),
        ("SSE-01.a.b", b"one"),
        ("TCH-01.named.3", b"named"),
        ("TCH-01.9", b"auto"),
        ("TCH-01", b"auto"),
        ("VAL-04", None),
        ("SSE-01-7", None),
        ("", None),
    ],
)
@pytest.mark.parametrize("as_entries", [False, True])
def test_a_request_finds_its_script_by_its_id(request_id: str, text: bytes | None, as_entries: bool) -> None:
    """Up to the first dot, then a variant; both forms of a file mean the same."""
    entries = [{"id": name, "engine_script": script, "symptom": "x"} for name, script in FILE.items()]
    script = read_scripts(entries if as_entries else FILE).find(request_id)
    assert (script[0].tokens[0] if script else None) == text


def test_the_script_named_star_is_everyones() -> None:
    """A request without a script of its own plays it."""
    scripts = read_scripts({"*": [{"text": "any"}], "a": [{"text": "a"}]})
    assert [script[0].tokens for script in map(scripts.find, ("a", "b", "")) if script] == [
        (b"a",),
        (b"any",),
        (b"any",),
    ]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        ("text", "must be a mapping"),
        ([{"engine_script": []}], "entry 0: must be a mapping with an id"),
        ({"a": "text"}, "a: must be a list of items"),
        ({"a": {}}, "a: must have at least one variant"),
        ({"a": ["text"]}, r"a\[0\]: must be a mapping"),
        ({"a": [{"txt": "x"}]}, r"a\[0\].txt: no such key"),
        ({"a": {"v": [{"text": 1}]}}, r"a.v\[0\].text: must be a str, got 1"),
        ({"a": [{"bytes": "xyz"}]}, r"a\[0\].bytes: must be bytes in hex"),
        ({"a": [{"finish": "done"}]}, r"a\[0\].finish: must be one of stop, length"),
        ({"a": [{"text": "x", "usage": {"total": 3}}]}, r"a\[0\].usage.total: is no count"),
        ({"a": [{"text": "x", "repeat": -1}]}, r"a\[0\].repeat: must be a whole number"),
        ({"a": [{"sleep_ms": "1s"}]}, r"a\[0\].sleep_ms: must be a number"),
        ({"a": [{"grpc_error": {"code": "OOPS"}}]}, r"a\[0\].grpc_error.code: must be a gRPC status code"),
        ({"a": [{"tokens": [{"token": "x", "bytes": [300]}]}]}, r"a\[0\].tokens.bytes: must be a list"),
        ({"a": [{"embedding": ["x"]}]}, r"a\[0\].embedding: must hold numbers"),
    ],
)
def test_mistakes_are_named_by_script_item_and_key(document: Any, sentence: str) -> None:
    """A file with a mistake is refused as a whole, before anything is served."""
    with pytest.raises(ScriptError, match=sentence):
        read_scripts(document)
