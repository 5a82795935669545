"""gateway.core.fields: one row for each field, and requests that keep to it."""

from __future__ import annotations

import json
from math import isfinite
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from gateway.core.chat_request import ChatBody, Message, parse_chat
from gateway.core.completion_request import CompletionBody, parse_completion
from gateway.core.embedding_request import EmbeddingBody, parse_embedding
from gateway.core.fields import (
    CHAT,
    COMPLETION,
    DETOKENIZE,
    EMBEDDING,
    MESSAGE,
    STREAM_OPTIONS,
    TOKENIZE,
    Effect,
    Field,
    FieldTable,
)
from gateway.core.generation_fields import StreamOptions
from gateway.openapi import document
from gateway.routes.generate import check_capabilities
from gateway.routes.tokenize import DetokenizeBody, TokenizeBody
from inferway.errors import ApiError, Reason

TABLES: list[tuple[type[msgspec.Struct], FieldTable]] = [
    (ChatBody, CHAT),
    (Message, MESSAGE),
    (StreamOptions, STREAM_OPTIONS),
    (CompletionBody, COMPLETION),
    (EmbeddingBody, EMBEDDING),
    (TokenizeBody, TOKENIZE),
    (DetokenizeBody, DETOKENIZE),
]
PARSERS = {CHAT: parse_chat, COMPLETION: parse_completion, EMBEDDING: parse_embedding}
GOOD: dict[FieldTable, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETION: {"model": "m", "prompt": "hi"},
    EMBEDDING: {"model": "m", "input": "hi"},
}
# What a field needs beside it to be looked at.
BESIDE = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "min_tokens": {"max_tokens": 2**32 - 1},
}


def parse(table: FieldTable, **fields: Any) -> Any:
    body = {**GOOD[table], **fields}
    for name in fields:
        body |= BESIDE.get(name, {})
    return PARSERS[table](json.dumps(body).encode())


def refusal(table: FieldTable, **fields: Any) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse(table, **fields)
    return caught.value


@pytest.mark.parametrize(("struct", "table"), TABLES, ids=[struct.__name__ for struct, _ in TABLES])
def test_every_field_has_a_row(struct: type[msgspec.Struct], table: FieldTable) -> None:
    """What a body is read into is in the table, and what the table says is honoured is read."""
    honoured = {name for name, field in table.fields.items() if field.effect is Effect.HONOURED}
    known = {*table.fields} - {name for name, field in table.fields.items() if field.effect is Effect.REFUSED}
    assert honoured <= {*struct.__struct_fields__} <= known


def rows(*effects: Effect) -> list[Any]:
    return [
        pytest.param(table, field, id=f"{'chat' if table is CHAT else 'other'}-{field.name}")
        for table in PARSERS
        for field in table.fields.values()
        if field.effect in effects
    ]


@pytest.mark.parametrize(("table", "field"), rows(Effect.REFUSED))
def test_refused_fields_are_named(table: FieldTable, field: Field) -> None:
    """A value that would change the answer is a 400 with the field; null, [] and the default are accepted."""
    error = refusal(table, **{field.name: {"x": 1}})
    assert (error.reason, error.param) == (Reason.UNSUPPORTED_VALUE, field.name)
    assert parse(table, **{field.name: None}) == parse(table)
    assert parse(table, **{field.name: []}).ignored == [field.name]
    if field.default is not None:
        assert parse(table, **{field.name: field.default}).ignored == [field.name]


@pytest.mark.parametrize(("table", "field"), rows(Effect.IGNORED))
def test_fields_without_effect_are_named(table: FieldTable, field: Field) -> None:
    """They are accepted, and named."""
    value: Any = {"metadata": {"a": "b"}, "parallel_tool_calls": True}.get(field.name, "x")
    assert parse(table, **{field.name: value}).ignored == [field.name]


RANGED = [
    row for row in rows(Effect.HONOURED, Effect.IGNORED) if row.values[1].within and row.values[1].name != "logit_bias"
]


@pytest.mark.parametrize(("table", "field"), RANGED)
def test_ranges_are_those_that_are_checked(table: FieldTable, field: Field) -> None:
    """The least and the greatest value pass, what lies beyond is a 400 with the field."""
    within = field.within
    assert within is not None
    is_float = any("number" in str(one.get("type", "")) for one in (_schema(table, field),))
    # -1 is another way to say 0 in top_k.
    step = 0.5 if is_float else 2
    beside = {"echo": True} if field.name == "max_tokens" and within.least == 0 else {}
    least = within.least + step if within.above else within.least
    for value in (least, within.most):
        parse(table, **{field.name: value if is_float else int(value), **beside})
    for value in (within.least if within.above else within.least - step, within.most + step):
        error = refusal(table, **{field.name: value if is_float else int(value), **beside})
        assert error.param == field.name


def _schema(table: FieldTable, field: Field) -> Any:
    name = {CHAT: "ChatCompletionRequest", COMPLETION: "CompletionRequest", EMBEDDING: "EmbeddingRequest"}[table]
    return document()["components"]["schemas"][name]["properties"][field.name]


VALUED = [row for row in rows(Effect.HONOURED) if row.values[1].values]


@pytest.mark.parametrize(("table", "field"), VALUED)
def test_values_are_those_that_are_taken(table: FieldTable, field: Field) -> None:
    """Each value of an enumeration passes, another one is a 400 with the field."""
    for value in field.values:
        assert parse(table, **{field.name: value}).ignored == []
    assert refusal(table, **{field.name: "other"}).param == field.name


SAMPLES: dict[str, Any] = {
    "stop": "x",
    "logit_bias": {"1": 1},
    "logprobs": True,
    "ignore_eos": True,
    "n": 2,
    "guided_json": {},
    "guided_regex": "x",
    "guided_choice": ["x"],
    "guided_grammar": "x",
    "response_format": {"type": "json_object"},
}
NEEDY = [row for row in rows(Effect.HONOURED) if row.values[1].needs and row.values[0] is not EMBEDDING]


@pytest.mark.parametrize(("table", "field"), NEEDY)
def test_what_a_model_lacks_is_refused(table: FieldTable, field: Field) -> None:
    """Without its capability a field is a 400; with just that one it is honoured."""
    value = SAMPLES.get(field.name, 1)
    asked = parse(table, **{field.name: 1 if table is COMPLETION and field.name == "logprobs" else value})
    every = {one.needs for one in table.fields.values()} - {""}
    check_capabilities(served(every), asked)
    with pytest.raises(ApiError) as caught:
        check_capabilities(served(every - {field.needs}), asked)
    assert caught.value.reason is Reason.UNSUPPORTED_VALUE
    assert caught.value.param in (field.name, field.needs)


def served(capabilities: set[str]) -> Any:
    return SimpleNamespace(name="m", description=SimpleNamespace(capabilities=capabilities))


def test_bounds_of_lists_and_texts() -> None:
    """stop and metadata hold to their bounds, by their rows."""
    stop, metadata = CHAT.fields["stop"], CHAT.fields["metadata"]
    assert stop.items is not None
    assert stop.characters is not None
    assert metadata.items is not None
    assert all(map(isfinite, (stop.items.most, stop.characters.most, metadata.items.most)))
    longest = "x" * int(stop.characters.most)
    parse(CHAT, stop=[longest] * int(stop.items.most))
    assert refusal(CHAT, stop=[longest] * (int(stop.items.most) + 1)).param == "stop"
    assert refusal(CHAT, stop=longest + "x").param == "stop[0]"
    pairs = {str(number): "x" for number in range(int(metadata.items.most))}
    parse(CHAT, metadata=pairs)
    assert refusal(CHAT, metadata={**pairs, "more": "x"}).param == "metadata"


def test_members_are_screened_like_fields() -> None:
    """Inside of messages, parts and options, too; members of lists are named once, refusals by their place."""
    part = {"type": "text", "text": "hi", "prompt_cache_breakpoint": {"mode": "explicit"}}
    message = {"role": "user", "content": [part, part], "mood": "good"}
    options = {"include_usage": True, "include_obfuscation": False}
    chat = parse(CHAT, messages=[message, message], stream_options=options)
    assert chat.ignored == [
        "messages[].mood",
        "messages[].content[].prompt_cache_breakpoint",
        "stream_options.include_obfuscation",
    ]
    spoken = {"role": "assistant", "audio": {"id": "a"}}
    assert refusal(CHAT, messages=[message, spoken]).param == "messages[1].audio"


def test_only_so_many_are_named() -> None:
    """What stands in a header is short and can stand there."""
    chat = parse(CHAT, **{"bad name\r\n": 1, "x" * 65: 1, **{f"x{number}": 1 for number in range(40)}})
    assert chat.ignored == [f"x{number}" for number in range(16)]


@pytest.mark.parametrize("name", ["messages", "tools", "add_generation_prompt", "bos_token", "eos_token"])
def test_variables_of_every_template_are_ours(name: str) -> None:
    """A caller's own would be without effect, or replace what was checked: refused by name."""
    error = refusal(CHAT, chat_template_kwargs={name: False})
    assert error.param == "chat_template_kwargs"
    assert f"'{name}'" in error.message


@pytest.mark.parametrize("table", [COMPLETION, EMBEDDING], ids=["completion", "embedding"])
def test_messages_quote_no_endless_numbers(table: FieldTable) -> None:
    """A token id of four thousand digits is not repeated in the error."""
    name = "prompt" if table is COMPLETION else "input"
    error = refusal(table, **{name: [[10**4000]]})
    assert error.param == name
    assert len(error.message) < 200


@pytest.mark.parametrize("messages", ["x", 1, {}, [1, None, "x"], {"content": 1}, [{"content": [1, None]}]])
def test_screening_takes_any_shape(messages: Any) -> None:
    """It comes before types are checked, and leaves them alone."""
    CHAT.screen({"messages": messages, "stream_options": messages})
