"""What a worker takes: checks of one Generate, each refusal naming field, limit and observed value.

The gateway has checked the same for its callers; a worker trusts no peer with its engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inferway.errors import ApiError, Reason, invalid
from inferway.sampling import (
    LOGIT_BIAS,
    MAX_STOP_CHARACTERS,
    MAX_STOPS,
    PRIORITY,
    PROMPT_ONLY,
    RANGES,
    TOP_LOGPROBS,
    check_range,
)

from ..engine import Constraint, EmbedRequest, GenerateRequest, ModelInfo, Sampling

# A schema of the size that gateways take, for each of the tools that a request may have, would be larger.
MAX_CONSTRAINT_BYTES = 256 << 10
MAX_SETTLEMENT_BYTES = 2 << 10


def check_settlement(settlement: bytes) -> None:
    """Raises ApiError for one that is too long to be remembered."""
    if len(settlement) > MAX_SETTLEMENT_BYTES:
        raise invalid("settlement", f"settlement must be at most {MAX_SETTLEMENT_BYTES} bytes, got {len(settlement)}.")


def check(request: GenerateRequest, stop: Sequence[str], model: ModelInfo) -> Sampling:
    """The sampling to run with: `max_tokens` is set, and capped to what the context leaves. Raises ApiError."""
    prompt = request.prompt_token_ids
    if not prompt:
        raise invalid("prompt_token_ids", "prompt_token_ids must hold at least 1 token, got 0.")
    if len(prompt) >= model.context_length:
        raise ApiError(
            Reason.CONTEXT_LENGTH_EXCEEDED,
            f"This model's maximum context length is {model.context_length} tokens, "
            f"but the prompt has {len(prompt)} tokens and leaves no room for an answer.",
            "prompt_token_ids",
        )
    largest = max(prompt)
    if largest >= model.vocab_size:
        raise invalid(
            "prompt_token_ids",
            f"prompt_token_ids must be below {model.vocab_size}, the vocabulary size of '{model.name}', got {largest}.",
        )
    check_range("priority", request.priority, PRIORITY)
    _check_stop(stop)
    if request.constraint is not None:
        _check_constraint(request.constraint, model)
    if request.logprobs is not None:
        check_range("logprobs", request.logprobs, TOP_LOGPROBS)
        if "logprobs" not in model.capabilities:
            raise ApiError(
                Reason.UNSUPPORTED_VALUE, f"'logprobs' is not supported by the model '{model.name}'.", "logprobs"
            )
    sampling = request.sampling
    _check_sampling(sampling, model.vocab_size)
    room = model.context_length - len(prompt)
    return replace(sampling, max_tokens=room if sampling.max_tokens is None else min(sampling.max_tokens, room))


def check_embed(request: EmbedRequest, model: ModelInfo) -> None:
    """Raises ApiError."""
    if "embeddings" not in model.capabilities:
        raise ApiError(Reason.UNSUPPORTED_VALUE, f"The model '{model.name}' makes no embeddings.", "model")
    ids = request.prompt_token_ids
    if not 1 <= len(ids) <= model.context_length:
        raise invalid("inputs", f"An input must have 1 to {model.context_length} tokens, got {len(ids)}.")
    if max(ids) >= model.vocab_size:
        raise invalid("inputs", f"Token ids must be below {model.vocab_size}, got {max(ids)}.")
    if request.dimensions is not None and "dimensions" not in model.capabilities:
        raise ApiError(
            Reason.UNSUPPORTED_VALUE, f"The model '{model.name}' has embeddings of one size only.", "dimensions"
        )
    check_range("priority", request.priority, PRIORITY)


def _check_constraint(constraint: Constraint, model: ModelInfo) -> None:
    size = len(constraint.text.encode())
    if not 1 <= size <= MAX_CONSTRAINT_BYTES:
        raise invalid("constraint", f"The constraint must have 1 to {MAX_CONSTRAINT_BYTES} bytes, got {size}.")
    if f"constraint.{constraint.kind}" not in model.capabilities:
        raise ApiError(
            Reason.UNSUPPORTED_VALUE,
            f"A constraint of the kind {constraint.kind} is not supported by the model '{model.name}'.",
            "constraint",
        )


def _check_stop(stop: Sequence[str]) -> None:
    if len(stop) > MAX_STOPS:
        raise invalid("stop", f"stop must hold at most {MAX_STOPS} strings, got {len(stop)}.")
    for place, text in enumerate(stop):
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise invalid(
                f"stop[{place}]", f"stop[{place}] must have 1 to {MAX_STOP_CHARACTERS} characters, got {len(text)}."
            )


def _check_sampling(sampling: Sampling, vocab_size: int) -> None:
    for name, within in RANGES.items():
        if name != "max_tokens" or sampling.max_tokens != PROMPT_ONLY:
            check_range(name, getattr(sampling, name), within)
    if sampling.min_tokens and sampling.max_tokens is not None and sampling.min_tokens > sampling.max_tokens:
        raise invalid(
            "min_tokens", f"min_tokens must be at most max_tokens ({sampling.max_tokens}), got {sampling.min_tokens}."
        )
    for token_id, bias in sampling.logit_bias.items():
        if not 0 <= token_id < vocab_size:
            raise invalid("logit_bias", f"logit_bias names token {token_id}; the vocabulary ends at {vocab_size - 1}.")
        check_range(f"logit_bias.{token_id}", bias, LOGIT_BIAS)
