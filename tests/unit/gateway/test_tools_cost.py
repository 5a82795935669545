"""What the parsers and the splitter of thoughts cost on text that is made to be slow.

No time of a clock: costs are compared with each other, and with plain Python over the same text.
"""

from __future__ import annotations

import pytest

from gateway.core.answer_reader import AnswerReader
from gateway.core.reasoning import CLOSE, OPEN, ThinkSplitter
from gateway.core.tools import PARSERS
from gateway.core.tools.base import Tools
from gateway.core.tools.forced import ForcedCall, ForcedCalls
from tests.support.cost import measured
from tests.support.tool_parsers import MakeAny, assert_linear

TOOLS: Tools = {"f": {"type": "object", "properties": {"a": {}, "l": {"type": "array"}}}}
SIZE = 100_000
# A plain loop does 100 kB in 5 ms where a parser may take 200.
MOST = 40

MACHINES: dict[str, MakeAny] = {
    **{name: lambda parser=parser: parser(TOOLS) for name, parser in PARSERS.items()},  # type: ignore[misc]
    "forced_calls": lambda: ForcedCalls(TOOLS),
    "forced_call": lambda: ForcedCall(TOOLS, "f"),
    "think": lambda: ThinkSplitter(call_mark="[TOOL_CALLS]"),
}
# Beginnings behind which a bracket opens within the arguments of a call.
CALLS = {
    "hermes": '<tool_call>{"name": "f", "arguments": ',
    "gemma4": "<|tool_call>call:f{l:",
    "glm45": "<tool_call>f<arg_key>l</arg_key><arg_value>",
    "harmony": "<|channel|>commentary to=functions.f<|message|>",
    "llama3_json": '{"name": "f", "parameters": ',
    "mistral": "[TOOL_CALLS]f",
    "pythonic": "[f(l=",
    "qwen3_coder": "<tool_call><function=f><parameter=l>",
}


def cost(make: MakeAny, text: str) -> float:
    machine = make()
    with measured() as taken:
        machine.feed(text)
        machine.finish()
    return taken.seconds


def plain_cost(text: str) -> float:
    """Of a stack of brackets, character by character."""
    stack: list[str] = []
    with measured() as taken:
        for character in text:
            if character in "[{(":
                stack.append(character)
            elif stack and character in ")}]":
                stack.pop()
    return taken.seconds


@pytest.mark.parametrize("opening", ["[", "{", "(", "[{"])
@pytest.mark.parametrize("name", MACHINES)
def test_open_brackets_cost_little(name: str, opening: str) -> None:
    """One try of some is enough: other work on the machine makes only some of them slow."""
    for beginning in {"", CALLS.get(name, "")}:
        text = (beginning + opening * SIZE)[:SIZE]
        assert any(cost(MACHINES[name], text) < MOST * plain_cost(text) for _ in range(6)), beginning


@pytest.mark.parametrize(
    "unit",
    [OPEN, CLOSE, OPEN + CLOSE, f"{OPEN}x[TOOL_CALLS]", "[TOOL_CALLS]", OPEN[:-1], CLOSE[:-1], "[TOOL_", "<"],
)
def test_time_of_the_splitter_is_linear(unit: str) -> None:
    assert_linear(lambda: ThinkSplitter(call_mark="[TOOL_CALLS]"), unit)


def test_long_arguments_in_small_pieces() -> None:
    """Four times the text takes less than nine times as long; what copies all of it at each piece takes sixteen."""

    def cost_of(length: int) -> float:
        reader = AnswerReader(parser=PARSERS["hermes"](TOOLS))
        with measured() as taken:
            for piece in ('<tool_call>{"name": "f", "arguments": {"a": "', *"x" * length, '"}}</tool_call>'):
                reader.feed(piece)
            reader.finish()
        assert len(reader.calls[0].arguments) == length + len('{"a": ""}')
        return taken.seconds

    assert any(cost_of(200_000) < 9 * cost_of(50_000) for _ in range(4))
