"""The parser that docs/adding-a-tool-parser.md shows as an example is one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gateway.core.tools.base import Parser
from tests.support.tool_parsers import Call, Parsed, assert_linear, assert_prefixes_are_parsed, parsed

PAGE = Path(__file__).parents[3] / "docs" / "adding-a-tool-parser.md"


def make() -> Parser:
    (source,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": "gateway.core.tools.example", "__package__": "gateway.core.tools"}
    exec(compile(source, str(PAGE), "exec"), names)
    parser: Parser = names["Example"]({})
    return parser


TRANSCRIPTS = {
    "no call": ("It is sunny.", Parsed("It is sunny.", [])),
    "one call": (
        '[call]get_weather {"city": "Paris [/call]"}[/call]',
        Parsed("", [Call("get_weather", '{"city": "Paris [/call]"}')]),
    ),
    "no JSON": ("a[call]x[/call]b[call]f{}[/call]", Parsed("ab", [Call("f", "{}")], dropped="x")),
    "cut": ('[call]f {"city": "Par', Parsed("", [Call("f", '{"city": "Par', is_whole=False)])),
}


@pytest.mark.parametrize(("text", "right"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)
def test_example_reads_calls(text: str, right: Parsed) -> None:
    assert parsed(make, text) == right
    assert_prefixes_are_parsed(make, text, ["[call]", "[/call]"])


@pytest.mark.parametrize("unit", ["[call]", "[call]f{", "["])
def test_example_is_linear(unit: str) -> None:
    assert_linear(make, unit)
