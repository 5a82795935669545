"""Calls as grammars of strict tools allow and forbid them, in every format that has such a grammar."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
ARGUMENTS = '{"city": "Rome", "days": 3}'
# `DAYS` stands for the value of days, `NAME` for the name of the tool.
_DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
_JSON = '{"city": "Rome", "days": DAYS}'
_KIMI = "<|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
CALLS = {
    "deepseek_v3": _DEEPSEEK.format(f"function<｜tool▁sep｜>NAME\n```json\n{_JSON}\n```"),
    "deepseek_v3_1": _DEEPSEEK.format(f"NAME<｜tool▁sep｜>{_JSON}"),
    "glm45": "<tool_call>NAME\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"
    "<arg_key>days</arg_key>\n<arg_value>DAYS</arg_value>\n</tool_call>",
    "hermes": f'<tool_call>\n{{"name": "NAME", "arguments": {_JSON}}}\n</tool_call>',
    "kimi_k2": f"<|tool_calls_section_begin|>{_KIMI.format(_JSON)}<|tool_calls_section_end|>",
    "llama3_json": f'{{"name": "NAME", "parameters": {_JSON}}}',
    "mistral": f"[TOOL_CALLS]NAME[ARGS]{_JSON}",
    "mistral, a list": f'[TOOL_CALLS][{{"name": "NAME", "arguments": {_JSON}}}]',
    "qwen3_coder": "<tool_call>\n<function=NAME>\n<parameter=city>\nRome\n</parameter>\n"
    "<parameter=days>\nDAYS\n</parameter>\n</function>\n</tool_call>",
}
# What engines report that take any of these.
CAPABILITIES = ("constraint.structural_tag", "structural_tag.qwen_xml", "structural_tag.glm_xml")


REQUEST: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "How is the weather in Rome?"}],
    "tools": [
        {"type": "function", "function": {"name": "weather", "strict": True, "parameters": WEATHER}},
        {"type": "function", "function": {"name": "any", "parameters": WEATHER}},
    ],
}


class Sample(NamedTuple):
    """An answer, and whether the grammar lets it pass."""

    text: str
    is_allowed: bool


def format_of(case: str) -> str:
    return case.partition(",")[0]


def document(case: str) -> str:
    """What gateways ask engines for, of the tools of REQUEST: `weather` is strict, `any` is not."""
    documents: dict[str, Any] = json.loads(Path(__file__).with_name("strict_tools.json").read_text("utf-8"))
    return json.dumps(documents[format_of(case)])


def samples(case: str) -> list[Sample]:
    right = CALLS[case].replace("DAYS", "3")
    wrong = CALLS[case].replace("DAYS", '"three"')
    words = "I look it up: " if case != "llama3_json" else 'Like {"name": "me"}: '
    return [
        Sample("No call at all.", True),
        Sample(right.replace("NAME", "weather"), True),
        Sample(words + right.replace("NAME", "weather"), True),
        Sample(wrong.replace("NAME", "weather"), False),
        # What is wrong for the one tool is right for the other.
        Sample(wrong.replace("NAME", "any"), True),
        # A bare object with another name is no call but text.
        Sample(right.replace("NAME", "other"), case == "llama3_json"),
    ]
