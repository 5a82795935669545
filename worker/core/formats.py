"""What gateways must see of a model's text to read its thoughts and tool calls, by the name of the format.

Tokenizers flag some of these marks as special, and special tokens have no text. Those that a tokenizer does not have do
no harm here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

REASONING = ("think", "think_preopened")

_TAGS = ("<tool_call>", "</tool_call>")
_THINK = ("<think>", "</think>")
_DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
_MARKS: Mapping[str, Sequence[str]] = {
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v3_1": _DEEPSEEK,
    "gemma4": ("<|tool_call>", "<tool_call|>", '<|"|>'),
    "glm45": (*_TAGS, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "harmony": (
        "<|start|>",
        "<|end|>",
        "<|message|>",
        "<|channel|>",
        "<|constrain|>",
        "<|call|>",
        "<|return|>",
    ),
    "hermes": _TAGS,
    "kimi_k2": (
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_section_begin|>",
        "<|tool_call_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_argument_begin|>",
        "<|tool_call_end|>",
    ),
    "llama3_json": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "qwen3_coder": _TAGS,
    "think": _THINK,
    "think_preopened": _THINK,
}


TOOL_CALLS = tuple(name for name in _MARKS if name not in REASONING)


def marks_of(*formats: str) -> tuple[str, ...]:
    """Of some formats, each once; a format that is not known has none."""
    return tuple(dict.fromkeys(mark for name in formats for mark in _MARKS.get(name, ())))
