"""A completion request as OpenAI clients send it: parsed, checked and turned into our own terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferway.errors import invalid
from inferway.sampling import Range, check_range

from .body import convert, decode_object, header_names, unsupported, without_effect
from .generation_fields import (
    HARMLESS,
    REFUSED,
    GenerationBody,
    GenerationRequest,
    common_fields,
    prepared,
    texts_or_ids,
)

# OpenAI's own, unlike that of chat.
DEFAULT_MAX_TOKENS = 16


class _CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[Any]
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


_REFUSED = (*REFUSED, "suffix")
_KNOWN = frozenset(_CompletionBody.__struct_fields__) | HARMLESS | frozenset(_REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """Choice `index` answers prompt `index // n`."""

    # Text, or token ids that are used as they are.
    prompts: Sequence[str | list[int]]
    echo: bool = False


@dataclass(frozen=True, slots=True)
class CompletionLimits:
    """Bounds that configuration sets."""

    max_prompts: int = 128
    max_choices: int = 16


def parse_completion(body: bytes, limits: CompletionLimits) -> CompletionRequest:
    """Check the body of POST /v1/completions. Raises ApiError (400)."""
    raw = prepared(decode_object(body), _REFUSED)
    completion = convert(raw, _CompletionBody, required=("model", "prompt"))
    if not completion.prompt and isinstance(completion.prompt, list):
        raise invalid("prompt", "'prompt' must not be an empty list.")
    prompts = texts_or_ids(completion.prompt, "prompt", most=limits.max_prompts)
    _check_best_of(completion)
    check_range("logprobs", completion.logprobs, Range(0, 5))
    max_tokens = DEFAULT_MAX_TOKENS if completion.max_tokens is None else completion.max_tokens
    return CompletionRequest(
        **common_fields(completion, max_choices=limits.max_choices, max_tokens=max_tokens),
        prompts=prompts,
        echo=bool(completion.echo),
        logprobs=completion.logprobs,
        prompt_logprobs=bool(completion.echo) and completion.logprobs is not None,
        ignored=header_names(without_effect(raw, HARMLESS, _KNOWN)),
    )


def _check_best_of(completion: _CompletionBody) -> None:
    best_of, n = completion.best_of, completion.n or 1
    if best_of is None or best_of == n:
        return
    if best_of < n:
        raise invalid("best_of", f"'best_of' must be at least 'n' ({n}), got {best_of}.")
    raise unsupported("best_of", f"'best_of' above 'n' ({n}) is not supported, got {best_of}.")
