"""What a worker's description of a model means."""

from __future__ import annotations

import pytest

from gateway.worker_messages import ModelDescription


@pytest.mark.parametrize(
    ("tools", "reasoning", "call_format"),
    [("hermes", "think", "hermes"), ("", "harmony", "harmony"), ("harmony", "", "harmony"), ("", "think", "")],
)
def test_the_format_of_calls(tools: str, reasoning: str, call_format: str) -> None:
    """Harmony is one format of thoughts and calls: naming it once is enough."""
    description = ModelDescription(
        name="m",
        aliases=(),
        context_length=1,
        tokenizer_digest="",
        chat_template="",
        bos_token="",
        eos_token="",
        block_size=1,
        vocab_size=1,
        created=0,
        tool_parser=tools,
        reasoning_parser=reasoning,
        structural_marks=(),
        capabilities=frozenset(),
    )
    assert description.call_format == call_format
