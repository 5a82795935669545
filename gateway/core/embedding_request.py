"""A request for embeddings as OpenAI clients send it: parsed, checked and turned into our own terms."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from inferway.errors import invalid
from inferway.sampling import Range, check_range

from .body import convert, decode_object, sent
from .fields import EMBEDDING, ENCODINGS, MAX_DIMENSIONS, MAX_INPUTS
from .generation_fields import texts_or_ids

Format = Literal["float", "base64"]


class EmbeddingBody(msgspec.Struct, kw_only=True):
    model: str
    input: str | list[Any]
    dimensions: int | None = None
    encoding_format: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    model: str
    # Text, or token ids that are used as they are.
    inputs: Sequence[str | list[int]]
    encoding: Format
    dimensions: int | None
    # Accepted without effect, for the x-inferway-ignored header.
    ignored: Sequence[str]
    # Names of all fields that were sent.
    fields: Sequence[str]
    # Equal for requests that belong together; "": the caller did not say.
    sticky_key: str = ""


def parse_embedding(body: bytes) -> EmbeddingRequest:
    """Check the body of POST /v1/embeddings. Raises ApiError (400)."""
    raw = decode_object(body)
    ignored = EMBEDDING.screen(raw)
    asked = convert(raw, EmbeddingBody, required=("model", "input"))
    encoding = asked.encoding_format or "float"
    if encoding not in ENCODINGS:
        raise invalid("encoding_format", f"'encoding_format' must be 'float' or 'base64', got '{encoding[:64]}'.")
    check_range("dimensions", asked.dimensions, Range(1, MAX_DIMENSIONS))
    return EmbeddingRequest(
        asked.model,
        _inputs(asked.input),
        "base64" if encoding == "base64" else "float",
        asked.dimensions,
        ignored,
        sent(raw),
        asked.user or "",
    )


def _inputs(given: str | list[Any]) -> list[str | list[int]]:
    inputs = texts_or_ids(given, "input", most=MAX_INPUTS)
    if "" in inputs:
        path = "input" if isinstance(given, str) else f"input[{inputs.index('')}]"
        raise invalid("input", f"'{path}' must not be an empty string.")
    return inputs


def embedding_answer(model: str, vectors: Sequence[Sequence[float]], encoding: Format, prompt_tokens: int) -> bytes:
    """The body of the answer, inputs in their order."""
    data = [
        {"object": "embedding", "index": index, "embedding": _encoded(vector) if encoding == "base64" else list(vector)}
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    return msgspec.json.encode({"object": "list", "data": data, "model": model, "usage": usage})


def _encoded(vector: Sequence[float]) -> str:
    """32-bit floats, little-endian, as OpenAI's clients read them."""
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
