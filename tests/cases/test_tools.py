"""Handed cases of tool calls: their format, their choice and how they are streamed."""

from __future__ import annotations

import asyncio
import json
import re
import time
from typing import Any, NamedTuple

from tests.cases.handed import case
from tests.cases.installation import Installation
from tests.cases.support import CHAT, HI, run, run_both_modes
from tests.support.client import Answer

MARKUP = re.compile(r"<\||\|>|</?tool_call|<｜|\[TOOL_CALLS\]|<function=|<parameter|<arg_|commentary|functions\.")


class Called(NamedTuple):
    name: str
    arguments: str
    id: str


def calls(answer: Answer, index: int = 0) -> list[Called]:
    """The calls of one choice as a strict client puts them together; checks the order of deltas on the way."""
    assert answer.status == 200, answer.body
    if not answer.events:
        message = answer.json["choices"][index]["message"]
        assert message.get("tool_calls") != []
        return [_called(call) for call in message.get("tool_calls", ())]
    found: list[Called] = []
    for choice in answer.choices:
        for delta in choice["delta"].get("tool_calls", ()) if choice["index"] == index else ():
            assert isinstance(delta["index"], int)
            if "id" in delta:
                assert delta["index"] == len(found)
                assert delta["type"] == "function"
                assert delta["function"]["name"]
                found.append(_called(delta))
            elif "function" in delta:
                last = found[delta["index"]]
                found[delta["index"]] = last._replace(arguments=last.arguments + delta["function"]["arguments"])
    return found


def _called(call: Any) -> Called:
    assert call["type"] == "function"
    return Called(call["function"]["name"], call["function"]["arguments"], call["id"])


def parsed(answer: Answer) -> list[tuple[str, Any]]:
    """Names and parsed arguments; ids must be there and differ, and the finish reason must fit."""
    found = calls(answer)
    assert len({one.id for one in found}) == len(found)
    assert all(one.id for one in found)
    assert answer.finish_reasons() == ["tool_calls" if found else "stop"]
    return [(one.name, json.loads(one.arguments)) for one in found]


def assert_no_markup(answer: Answer) -> None:
    shown = answer.joined("content") + answer.joined("reasoning_content")
    assert not MARKUP.search(shown), shown


async def both(case: Any, installation: Installation, right: list[tuple[str, Any]], content: str = "") -> None:
    """Streamed and whole: these calls, this content, and no markup."""
    for answer in await run_both_modes(case, installation):
        assert parsed(answer) == right
        assert answer.joined("content") == content
        assert_no_markup(answer)


PARIS = ("get_weather", {"city": "Paris"})
RIGHT: dict[str, list[tuple[str, Any]]] = {
    "TST-01": [PARIS, ("get_weather", {"city": "Rome"})],
    "TST-03": [PARIS],
    "TST-05": [("get_weather", {"city": "east } { w"})],
    "TST-07": [("find", {"text": 'list[0] a]b " q})] tail'})],
    "TST-09": [PARIS, ("get_time", {})],
    "TST-10": [PARIS],
    "TFM-01": [PARIS],
    "TFM-07": [("place", {"city": "Lyon", "region": "ARA"})],
    "TFM-10": [("write", {"content": "<a></parameter></a>\nend", "path": "x.xml"})],
    "TFM-12": [("get_time", {})],
    "TFM-13": [("find", {"name": "Jones", "orgs": ["Red", "Blue"]})],
    "TFM-14": [("Lookup", {"query": "10", "max_results": 10, "safe": True})],
    "TFM-15": [("get_weather", {"city": "a]b"}), ("get_time", {})],
}


@case("TST-01", "TST-03", "TST-05", "TST-07", "TST-09", "TST-10")
async def test_calls_are_streamed_as_they_are_told_whole(case: Any, installation: Installation) -> None:
    """The calls that the model meant, streamed and whole, and nothing else."""
    await both(case, installation, RIGHT[case["id"]])


@case("TFM-01", "TFM-07", "TFM-10", "TFM-12", "TFM-13", "TFM-14", "TFM-15")
async def test_formats(case: Any, installation: Installation) -> None:
    """Each family's format, with the slips that models make."""
    await both(case, installation, RIGHT[case["id"]])


@case("TST-12")
async def test_a_call_that_is_cut_off(case: Any, installation: Installation) -> None:
    """The reason is length, both modes deliver the same, and the call says that it is not whole."""
    streamed, whole = await run_both_modes(case, installation)
    for answer in (streamed, whole):
        assert answer.finish_reasons() == ["length"]
        assert_no_markup(answer)
    assert (
        [one[:2] for one in calls(streamed)] == [one[:2] for one in calls(whole)] == [("get_weather", '{"city": "Bos')]
    )
    assert "cut off" in whole.json["choices"][0]["message"]["tool_calls"][0]["inferway"]["arguments_error"]
    assert b"arguments_error" in streamed.body


@case("TST-13")
async def test_a_call_that_was_required_and_not_made(case: Any, installation: Installation) -> None:
    """What a model writes instead is content, and the reason its own."""
    for answer in await run_both_modes(case, installation):
        assert calls(answer) == []
        assert answer.joined("content") == "Hello, fine."
        assert answer.finish_reasons() == ["stop"]


@case("TST-14")
async def test_braces_in_prose(case: Any, installation: Installation) -> None:
    """Text with braces is text."""
    await both(case, installation, [], 'Use {x} as a placeholder and {"a": 1} is JSON.')


@case("TST-15")
async def test_broken_arguments_in_the_history(case: Any, installation: Installation) -> None:
    """The conversation goes on, the same each time."""
    answers = [await run(case, installation) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert [answer.joined("content") for answer in answers] == ["ok", "ok"]


@case("TST-16")
async def test_nonsense_ends_in_linear_time(case: Any, installation: Installation) -> None:
    """Malformed calls end, and nobody else waits for them."""

    async def neighbour() -> float:
        started = time.monotonic()
        body = {"model": "m-text", "messages": HI}
        assert (await installation.send(CHAT, body=body)).status == 200
        return time.monotonic() - started

    streamed, waits = await asyncio.gather(run(case, installation), asyncio.gather(*(neighbour() for _ in range(20))))
    assert streamed.status == 200
    assert_no_markup(streamed)
    assert max(waits) < 5


@case("TCH-01")
async def test_finish_reasons_of_forced_calls(case: Any, installation: Installation) -> None:
    """One and the same in both modes, whatever forced the call."""
    for place, entry in enumerate(case["input"]["matrix"]):
        choice = entry["body"].get("tool_choice", "auto")
        variant = choice if isinstance(choice, str) else "named"
        for stream in (True, False):
            body = {**entry["body"], "stream": stream}
            answer = await installation.send(entry["http"], body=body, request_id=f"TCH-01.{variant}.{place}{stream}")
            (call,) = calls(answer)
            assert (call.name, json.loads(call.arguments)) == PARIS
            assert answer.finish_reasons() == ["tool_calls"]


@case("TCH-03")
async def test_one_call_at_most(case: Any, installation: Installation) -> None:
    """Further calls are left out; what the engine made counts."""
    await both(case, installation, [PARIS])


@case("TFM-03")
async def test_ids_of_the_mistral_family(case: Any, installation: Installation) -> None:
    """Foreign ids become nine letters and digits, the same for call and result; new ones have that form."""
    streamed, whole = await run_both_modes(case, installation)
    for answer in (streamed, whole):
        (call,) = calls(answer)
        assert re.fullmatch("[A-Za-z0-9]{9}", call.id)
    prompt = installation.engine_saw("TFM-03.1")[0]["prompt"]
    (made,) = set(re.findall(r'"(?:id|call_id)": "([A-Za-z0-9]+)"', prompt)) or {""}
    assert "call_abc123XYZ" not in prompt
    assert made == "" or len(made) == 9


@case("TFM-04")
async def test_a_call_on_the_commentary_channel(case: Any, installation: Installation) -> None:
    """Thought, call and nothing else; no channel is shown."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("reasoning_content") == "need tool"
        assert parsed(answer) == [PARIS]
        assert answer.joined("content") == ""
        assert_no_markup(answer)


@case("TFM-11")
async def test_one_broken_call_costs_no_other(case: Any, installation: Installation) -> None:
    """What was whole is delivered, and the reason is length."""
    for answer in await run_both_modes(case, installation):
        first = calls(answer)[0]
        assert (first.name, json.loads(first.arguments)) == ("get_time", {})
        assert answer.finish_reasons() == ["length"]
        assert_no_markup(answer)


@case("RSN-07")
async def test_a_call_ends_a_thought(case: Any, installation: Installation) -> None:
    """Where calls begin with a token of their own, the thought before is over."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("reasoning_content") == "need weather"
        assert parsed(answer) == [PARIS]


@case("RSN-10")
async def test_channels_without_tools(case: Any, installation: Installation) -> None:
    """Thought and answer are told apart, and the thought's tokens are counted."""
    for answer in await run_both_modes(case, installation):
        assert answer.joined("content") == "six"
        assert answer.joined("reasoning_content") == "3+3 is six"
    assert answer.usage["completion_tokens"] == 16
    assert answer.usage["completion_tokens_details"]["reasoning_tokens"] > 0
