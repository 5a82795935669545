"""A completion request as OpenAI clients send it: parsed, checked and turned into our own terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from inferway.errors import invalid
from inferway.sampling import COMPLETION_LOGPROBS, PROMPT_ONLY, Range, check_range

from .body import convert, decode_object, sent
from .fields import COMPLETION, COMPLETION_MAX_TOKENS, MAX_CHOICES, MAX_PROMPTS
from .generation_fields import (
    GenerationBody,
    GenerationRequest,
    common_fields,
    prepared,
    texts_or_ids,
)
from .output_format import read_format


class CompletionBody(GenerationBody, kw_only=True):
    prompt: str | list[Any]
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompletionRequest(GenerationRequest):
    """Candidate `index` answers prompt `index // n`."""

    # Text, or token ids that are used as they are.
    prompts: Sequence[str | list[int]]
    echo: bool = False
    # How many of each prompt's n candidates the answer has, the likeliest ones; None: all.
    keep: int | None = None
    shows_logprobs: bool = False


def parse_completion(body: bytes) -> CompletionRequest:
    """Check the body of POST /v1/completions but for limits that are configured. Raises ApiError (400)."""
    raw = decode_object(body)
    ignored = COMPLETION.screen(raw)
    completion = convert(prepared(raw), CompletionBody, required=("model", "prompt"))
    if not completion.prompt and isinstance(completion.prompt, list):
        raise invalid("prompt", "'prompt' must not be an empty list.")
    prompts = texts_or_ids(completion.prompt, "prompt", most=MAX_PROMPTS)
    candidates, keep = _best_of(completion)
    check_range("logprobs", completion.logprobs, COMPLETION_LOGPROBS)
    max_tokens = COMPLETION_MAX_TOKENS if completion.max_tokens is None else completion.max_tokens
    if max_tokens == PROMPT_ONLY and completion.echo:
        # Within its range only here: whoever sees the prompt need not ask for more.
        completion.max_tokens = None
    return CompletionRequest(
        **{**common_fields(completion, max_tokens=max_tokens), "n": candidates},
        prompts=prompts,
        echo=bool(completion.echo),
        keep=keep,
        shows_logprobs=completion.logprobs is not None,
        # The best candidates are known by their log-probabilities.
        logprobs=0 if keep is not None and completion.logprobs is None else completion.logprobs,
        choices_field="n" if keep is None else "best_of",
        prompt_logprobs=bool(completion.echo) and completion.logprobs is not None,
        constraint=read_format(None, completion.guided()),
        ignored=ignored,
        fields=sent(raw),
        sticky_key=completion.user or "",
        user=completion.user or "",
    )


def _best_of(completion: CompletionBody) -> tuple[int, int | None]:
    """How many candidates each prompt gets, and how many of them are kept."""
    best_of, n = completion.best_of, 1 if completion.n is None else completion.n
    check_range("best_of", best_of, Range(1, MAX_CHOICES))
    if best_of is None or best_of == n:
        return n, None
    if best_of < n:
        raise invalid("best_of", f"'best_of' must be at least 'n' ({n}), got {best_of}.")
    if completion.stream:
        raise invalid("best_of", f"'best_of' ({best_of}) above 'n' ({n}) cannot be streamed: the best is known last.")
    return best_of, n
