"""Bounds that configuration sets for a model, a tenant or a key; whatever exceeds one is refused by name."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from inferway.errors import ApiError, Reason, invalid

from .generation_fields import GenerationRequest

_Count = Annotated[int, Meta(ge=1, le=2**32 - 1)] | None


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """None: no bound but those of the API and of the model. They bound what is asked for, not the model's defaults."""

    max_body_bytes: _Count = None
    max_messages: _Count = None
    max_prompts: _Count = None
    max_choices: _Count = None
    max_stops: _Count = None
    max_stop_characters: _Count = None
    # Of the whole request, in the model's tokens; output is that of one choice, and the total is prompt and one choice.
    max_input_tokens: _Count = None
    max_output_tokens: _Count = None
    max_total_tokens: _Count = None
    max_temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    max_top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    max_top_k: _Count = None


UNLIMITED = Limits()


def tightest(*several: Limits) -> Limits:
    """The bound of each kind that allows least."""
    bounds: dict[str, float] = {}
    for limits in several:
        for name in Limits.__struct_fields__:
            bound = getattr(limits, name)
            if bound is not None and bound < bounds.get(name, float("inf")):
                bounds[name] = bound
    return Limits(**bounds)  # type: ignore[arg-type]


def check_request(limits: Limits, asked: GenerationRequest, *, body_bytes: int) -> None:
    """Everything that is known before the prompt is tokenized. Raises ApiError (400, 413)."""
    if limits.max_body_bytes is not None and body_bytes > limits.max_body_bytes:
        message = f"The body may have {limits.max_body_bytes} bytes at most, got {body_bytes}."
        raise ApiError(Reason.PAYLOAD_TOO_LARGE, message)
    sampling = asked.sampling
    _check(asked.choices_field, asked.n, limits.max_choices)
    _check("temperature", sampling.temperature, limits.max_temperature)
    _check("top_p", sampling.top_p, limits.max_top_p)
    _check("top_k", sampling.top_k, limits.max_top_k)
    if sampling.top_k == 0 and limits.max_top_k is not None:
        raise invalid("top_k", f"'top_k' may be {limits.max_top_k} at most, got 0 (all).")
    _check("max_tokens", sampling.max_tokens, limits.max_output_tokens, param=asked.max_tokens_field)
    check_items("stop", len(sampling.stop), limits.max_stops)
    for index, stop in enumerate(sampling.stop):
        if limits.max_stop_characters is not None and len(stop) > limits.max_stop_characters:
            name = f"stop[{index}]"
            raise invalid(name, f"'{name}' may have {limits.max_stop_characters} characters at most, got {len(stop)}.")


def check_items(name: str, length: int, most: int | None) -> None:
    """Raises ApiError (400) for a list that has too many items."""
    if most is not None and length > most:
        raise invalid(name, f"'{name}' may have {most} items at most, got {length}.")


def _check(name: str, value: float | None, most: float | None, *, param: str | None = None) -> None:
    if value is not None and most is not None and value > most:
        param = param or name
        raise invalid(param, f"'{param}' may be {most:.10g} at most, got {value:.10g}.")


def completion_tokens(
    limits: Limits, asked: int | None, *, prompt_tokens: int, context_length: int, param: str
) -> int | None:
    """The most tokens that a choice may have; None: what the model's context leaves.

    Raises ApiError (CONTEXT_LENGTH_EXCEEDED), worded so that agents recognise it and compact.
    """
    if limits.max_input_tokens is not None and prompt_tokens > limits.max_input_tokens:
        raise ApiError(
            Reason.CONTEXT_LENGTH_EXCEEDED,
            f"The maximum context length of a prompt is {limits.max_input_tokens} tokens here, but the {param} made "
            f"{prompt_tokens} tokens. Shorten the {param}.",
            param,
        )
    context_length = min(context_length, limits.max_total_tokens or context_length)
    least = asked or 1
    if prompt_tokens + least > context_length:
        completion = f" and asked for {asked} tokens of completion ({prompt_tokens + asked} in all)" if asked else ""
        raise ApiError(
            Reason.CONTEXT_LENGTH_EXCEEDED,
            f"This model's maximum context length is {context_length} tokens, but the {param} made {prompt_tokens} "
            f"tokens{completion}. Shorten the {param} or the completion.",
            param,
        )
    if asked is None and (limits.max_output_tokens or limits.max_total_tokens):
        return min(limits.max_output_tokens or context_length, context_length - prompt_tokens)
    return asked
