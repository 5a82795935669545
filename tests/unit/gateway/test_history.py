"""Earlier calls as templates expect them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.core.chat_template import ChatTemplate
from gateway.core.history import described_in_words, with_calls_as_expected


def conversation(arguments: Any, call_id: str = "call_abc123XYZ") -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "f", "arguments": arguments}}
    return [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "12 C", "tool_call_id": call_id},
    ]


def first_arguments(messages: list[dict[str, Any]]) -> Any:
    return messages[1]["tool_calls"][0]["function"]["arguments"]


@pytest.mark.parametrize(
    ("given", "as_object", "as_text"),
    [
        ('{"a": [1, 2.50]}', {"a": [1, 2.5]}, '{"a": [1, 2.50]}'),
        ({"a": 1}, {"a": 1}, '{"a":1}'),
        ("", {}, ""),
        ('{"city": "Par', {"invalid_arguments": '{"city": "Par'}, '{"city": "Par'),
        ("[1]", {"invalid_arguments": "[1]"}, "[1]"),
        ("[" * 5000, {"invalid_arguments": "[" * 5000}, "[" * 5000),
    ],
)
def test_arguments(given: Any, as_object: Any, as_text: Any) -> None:
    for wants_text, right in ((False, as_object), (True, as_text)):
        messages = conversation(given)
        changed = with_calls_as_expected(messages, arguments_as_text=wants_text, id_style="openai")
        assert first_arguments(changed) == right
        assert first_arguments(messages) == given
        assert changed[1]["tool_calls"][0]["id"] == changed[2]["tool_call_id"] == "call_abc123XYZ"


def test_ids_of_families() -> None:
    """Mapped alike for a call and its result, the same each time; those that fit stay."""
    for style, form in (("mistral", r"[A-Za-z0-9]{9}"), ("kimi", r"functions\.f:\d")):
        first, again = (
            with_calls_as_expected(conversation("{}"), arguments_as_text=False, id_style=style)  # type: ignore[arg-type]
            for _ in range(2)
        )
        made = first[1]["tool_calls"][0]["id"]
        assert re.fullmatch(form, made)
        assert first[2]["tool_call_id"] == made
        assert first == again
    for style, kept in (("mistral", "abcDEF123"), ("kimi", "functions.f:7")):
        changed = with_calls_as_expected(conversation("{}", kept), arguments_as_text=False, id_style=style)  # type: ignore[arg-type]
        assert changed[2]["tool_call_id"] == kept


def test_what_a_template_takes_is_found_out() -> None:
    """One that joins arguments to text wants text; one that takes them apart, or writes JSON, wants objects."""
    loop = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    end = "{% endfor %}{% endfor %}"
    joins = ChatTemplate(loop + "{{ '(' + c.function.arguments + ')' }}" + end)
    items = ChatTemplate(loop + "{% for k, v in c.function.arguments.items() %}{{ k }}{% endfor %}" + end)
    writes = ChatTemplate(loop + "{{ c.function.arguments | tojson }}" + end)
    assert [one.takes_arguments_as_text for one in (joins, items, writes)] == [True, False, False]


def test_tools_in_words_for_a_template_without_them() -> None:
    tools = [{"type": "function", "function": {"name": "f", "description": "Does f."}}]
    (first, second) = described_in_words([{"role": "user", "content": "x"}], tools)
    assert (first["role"], second["content"]) == ("system", "x")
    assert '"name":"f"' in first["content"]
    (joined, _) = described_in_words(
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "x"}], tools
    )
    assert joined["content"].startswith("Be brief.\n\n")
    assert "Does f." in joined["content"]
