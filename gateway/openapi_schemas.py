"""The schemas of /openapi.json: request bodies by their structs and the table of fields, answers by their shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import isfinite
from typing import Any

import msgspec

from inferway.sampling import Range

from .core.chat_request import ChatBody, Message
from .core.completion_request import CompletionBody
from .core.embedding_request import EmbeddingBody
from .core.fields import (
    CHAT,
    COMPLETION,
    CONTENT_PART,
    DETOKENIZE,
    EMBEDDING,
    MAX_INPUTS,
    MAX_PROMPTS,
    MESSAGE,
    STREAM_OPTIONS,
    TOKENIZE,
    Effect,
    Field,
    FieldTable,
)
from .core.generation_fields import StreamOptions
from .routes.tokenize import DetokenizeBody, TokenizeBody

Schema = dict[str, Any]


_TABLES: Mapping[type[msgspec.Struct], FieldTable] = {
    ChatBody: CHAT,
    CompletionBody: COMPLETION,
    EmbeddingBody: EMBEDDING,
    TokenizeBody: TOKENIZE,
    DetokenizeBody: DETOKENIZE,
    Message: MESSAGE,
    StreamOptions: STREAM_OPTIONS,
}

NAMES = {
    ChatBody: "ChatCompletionRequest",
    CompletionBody: "CompletionRequest",
    EmbeddingBody: "EmbeddingRequest",
    TokenizeBody: "TokenizeRequest",
    DetokenizeBody: "DetokenizeRequest",
}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


STRING: Schema = {"type": "string"}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_TOOLS: Schema = {"type": ["array", "null"], "items": ref("Tool")}


def _texts_or_ids(most: int) -> Schema:
    """One or several of either; how long a list of ids may be is a matter of the model."""
    several: Schema = {"type": "array", "minItems": 1, "maxItems": most}
    return {"anyOf": [STRING, {**several, "items": STRING}, _IDS, {**several, "items": _IDS}]}


_PARTS: Schema = {"anyOf": [STRING, {"type": "array", "items": ref("ContentPart")}, {"type": "null"}]}
# What the structs leave to the code that reads them, in more words.
_MORE_EXACTLY: Mapping[tuple[FieldTable, str], Schema] = {
    (MESSAGE, "content"): _PARTS,
    (MESSAGE, "tool_calls"): {"type": ["array", "null"], "items": ref("ToolCall")},
    (CHAT, "tools"): _TOOLS,
    (COMPLETION, "prompt"): _texts_or_ids(MAX_PROMPTS),
    (EMBEDDING, "input"): _texts_or_ids(MAX_INPUTS),
    (TOKENIZE, "messages"): {"type": ["array", "null"], "items": ref("Message"), "minItems": 1},
    (TOKENIZE, "tools"): _TOOLS,
    (DETOKENIZE, "tokens"): _IDS,
    (CONTENT_PART, "text"): STRING,
    (CONTENT_PART, "refusal"): STRING,
}
_FUNCTION: Schema = {
    "type": "object",
    "properties": {
        "name": STRING,
        "description": STRING,
        "parameters": {"type": "object", "description": "A JSON schema of the arguments."},
    },
    "required": ["name"],
}
_TOOL: Schema = {
    "type": "object",
    "description": "A function that the model may call.",
    "properties": {"type": {"const": "function", "type": "string"}, "function": _FUNCTION},
    "required": ["type", "function"],
}
_TOOL_CALL: Schema = {
    "type": "object",
    "properties": {
        "id": STRING,
        "type": {"const": "function", "type": "string"},
        "function": {
            "type": "object",
            "properties": {"name": STRING, "arguments": {**STRING, "description": "A JSON object, written out."}},
            "required": ["name"],
        },
    },
    "required": ["function"],
}


def schemas_of(answers: Iterable[type[msgspec.Struct]]) -> Schema:
    """Those of all request bodies and of these answers, by name."""
    _, found = msgspec.json.schema_components([*answers, *_TABLES], ref_template="#/components/schemas/{name}")
    schemas: Schema = {name: found[name] for name in sorted(found)}
    for struct, table in _TABLES.items():
        name = NAMES.get(struct, struct.__name__)
        schemas[name] = {**_body(schemas.pop(struct.__name__), table), "title": name}
    parts: Schema = {"type": "object", "properties": {"type": STRING}, "required": ["type"]}
    return {**schemas, "ContentPart": _body(parts, CONTENT_PART), "Tool": _TOOL, "ToolCall": _TOOL_CALL}


def _body(found: Schema, table: FieldTable) -> Schema:
    """A struct's own schema with what the table says of its fields; those that are refused are left out."""
    properties = {
        field.name: _property(found["properties"].get(field.name, {}), table, field)
        for field in table.fields.values()
        if field.effect is not Effect.REFUSED
    }
    return {**found, "properties": properties}


def _property(found: Schema, table: FieldTable, field: Field) -> Schema:
    schema = _nullable(found)
    schema = dict(_MORE_EXACTLY.get((table, field.name)) or {**schema, **_bounds(schema, field)})
    words = [field.meaning]
    if field.needs:
        words.append(f"Refused by models without the capability `{field.needs}`.")
    if field.effect is Effect.IGNORED:
        words.append("Accepted without effect.")
    if field.default is not None:
        schema["default"] = field.default
    elif field.default_text:
        words.append(f"Default: {field.default_text}.")
    if field.example is not None:
        schema["examples"] = [field.example]
    return {**schema, "description": " ".join(words)}


def _nullable(found: Schema) -> Schema:
    """`{"type": [..., "null"]}` where that says it, which reads better than two alternatives."""
    schema = {key: value for key, value in found.items() if key != "default"}
    alternatives: list[Schema] = schema.get("anyOf", [])
    if len(alternatives) == 2 and "type" in alternatives[0] and alternatives[1] == {"type": "null"}:
        return {**alternatives[0], "type": [alternatives[0]["type"], "null"]}
    return schema


def _bounds(schema: Schema, field: Field) -> Schema:
    """Of a schema's numbers, lists, objects and texts; alternatives each have their own."""
    if "anyOf" in schema:
        return {"anyOf": [{**one, **_bounds(one, field)} for one in schema["anyOf"]]}
    kinds = schema.get("type", ())
    kinds = {kinds} if isinstance(kinds, str) else set(kinds)
    bounds: Schema = {}
    if field.within is not None and kinds & {"number", "integer"}:
        bounds |= _limits(field.within, "exclusiveMinimum" if field.within.above else "minimum", "maximum")
    if field.within is not None and "additionalProperties" in schema:
        bounds["additionalProperties"] = {
            **schema["additionalProperties"],
            **_limits(field.within, "minimum", "maximum"),
        }
    if field.items is not None and "array" in kinds:
        bounds |= _limits(field.items, "minItems", "maxItems")
    if field.items is not None and "object" in kinds:
        bounds |= _limits(field.items, "minProperties", "maxProperties")
    if field.characters is not None and "string" in kinds:
        bounds |= _limits(field.characters, "minLength", "maxLength")
    if field.characters is not None and "array" in kinds and "items" in schema:
        bounds["items"] = {**schema["items"], **_limits(field.characters, "minLength", "maxLength")}
    if field.values and "string" in kinds:
        bounds["enum"] = [*field.values, *([None] if "null" in kinds else [])]
    return bounds


def _limits(within: Range, least: str, most: str) -> Schema:
    return {least: within.least, **({most: within.most} if isfinite(within.most) else {})}
