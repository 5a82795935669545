"""What the bodies of chat and completions have in common: how to choose tokens, how to answer, and to whom it goes.

Whatever is refused is an ApiError that names the field, the limit and the observed value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from inferway.errors import invalid
from inferway.sampling import LOGIT_BIAS, MAX_STOP_CHARACTERS, MAX_STOPS, PRIORITY, RANGES, Range, check_range, shown

from .body import check_length, json_type
from .constraints import Constraint
from .fields import MAX_CHOICES

# In the order of service, and what answers say of it.
ServiceTier = Literal["flex", "default", "priority"]


GUIDED = ("guided_json", "guided_regex", "guided_choice", "guided_grammar")


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class GenerationBody(msgspec.Struct, kw_only=True):
    """The fields that have an effect, or that are checked."""

    model: str
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: str | list[str] | None = None
    logit_bias: dict[str, float] | None = None
    priority: int | None = None
    user: str | None = None
    lora_request: str | dict[str, Any] | None = None
    guided_json: dict[str, Any] | str | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def guided(self) -> dict[str, Any]:
        """What restricts the text, by the field that says it."""
        return {name: getattr(self, name) for name in GUIDED}


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen, in the worker contract's terms (types.proto has units and ranges)."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop: Sequence[str] = ()
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def fields_used(self) -> list[str]:
        """Names of the fields that the caller set: what a model must be capable of."""
        return [name for name in self.__slots__ if getattr(self, name) not in (None, (), {})]


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    model: str
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    n: int = 1
    priority: int | None = None
    # How many of the most likely tokens to name beside each; None: no log-probabilities.
    logprobs: int | None = None
    # Those of the prompt as well.
    prompt_logprobs: bool = False
    # Accepted without effect, for the x-inferway-ignored header.
    ignored: Sequence[str] = ()
    # Names of all fields that were sent, and those that gave the limit of completion tokens and the choices.
    fields: Sequence[str] = ()
    max_tokens_field: str = "max_tokens"
    choices_field: str = "n"
    # Equal for requests that belong together; "": the caller did not say.
    sticky_key: str = ""
    # The caller's own name for who asks; never told to anybody but as a keyed hash.
    user: str = ""
    service_tier: ServiceTier | None = None
    # What the text of each choice must match.
    constraint: Constraint | None = None


def prepared(raw: dict[str, Any]) -> dict[str, Any]:
    """The body's members, less what several clients send for "all candidates"."""
    return {**raw, "top_k": 0} if raw.get("top_k") == -1 else raw


def common_fields(body: GenerationBody, *, max_tokens: int | None) -> dict[str, Any]:
    """The arguments of GenerationRequest but for `ignored`; `max_tokens` is the limit by whatever name it was given.

    Raises ApiError (400).
    """
    check_range("n", body.n, Range(1, MAX_CHOICES))
    check_range("priority", body.priority, PRIORITY)
    if body.stream_options is not None and not body.stream:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    options = body.stream_options or StreamOptions()
    return {
        "model": _model(body),
        "sampling": _sampling(body, max_tokens),
        "stream": bool(body.stream),
        "include_usage": bool(options.include_usage or options.continuous_usage_stats),
        "continuous_usage": bool(options.continuous_usage_stats),
        "n": body.n or 1,
        "priority": body.priority,
    }


def _model(body: GenerationBody) -> str:
    """The name of what is to answer: with `lora_request`, that of the model's adapter."""
    adapter = body.lora_request
    if isinstance(adapter, dict):
        for key in adapter:
            if key not in ("lora_name", "name"):
                raise invalid("lora_request", f"'lora_request' takes the name of a loaded adapter, not '{key[:100]}'.")
        adapter = adapter.get("lora_name", adapter.get("name"))
        if not isinstance(adapter, str):
            raise invalid("lora_request", f"'lora_request.lora_name' must be a string, got {json_type(adapter)}.")
    return f"{body.model}:{adapter}" if adapter else body.model


def _sampling(body: GenerationBody, max_tokens: int | None) -> Sampling:
    for name, within in RANGES.items():
        check_range(name, getattr(body, name), within)
    if body.min_tokens is not None and max_tokens is not None and body.min_tokens > max_tokens:
        raise invalid("min_tokens", f"'min_tokens' must be at most 'max_tokens' ({max_tokens}), got {body.min_tokens}.")
    return Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=body.top_k,
        min_p=body.min_p,
        frequency_penalty=body.frequency_penalty,
        presence_penalty=body.presence_penalty,
        repetition_penalty=body.repetition_penalty,
        seed=body.seed,
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or None,
        ignore_eos=body.ignore_eos or None,
        stop=_stops(body.stop),
        logit_bias=_logit_bias(body.logit_bias or {}),
    )


def _stops(stop: str | list[str] | None) -> Sequence[str]:
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > MAX_STOPS:
        raise invalid("stop", f"'stop' must have at most {MAX_STOPS} strings, got {len(stops)}.")
    for index, text in enumerate(stops):
        if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
            raise invalid(
                f"stop[{index}]",
                f"'stop[{index}]' must have 1 to {MAX_STOP_CHARACTERS} characters, got {len(text)}.",
            )
    return tuple(stops)


def _logit_bias(bias: Mapping[str, float]) -> dict[int, float]:
    checked = {}
    for token_id, value in bias.items():
        if not token_id.isascii() or not token_id.isdigit() or len(token_id) > 9:
            raise invalid("logit_bias", f"The keys of 'logit_bias' must be token ids, got '{token_id[:64]}'.")
        check_range(f"logit_bias.{token_id}", value, LOGIT_BIAS)
        checked[int(token_id)] = value
    return checked


# What the contract with workers can carry, whatever the vocabulary.
_MOST_IDS = 2**32


def check_ids(values: list[Any], path: str, *, param: str | None = None, vocab_size: int = _MOST_IDS) -> list[int]:
    """Token ids that a caller gave at `path`, at least one. Raises ApiError (400) for `param`, or for `path`."""
    param = param or path
    if not values:
        raise invalid(param, f"'{path}' must hold at least 1 token id, got 0.")
    if set(map(type, values)) == {int} and min(values) >= 0 and max(values) < vocab_size:
        return values  # half the time that naming the wrong one takes
    for index, value in enumerate(values):
        if not isinstance(value, int) or isinstance(value, bool):
            got = value if isinstance(value, float) else json_type(value)
            raise invalid(param, f"'{path}[{index}]' must be a token id, got {got}.")
        if not 0 <= value < vocab_size:
            within = f"from 0 to {vocab_size - 1}"
            raise invalid(param, f"'{path}[{index}]' must be a token id {within}, got {shown(value)}.")
    return values


def texts_or_ids(given: str | list[Any], param: str, *, most: int) -> list[str | list[int]]:
    """One or several texts or lists of token ids; numbers in a list are the ids of one. Raises ApiError (400)."""
    if isinstance(given, str):
        return [given]
    if given and isinstance(given[0], int | float) and not isinstance(given[0], bool):
        return [check_ids(given, param)]
    check_length(param, len(given), 1, most)
    return [_text_or_ids(one, f"{param}[{index}]", param) for index, one in enumerate(given)]


def _text_or_ids(given: Any, path: str, param: str) -> str | list[int]:
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise invalid(param, f"'{path}' must be a string or a list of token ids, got {json_type(given)}.")
    return check_ids(given, path, param=param)
