"""Handed cases on what a stream says: events, usage, characters, stop strings, reasoning, choices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import assert_well_formed, log_line, run, run_both_modes, variants
from tests.support.client import Answer
from tests.support.waiting import until


@case("SSE-01", "SSE-10")
async def test_a_plain_stream(case: Any, installation: Installation) -> None:
    """Role, texts, one finish chunk with an empty delta, [DONE]; every choice has index 0."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("content") == {"SSE-01": "Hello", "SSE-10": "I'm"}[case["id"]]
    assert answer.finish_reasons() == ["stop"]
    assert {choice["index"] for choice in answer.choices} == {0}


@case("SSE-03")
async def test_tools_that_are_declared_and_not_called(case: Any, installation: Installation) -> None:
    """The stream finishes with "stop" and holds no tool call."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.finish_reasons() == ["stop"]
    assert answer.joined("content") == "It is sunny."
    assert all("tool_calls" not in choice["delta"] for choice in answer.choices)


@case("SSE-05")
async def test_done_comes_after_long_reasoning(case: Any, installation: Installation) -> None:
    """[DONE] is the last event, once, whatever the length and the options."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("content") == "ok"
    assert len(answer.joined("reasoning_content")) == 200 * len(case["engine_script"][1]["text"])
    for changes in ({"n": 3}, {"stream_options": {"include_usage": True}}):
        assert_well_formed(await run(case, installation, **changes))


@case("SSE-06")
async def test_a_failure_after_tokens_is_told_in_band(case: Any, installation: Installation) -> None:
    """An error event without the engine's words, then [DONE]; no finish reason and no usage are made up."""
    answer = await run(case, installation, stream_options={"include_usage": True})
    assert answer.status == 200
    assert answer.joined("content") == "partial"
    assert answer.finish_reasons() == []
    assert answer.usage is None
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert answer.error["type"] == "server_error"
    assert answer.error["param"] is None
    assert "cuda" not in json.dumps(answer.error)
    assert "layer" not in json.dumps(answer.error)
    assert answer.events[-1] == "[DONE]"
    assert "error" in json.loads(answer.events[-2])
    line = await log_line(installation, "SSE-06.1")
    assert line["outcome"] == "worker_failed"


@case("SSE-08")
async def test_one_id_and_created_for_all_chunks(case: Any, installation: Installation) -> None:
    """Id and creation time are the same in every chunk of every choice, the usage chunk included."""
    answer = await run(case, installation, stream_options={"include_usage": True})
    assert_well_formed(answer)
    assert answer.joined("content", 0) == "ac"
    assert answer.joined("content", 1) == "b"
    assert answer.chunks[-1]["choices"] == []
    assert answer.chunks[-1]["id"] == answer.chunks[0]["id"]


@case("SSE-11")
async def test_the_end_of_turn_is_never_shown(case: Any, installation: Installation) -> None:
    """The end token is counted and has no text; the role comes once."""
    answer = await run(case, installation, stream_options={"include_usage": True})
    assert_well_formed(answer)
    assert answer.joined("content") == "Hi"
    assert answer.usage["completion_tokens"] == 2


@case("USG-02")
async def test_usage_comes_once_at_the_end(case: Any, installation: Installation) -> None:
    """One chunk without choices holds the counts; all before it hold none."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert all(chunk.get("usage") is None for chunk in answer.chunks[:-1])
    last = answer.chunks[-1]
    assert last["choices"] == []
    counts = {name: last["usage"][name] for name in ("prompt_tokens", "completion_tokens", "total_tokens")}
    assert counts == {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


@case("USG-04")
async def test_no_chunk_is_without_a_choice(case: Any, installation: Installation) -> None:
    """Unless usage was asked for, every chunk has a choice, and empty outputs make no chunk."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert all(len(chunk["choices"]) == 1 for chunk in answer.chunks)
    assert [choice["delta"] for choice in answer.choices] == [
        {"role": "assistant", "content": ""},
        {"content": "ok"},
        {},
    ]


@case("USG-05")
async def test_continuous_usage(case: Any, installation: Installation) -> None:
    """Each text chunk has the counts so far, cached tokens from the first one on."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    contents = [chunk for chunk in answer.chunks if chunk["choices"] and chunk["choices"][0]["delta"].get("content")]
    assert len(contents) == 2
    counts = []
    for chunk in contents:
        assert chunk["usage"]["prompt_tokens"] == 30
        assert chunk["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
        counts.append(chunk["usage"]["completion_tokens"])
    assert counts == sorted(counts)
    assert counts[-1] == answer.chunks[-1]["usage"]["completion_tokens"] == 2


@case("USG-07")
async def test_reasoning_tokens_are_counted(case: Any, installation: Installation) -> None:
    """They are a part of the completion tokens, streamed or not."""
    for answer in await run_both_modes(case, installation):
        if not answer.events or answer.usage:
            assert answer.usage["completion_tokens_details"]["reasoning_tokens"] == 3
            assert answer.usage["completion_tokens"] == 5
        assert answer.joined("reasoning_content") == "ab"
        assert answer.joined("content") == "c"


@case("UTF-01", "UTF-03")
async def test_characters_stay_whole(case: Any, installation: Installation) -> None:
    """A character whose bytes come in several tokens is one character in one delta."""
    streamed, whole = await run_both_modes(case, installation)
    assert_well_formed(streamed)
    expected = {"UTF-01": " šíp", "UTF-03": "ok 👋"}[case["id"]]
    for answer in (streamed, whole):
        assert answer.joined("content") == expected
        assert "\\ud83d" not in answer.body.decode()
    assert all("\ufffd" not in (choice["delta"].get("content") or "") for choice in streamed.choices)
    if case["id"] == "UTF-03":
        assert any("👋" in (choice["delta"].get("content") or "") for choice in streamed.choices)


@case("UTF-05")
async def test_invalid_bytes_never_stall(case: Any, installation: Installation) -> None:
    """Bytes that can never become a character are shown as one replacement mark, at once."""
    for _ in range(3):  # a machine that stands still for a moment brings both texts together
        answer = await run(case, installation)
        assert_well_formed(answer)
        assert answer.joined("content") == "\ufffdabcdef"
        if seconds_between(answer, "abc", "def") > 0.2:
            return
    pytest.fail("the mark and what follows it waited for what the engine said later")


def seconds_between(answer: Answer, early: str, late: str) -> float:
    """Between the arrivals of two texts."""
    first, second = (next(at for at, text in answer.arrivals if wanted in text) for wanted in (early, late))
    return second - first


@case("STP-03")
async def test_a_stop_string_over_several_tokens(case: Any, installation: Installation) -> None:
    """Text ends before the stop string, wherever its tokens are cut."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "a sil"
        assert answer.finish_reasons() == ["stop"]


@case("STP-05")
async def test_a_stop_string_aborts_the_engine(case: Any, installation: Installation) -> None:
    """The engine is told at the match, not when it is done by itself."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("content") == "a "
    assert answer.finish_reasons() == ["stop"]
    assert answer.usage["completion_tokens"] == 3
    (generate,) = installation.engine_saw("STP-05.1")
    await until(lambda: installation.engine_saw("STP-05.1", "abort"), 2, "abort after the match")
    (abort,) = installation.engine_saw("STP-05.1", "abort")
    assert abort["time"] - generate["time"] < 1.5, "the engine went on for its two seconds of sleep"


@case("STP-06")
async def test_a_stop_token_costs_no_text(case: Any, installation: Installation) -> None:
    """Text that was held back for a stop string is given out when the end comes another way."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "abcdef"


@case("STP-07")
async def test_overlapping_stop_strings(case: Any, installation: Installation) -> None:
    """The first place where any of them matches ends the text, whatever their order."""
    for answer in await variants(case, installation):
        assert answer.joined("content") == "xx"
        assert answer.finish_reasons() == ["stop"]


@case("RSN-01")
async def test_a_closing_tag_over_two_outputs(case: Any, installation: Installation) -> None:
    """Reasoning and answer are parted although the tag came in pieces."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("reasoning_content") == "plan"
        assert answer.joined("content") == "answer"


@case("RSN-03")
async def test_a_bracket_is_not_held(case: Any, installation: Installation) -> None:
    """Text that only began like a tag goes out as soon as it cannot be one."""
    answer = await run(case, installation)
    assert answer.joined("content") == "<Plain reply"
    assert seconds_between(answer, "<Plain", "reply") > 0.2


@case("RSN-05")
async def test_text_before_the_thought(case: Any, installation: Installation) -> None:
    """What comes before the opening tag is content."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "Sure.Yes"
        assert answer.joined("reasoning_content") == "why"


@case("RSN-08")
async def test_thinking_can_be_off(case: Any, installation: Installation) -> None:
    """Without thinking everything is content."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "Paris."
        assert not answer.joined("reasoning_content")


@case("RSN-11")
async def test_a_limit_inside_the_thought(case: Any, installation: Installation) -> None:
    """Half a closing tag at the end is reasoning; there is no content."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert answer.joined("reasoning_content") == "long thought </th"
    assert answer.joined("content") == ""
    assert answer.finish_reasons() == ["length"]


@case("NCH-01")
async def test_every_choice_finishes(case: Any, installation: Installation) -> None:
    """Each of three choices has its own text and its own finish reason."""
    answer = await run(case, installation)
    assert_well_formed(answer)
    assert [answer.joined("content", index) for index in range(3)] == ["a", "b", "c"]
    assert [answer.finish_reasons(index) for index in range(3)] == [["length"], ["stop"], ["stop"]]


@case("NCH-03")
async def test_choices_stay_apart(case: Any, installation: Installation) -> None:
    """Choices come in order of their index; the prompt is counted once."""
    answer = await run(case, installation)
    assert [choice["index"] for choice in answer.json["choices"]] == [0, 1]
    assert [choice["message"]["content"] for choice in answer.json["choices"]] == ["one", "two"]
    assert answer.usage["prompt_tokens"] == 5
    assert answer.usage["completion_tokens"] == 2
