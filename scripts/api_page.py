"""docs/api.md, from the table of fields, the OpenAPI document and what each engine says of its models."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import inf
from types import SimpleNamespace
from typing import Any, NamedTuple

from gateway.core.answer_shapes import ChatCompletion, ChatCompletionChunk, Completion, EmbeddingList, Model
from gateway.core.fields import (
    CHAT,
    COMPLETION,
    CONTENT_PART,
    DETOKENIZE,
    EMBEDDING,
    MESSAGE,
    STREAM_OPTIONS,
    TOKENIZE,
    Effect,
    Field,
    FieldTable,
)
from gateway.openapi import HEADERS, OPERATIONS, REQUEST_HEADERS, document
from worker.config import ENGINES
from worker.engines.llamacpp import model as llamacpp
from worker.engines.minilm import model as minilm
from worker.engines.scripted import models as scripted
from worker.engines.sglang import model as sglang

Schema = dict[str, Any]


class Abilities(NamedTuple):
    """What an engine's models are capable of: always, and with the right flags and model."""

    always: frozenset[str]
    possible: frozenset[str]


def _sglang(*, generates: bool, everything: bool) -> frozenset[str]:
    """Its capabilities, with every flag that adds one or with none."""
    settings = {
        "enable_deterministic_inference": everything,
        "enable_lora": everything,
        "grammar_backend": "xgrammar" if everything else "none",
    }
    config = SimpleNamespace(is_matryoshka=everything)
    manager = SimpleNamespace(is_generation=generates, model_config=config)
    stand_in: Any = SimpleNamespace(settings=settings, manager=manager)
    return frozenset(sglang.capabilities(stand_in))


def _fixed(*capabilities: str) -> Abilities:
    return Abilities(frozenset(capabilities), frozenset(capabilities))


# By engine, of those of its models that generate text, and of those that make embeddings.
GENERATION: Mapping[str, Abilities] = {
    "llamacpp": _fixed(*llamacpp.CAPABILITIES),
    "sglang": Abilities(_sglang(generates=True, everything=False), _sglang(generates=True, everything=True)),
    "scripted": _fixed(*scripted.CAPABILITIES),
}
EMBEDDINGS: Mapping[str, Abilities] = {
    "minilm": _fixed(*minilm.CAPABILITIES),
    "sglang": Abilities(_sglang(generates=False, everything=False), _sglang(generates=False, everything=True)),
    "scripted": _fixed(*scripted.EMBEDDING_CAPABILITIES),
}
assert {*GENERATION, *EMBEDDINGS} == {*ENGINES}, "an engine is missing here"


def api_page(note: str) -> str:
    schemas: Schema = document()["components"]["schemas"]

    def fields(table: FieldTable, name: str, engines: Mapping[str, Abilities] | None = None) -> str:
        return fields_table(table, schemas[name]["properties"], engines or {})

    def own(table: FieldTable) -> FieldTable:
        return FieldTable(*(field for name, field in table.fields.items() if name not in shared.fields))

    def shape(struct: type) -> str:
        return skeleton(schemas[struct.__name__], schemas)

    paths: dict[str, list[str]] = {}
    for path, one in OPERATIONS.items():
        paths.setdefault(one.summary, []).append(f"`{'GET' if one.request is None else 'POST'} {path}`")
    endpoints = "\n".join(f"| {', '.join(same)} | {summary} |" for summary, same in paths.items())
    shared = FieldTable(*(field for name, field in CHAT.fields.items() if COMPLETION.fields.get(name) is field))
    request_headers = "\n".join(f"| `{header.name}` | {header.meaning} |" for header in REQUEST_HEADERS)
    headers = "\n".join(f"| `{name}` | {header['description']} |" for name, header in HEADERS.items())
    return f"""{note}
# The API

What OpenAI's clients know works here: set their base URL to `http://HOST:8000/v1` and their key to the one that you
were given. This page says what becomes of every field. `GET /openapi.json` has the same for programs,
[errors](errors.md) what goes wrong.

| endpoint | |
| --- | --- |
{endpoints}

## What becomes of a field

Nothing is ignored silently. A field is one of these:

- **honoured**: it stands in the tables below. Where the model's engine lacks what a field needs (the columns named
  after engines) it is a 400 `unsupported_value` with its name in `param`; `GET /v1/models` lists each model's
  `capabilities`. "by flag" is: where the worker was started for it, or its model is made for it.
- **accepted without effect**: clients send it by habit and no answer changes. The answer's header `x-inferway-ignored`
  names it, as it names fields that nobody knows; members of a list are `messages[].name`.
- **refused**: it would change the answer and cannot be honoured. A 400 `unsupported_value` with its name in `param`. A
  value that changes nothing, the default or an empty list, is accepted and named like those without effect.

`null` is the same as absent. A value of a wrong type or out of range is a 400 that names field, limit and observed
value. The ranges are the widest; an installation may set narrower ones for a model, a tenant or a key
([models and tenants](models-and-tenants.md#limits)).

## Fields of chat and completions

{fields(shared, "ChatCompletionRequest", GENERATION)}

The engine `scripted` takes all fields of sampling and plays its script.

### stream_options

{fields(STREAM_OPTIONS, "StreamOptions")}

## POST /v1/chat/completions

Beside the fields above:

{fields(own(CHAT), "ChatCompletionRequest", GENERATION)}

### Messages

{fields(MESSAGE, "Message")}

Parts of `content`:

{fields(CONTENT_PART, "ContentPart")}

## POST /v1/completions

Beside the fields of chat and completions:

{fields(own(COMPLETION), "CompletionRequest", GENERATION)}

## POST /v1/embeddings

{fields(EMBEDDING, "EmbeddingRequest", EMBEDDINGS)}

## POST /v1/tokenize, POST /v1/detokenize

`/tokenize` takes a text or a conversation and gives the ids that a request would be made of, with the model's context
length:

{fields(TOKENIZE, "TokenizeRequest")}

`/detokenize` goes the other way:

{fields(DETOKENIZE, "DetokenizeRequest")}

## Answers

A chat:

{shape(ChatCompletion)}

Streamed, it is server-sent events, each with one of these; the first of a choice has the role, the last an empty
`delta` and the `finish_reason`. After them comes `data: [DONE]`. Lines that begin with a colon are heartbeats, every
15 s of silence. A failure on the way is one event with the error object, then `[DONE]`.

{shape(ChatCompletionChunk)}

A chunk may have any number of tokens: count tokens by `usage` only.

A completion, and each event of a streamed one:

{shape(Completion)}

Embeddings, and an entry of `GET /v1/models`:

{shape(EmbeddingList)}

{shape(Model)}

## Headers

A request may bring `Authorization: Bearer KEY` and

| header | |
| --- | --- |
{request_headers}

Those that choose workers are of chat, completions and embeddings, and [for operators](models-and-tenants.md). Answers
bring, where they have something to say:

| header | |
| --- | --- |
{headers}

503 and 429 mean different things: 503 that the installation is over its capacity, 429 that you are over your quota.

## Beyond OpenAI

- Requests: `top_k`, `min_p`, `repetition_penalty`, `min_tokens`, `ignore_eos`, `priority`, `lora_request`,
  `chat_template_kwargs`, `stream_options.continuous_usage_stats`.
- Answers: `reasoning_content` in messages and deltas of models that think.
- `GET /v1/models`: `parent`, `aliases`, `alias_of`, `max_model_len`, `tokenizer_digest`, `capabilities`.
- `/tokenize`, `/detokenize`, `/openapi.json`.

## What a seed repeats

With the same `seed`, model, `system_fingerprint` and request, sampling draws the same random numbers. The choices of
one request (`n`) have numbers of their own, derived from it. Whether the text is the same as well depends on whether
the engine computes the same probabilities when other requests share its batch:

| engine | |
| --- | --- |
| `llamacpp` | the same text, alone or in a batch, on the same machine with the same version |
| `sglang` | refused without `--enable-deterministic-inference`; with it the same text, on the same GPUs and flags |
| `scripted` | taken; the text is that of the script |

After a new version, on another processor or another GPU, a text may differ from some token on. Two requests at
temperature 0 differ for the same reasons.
"""


def fields_table(table: FieldTable, properties: Schema, engines: Mapping[str, Abilities]) -> str:
    """Those honoured, then the names of the others."""
    fields = list(table.fields.values())
    heads = ["field", "type", "default", *(f"`{engine}`" for engine in engines), "what it does"]
    lines = [_row(heads), _row(["---"] * len(heads))]
    lines += [_row(_cells(one, properties, engines)) for one in fields if one.effect is Effect.HONOURED]
    for effect, words in ((Effect.IGNORED, "Accepted without effect"), (Effect.REFUSED, "Refused")):
        if named := [f"`{one.name}` ({_reason(one)})" for one in fields if one.effect is effect]:
            lines += ["", f"{words}: {', '.join(named)}."]
    return "\n".join(lines)


def _reason(field: Field) -> str:
    words = field.meaning.rstrip(".")
    if field.default is None:
        return words
    return f"{words}; `{json.dumps(field.default)}` is taken"


def _cells(field: Field, properties: Schema, engines: Mapping[str, Abilities]) -> list[str]:
    default = field.default_text if field.default is None else f"`{json.dumps(field.default)}`"
    cells = [f"`{field.name}`", type_words(properties[field.name]), default]
    for ability in engines.values():
        needed = {field.needs} - {""}
        cells.append("yes" if needed <= ability.always else "by flag" if needed <= ability.possible else "refused")
    return [*cells, field.meaning]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def type_words(schema: Schema) -> str:
    """A JSON schema's type and bounds, for people; null is left out."""
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"] if value is not None)
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        words = dict.fromkeys(type_words(one) for one in schema["anyOf"] if one != {"type": "null"})
        return ", or ".join(words)
    kinds = schema.get("type", "any")
    kind = kinds if isinstance(kinds, str) else next(one for one in kinds if one != "null")
    match kind:
        case "array":
            return f"list of {_range(schema, 'minItems', 'maxItems')} {_plural(schema['items'])}".replace("  ", " ")
        case "string" if "minLength" in schema:
            return f"string of {_range(schema, 'minLength', 'maxLength')} characters"
        case "integer" | "number" if bounds := _range(schema, "minimum", "maximum"):
            return f"{kind}, {bounds}"
        case "object" if "additionalProperties" in schema:
            return f"object of {_plural(schema['additionalProperties'])}"
    return kind


def _plural(items: Schema) -> str:
    noun, separator, rest = type_words(items).partition(" of ")
    noun, comma, bounds = noun.partition(", ")
    return f"{noun}s{comma}{bounds}{separator}{rest}"


# Whatever fits into 32 or 64 bits has no bound that a person needs to know.
_WIDE = 2**32 - 1


def _range(schema: Schema, least: str, most: str) -> str:
    low, high = schema.get(least), schema.get(most, inf)
    if "exclusiveMinimum" in schema:
        return f"above {schema['exclusiveMinimum']:g} to {high:g}"
    if low is None or low < -_WIDE:
        return ""
    if high >= _WIDE:
        return f"{low:g} or more"
    return f"{low:g} to {high:g}"


def skeleton(schema: Schema, schemas: Schema) -> str:
    """The members of an object, a line each, as a block of JSON."""
    members = [f"  {json.dumps(name)}: {_sketch(one, schemas)}" for name, one in schema["properties"].items()]
    return "```json\n{\n" + ",\n".join(members) + "\n}\n```"


def _sketch(schema: Schema, schemas: Schema) -> str:
    """A value of the schema in one line."""
    if "$ref" in schema:
        return _sketch(schemas[schema["$ref"].rsplit("/", 1)[1]], schemas)
    if "enum" in schema:
        return json.dumps("|".join(schema["enum"]))
    if "anyOf" in schema:
        return _sketch(schema["anyOf"][0], schemas)
    match schema.get("type"):
        case "object" if "properties" in schema:
            members = (f"{json.dumps(name)}: {_sketch(one, schemas)}" for name, one in schema["properties"].items())
            return "{" + ", ".join(members) + "}"
        case "object":
            return "{...}"
        case "array":
            return f"[{_sketch(schema['items'], schemas)}]"
        case "string":
            return '"..."'
        case "boolean":
            return "true"
        case "null":
            return "null"
    return "0"
