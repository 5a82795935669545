"""The reader of one choice: thought and calls together, what is left out, what is wrong, what is counted."""

from __future__ import annotations

import pytest

from gateway.core.answer_events import Content, Event, Reasoning
from gateway.core.answer_reader import AnswerReader
from gateway.core.reasoning import ThinkSplitter
from gateway.core.schemas import Schema
from gateway.core.tools.glm45 import Glm45
from gateway.core.tools.hermes import Hermes
from tests.support.tool_parsers import cuttings

CITY = Schema({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}, "p")
SCHEMAS = {"weather": CITY}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def read(reader: AnswerReader, pieces: list[str]) -> tuple[str, str]:
    """Content and reasoning."""
    events: list[Event] = []
    for piece in pieces:
        events += reader.feed(piece, 1)
    events += reader.finish()
    return (
        "".join(event.text for event in events if isinstance(event, Content)),
        "".join(event.text for event in events if isinstance(event, Reasoning)),
    )


@pytest.mark.parametrize(
    ("arguments", "mistake", "outcome"),
    [
        ('{"city": "Paris"}', None, "valid"),
        ('{"city": 3}', '$.city: 3 is not of type "string"', "invalid"),
        ("{}", '$: "city" is a required property', "invalid"),
        ('{"city": "a\nb"}', "The arguments are not valid JSON.", "invalid"),
        ('{"city": ' + "[" * 3000 + "]" * 3000 + "}", "The arguments are not valid JSON.", "invalid"),
    ],
)
def test_arguments_are_judged_and_left_as_they_are(arguments: str, mistake: str | None, outcome: str) -> None:
    reader = AnswerReader(parser=Hermes({}), schemas=SCHEMAS)
    read(reader, [call("weather", arguments)])
    (made,) = reader.calls
    assert (made.arguments, made.mistake) == (arguments, mistake)
    assert dict(reader.outcomes) == {outcome: 1}
    assert reader.told("stop") == "tool_calls"
    assert reader.told("length") == "length"


def test_what_is_no_whole_call_of_a_tool() -> None:
    reader = AnswerReader(parser=Hermes({}), schemas=SCHEMAS)
    read(reader, [call("other", "{}") + "<tool_call>nonsense</tool_call>" + call("weather", '{"city": "P"}')[:55]])
    assert [one.mistake for one in reader.calls] == ["There is no tool of this name.", "The call was cut off."]
    assert dict(reader.outcomes) == {"invalid": 1, "dropped": 1, "cut_off": 1}


def test_calls_beyond_the_allowed_are_left_out() -> None:
    reader = AnswerReader(parser=Hermes({}), schemas=SCHEMAS, most_calls=1, called="function_call")
    paris = call("weather", '{"city": "Paris"}')
    assert read(reader, [f"Look: {paris}\n{paris}{paris}"]) == ("Look: ", "")
    assert len(reader.calls) == 1
    assert dict(reader.outcomes) == {"valid": 1, "left_out": 2}
    assert reader.told("stop") == "function_call"


def test_without_calls_the_reason_is_the_engines() -> None:
    reader = AnswerReader(parser=Hermes({}), schemas=SCHEMAS)
    assert read(reader, ["Hello."]) == ("Hello.", "")
    assert reader.told("stop") == "stop"


DRAFT = f"<think>I could {call('weather', '{}')}, or not.</think>No need."


def test_a_call_drafted_in_a_thought_is_none() -> None:
    """For every cutting."""
    for pieces in (*cuttings(DRAFT), [DRAFT]):
        reader = AnswerReader(ThinkSplitter(), Hermes({}), schemas=SCHEMAS)
        assert read(reader, pieces) == ("No need.", f"I could {call('weather', '{}')}, or not.")
        assert reader.calls == []


FORGOTTEN = "<think>need weather<tool_call>weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>"


def test_a_call_ends_a_thought_where_its_mark_is_a_token() -> None:
    """For every cutting; the thought's own end is forgotten."""
    for pieces in (*cuttings(FORGOTTEN), [FORGOTTEN]):
        reader = AnswerReader(ThinkSplitter(call_mark=Glm45.opening), Glm45({"weather": CITY.schema}), schemas=SCHEMAS)
        assert read(reader, pieces) == ("", "need weather")
        assert [(one.name, one.arguments, one.mistake) for one in reader.calls] == [
            ("weather", '{"city": "Paris"}', None)
        ]


def test_tokens_of_thoughts_are_counted() -> None:
    """Tags belong to the thought; a piece that is both counts by its characters."""
    reader = AnswerReader(ThinkSplitter())
    for text, tokens in (("<think>", 1), ("abc", 1), ("", 2), ("def", 3), ("</think>", 1), ("answer", 5)):
        reader.feed(text, tokens)
    reader.finish()
    assert reader.reasoning_tokens in (6, 7)
    mixed = AnswerReader(ThinkSplitter())
    mixed.feed("<think>abcd</think>ef", 6)
    assert mixed.reasoning_tokens == 4
