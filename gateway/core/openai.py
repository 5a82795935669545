"""A chat request as OpenAI clients send it: parsed, checked and turned into our own terms.

`parse_chat` is the only way in. Whatever it refuses is an ApiError that names the field, the limit and the
observed value. What it accepts without effect is listed in `ChatRequest.ignored`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferway.errors import ApiError, Reason, invalid
from inferway.sampling import LOGIT_BIAS, MAX_STOP_CHARACTERS, MAX_STOPS, PRIORITY, RANGES, Range, check_range

MAX_METADATA_PAIRS = 16
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_TEXT_PART_TYPES = ("text", "input_text", "output_text", "refusal")
# Names that may stand in a response header.
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}\Z")
_MAX_IGNORED_NAMED = 16


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class _ChatBody(msgspec.Struct):
    """The fields that have an effect, or that are checked. Null is the same as absent."""

    model: str
    messages: list[_Message]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
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
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    user: str | None = None
    lora_request: str | dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    modalities: list[str] | None = None


# Sent by clients out of habit; no model here acts on them and no answer changes.
_HARMLESS = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
        "verbosity",
    }
)
# Would change the answer; refused until a model can do them.
_REFUSED = (
    "audio",
    "functions",
    "function_call",
    "guided_choice",
    "guided_grammar",
    "guided_json",
    "guided_regex",
    "prediction",
    "reasoning_effort",
    "web_search_options",
)
_KNOWN = frozenset(_ChatBody.__struct_fields__) | _HARMLESS | frozenset(_REFUSED)
_MESSAGE_KEYS = frozenset(_Message.__struct_fields__)


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


@dataclass(frozen=True, slots=True)
class ChatRequest:
    model: str
    # Plain data for the template: role and content (text) and, where given, name, tool_calls, tool_call_id, ...
    messages: list[dict[str, Any]]
    sampling: Sampling
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    n: int = 1
    tools: list[dict[str, Any]] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    priority: int | None = None
    # Accepted without effect, for the x-inferway-ignored header.
    ignored: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds that configuration sets."""

    max_messages: int = 4096
    max_choices: int = 16


def parse_chat(body: bytes, limits: Limits) -> ChatRequest:
    """Check the body of POST /v1/chat/completions. Raises ApiError (400)."""
    raw = _decode(body)
    if not isinstance(raw, dict):
        raise invalid(None, f"The body must be a JSON object, got {_json_type(raw)}.")
    for required in ("model", "messages"):
        if raw.get(required) is None:
            raise invalid(required, f"The field '{required}' is required.")
    if raw.get("top_k") == -1:
        raw["top_k"] = 0  # what several clients send for "all candidates"
    try:
        chat = msgspec.convert(raw, _ChatBody)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None
    for name in _REFUSED:
        if raw.get(name) is not None:
            raise _unsupported(name, f"'{name}' is not supported.")

    _check_length("messages", len(chat.messages), 1, limits.max_messages)
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(chat.messages)]
    _check_output_options(chat)
    for reserved in ("messages", "tools"):
        if reserved in (chat.chat_template_kwargs or ()):
            raise invalid("chat_template_kwargs", f"'chat_template_kwargs' must not contain '{reserved}'.")
    tools = _tools(chat)
    check_range("n", chat.n, Range(1, limits.max_choices))
    check_range("priority", chat.priority, PRIORITY)
    options = chat.stream_options or _StreamOptions()
    if chat.stream_options is not None and not chat.stream:
        raise invalid("stream_options", "'stream_options' is only allowed when 'stream' is true.")
    return ChatRequest(
        model=_model(chat),
        messages=messages,
        sampling=_sampling(chat),
        stream=bool(chat.stream),
        include_usage=bool(options.include_usage or options.continuous_usage_stats),
        continuous_usage=bool(options.continuous_usage_stats),
        n=chat.n or 1,
        tools=tools,
        template_kwargs=chat.chat_template_kwargs or {},
        priority=chat.priority,
        ignored=_ignored(raw),
    )


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise invalid(None, "The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (param := _param_of_surrogate(body)) is not None:
            raise invalid(param, f"'{param}' holds half of a surrogate pair, which is not a character.") from None
        raise invalid(None, f"The body is not valid JSON: {_sentence(str(error))}") from None


def _sentence(message: str) -> str:
    text = message.removeprefix("JSON is malformed: ")
    return text if text.endswith(".") else text + "."


# Above this a lone surrogate is refused without naming its field: the second parse would cost too much.
_LOCATE_LIMIT_BYTES = 1 << 20
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def _param_of_surrogate(body: bytes) -> str | None:
    """The field that holds half of a surrogate pair, when that is what is wrong with the body."""
    if len(body) > _LOCATE_LIMIT_BYTES or b"\\u" not in body:
        return None
    try:
        # The standard parser lets lone surrogates through, which is what finds them here.
        return _path_of_surrogate(json.loads(body), "")
    except (ValueError, RecursionError):
        return None


def _path_of_surrogate(value: Any, path: str) -> str | None:
    if isinstance(value, str):
        return path if _LONE_SURROGATE.search(value) else None
    items: list[tuple[str, Any]] = []
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
        if any(_LONE_SURROGATE.search(key) for key in value):
            return path or None
    elif isinstance(value, list):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    for item_path, item in items:
        if (found := _path_of_surrogate(item, item_path)) is not None:
            return found
    return None


def _wrong_type(error: msgspec.ValidationError) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.messages[0].role`"."""
    message, _, location = str(error).partition(" - at ")
    param = location.strip("`").removeprefix("$").removeprefix(".") or None
    message = message.replace("`", "'")
    return invalid(param, f"{param}: {message}." if param else f"{message}.")


def _json_type(value: Any) -> str:
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object")


def _unsupported(param: str, message: str) -> ApiError:
    return ApiError(Reason.UNSUPPORTED_VALUE, message, param)


def _check_length(name: str, length: int, least: int, most: int) -> None:
    if not least <= length <= most:
        raise invalid(name, f"'{name}' must have {least} to {most} items, got {length}.")


def _message(message: _Message, path: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise invalid(f"{path}.role", f"'{path}.role' must be one of {', '.join(_ROLES)}, got '{message.role[:64]}'.")
    content = _content(message, path)
    plain: dict[str, Any] = {"role": "system" if message.role == "developer" else message.role, "content": content}
    if message.role == "tool" and message.tool_call_id is None:
        raise invalid(f"{path}.tool_call_id", f"'{path}.tool_call_id' is required in a message of role 'tool'.")
    for name in ("name", "tool_calls", "tool_call_id", "reasoning_content"):
        value = getattr(message, name)
        if value is not None:
            plain[name] = value
    if message.tool_calls is not None:
        plain["tool_calls"] = [
            _tool_call(call, f"{path}.tool_calls[{index}]") for index, call in enumerate(message.tool_calls)
        ]
    return plain


def _content(message: _Message, path: str) -> str:
    """The text of a message; parts are joined by a line feed. Empty for an assistant that only called tools."""
    content = message.content
    if content is None:
        if message.role == "assistant" and (message.tool_calls or message.function_call):
            return ""
        if message.role == "assistant" and message.refusal is not None:
            return message.refusal
        raise invalid(f"{path}.content", f"'{path}.content' is required in a message of role '{message.role}'.")
    if isinstance(content, str):
        return content
    texts = []
    for index, part in enumerate(content):
        where = f"{path}.content[{index}]"
        kind = part.get("type")
        if kind not in _TEXT_PART_TYPES:
            shown = str(kind)[:64]
            raise _unsupported(f"{where}.type", f"Content of type '{shown}' is not supported by this model, only text.")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise invalid(f"{where}.text", f"'{where}.text' must be a string, got {_json_type(text)}.")
        texts.append(text)
    return "\n".join(texts)


def _tool_call(call: dict[str, Any], path: str) -> dict[str, Any]:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise invalid(f"{path}.function.name", f"'{path}.function.name' is required and must be a string.")
    arguments = function.get("arguments", "{}")
    if not isinstance(arguments, str | dict):
        raise invalid(
            f"{path}.function.arguments",
            f"'{path}.function.arguments' must be a string, got {_json_type(arguments)}.",
        )
    return {
        "id": call.get("id", ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _check_output_options(chat: _ChatBody) -> None:
    """Fields about the shape of the answer that no model serves yet, and their own mistakes first."""
    check_range("top_logprobs", chat.top_logprobs, Range(0, 20))
    if chat.top_logprobs is not None and not chat.logprobs:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    if chat.logprobs:
        raise _unsupported("logprobs", "'logprobs' is not supported by this model.")
    if chat.modalities is not None and chat.modalities != ["text"]:
        raise _unsupported("modalities", "Only the modality 'text' is supported.")
    kind = (chat.response_format or {}).get("type", "text")
    if kind != "text":
        if kind not in ("json_object", "json_schema"):
            raise invalid(
                "response_format.type", "'response_format.type' must be one of text, json_object, json_schema."
            )
        raise _unsupported("response_format", f"The response format '{kind}' is not supported by this model.")
    if chat.metadata is not None and len(chat.metadata) > MAX_METADATA_PAIRS:
        raise invalid("metadata", f"'metadata' must have at most {MAX_METADATA_PAIRS} pairs, got {len(chat.metadata)}.")


def _model(chat: _ChatBody) -> str:
    """The name of what is to answer: with `lora_request`, that of the model's adapter."""
    adapter = chat.lora_request
    if isinstance(adapter, dict):
        for key in adapter:
            if key not in ("lora_name", "name"):
                raise invalid("lora_request", f"'lora_request' takes the name of a loaded adapter, not '{key[:100]}'.")
        adapter = adapter.get("lora_name", adapter.get("name"))
        if not isinstance(adapter, str):
            raise invalid("lora_request", f"'lora_request.lora_name' must be a string, got {_json_type(adapter)}.")
    return f"{chat.model}:{adapter}" if adapter else chat.model


def _tools(chat: _ChatBody) -> list[dict[str, Any]] | None:
    for index, tool in enumerate(chat.tools or []):
        function = tool.get("function")
        if tool.get("type") != "function" or not isinstance(function, dict):
            raise invalid(f"tools[{index}]", f"'tools[{index}]' must be an object of type 'function'.")
        if not isinstance(function.get("name"), str):
            raise invalid(f"tools[{index}].function.name", f"'tools[{index}].function.name' must be a string.")
    choice = chat.tool_choice
    if choice is None or choice == "auto":
        return chat.tools or None
    if choice == "none":
        return None
    if not chat.tools:
        raise invalid("tool_choice", "'tool_choice' needs 'tools'.")
    shown = choice if isinstance(choice, str) else "a named tool"
    raise _unsupported("tool_choice", f"'tool_choice' must be 'auto' or 'none' for this model, got {shown[:64]!r}.")


def _sampling(chat: _ChatBody) -> Sampling:
    for name, within in RANGES.items():
        check_range(name, getattr(chat, name), within)
    check_range("max_completion_tokens", chat.max_completion_tokens, RANGES["max_tokens"])
    limit, older = chat.max_completion_tokens, chat.max_tokens
    if limit is None:
        limit = older
    elif older not in (None, limit):
        raise invalid(
            "max_tokens", f"'max_tokens' ({older}) contradicts 'max_completion_tokens' ({limit}); send one of them."
        )
    if chat.min_tokens is not None and limit is not None and chat.min_tokens > limit:
        raise invalid("min_tokens", f"'min_tokens' must be at most 'max_tokens' ({limit}), got {chat.min_tokens}.")
    return Sampling(
        temperature=chat.temperature,
        top_p=chat.top_p,
        top_k=chat.top_k,
        min_p=chat.min_p,
        frequency_penalty=chat.frequency_penalty,
        presence_penalty=chat.presence_penalty,
        repetition_penalty=chat.repetition_penalty,
        seed=chat.seed,
        max_tokens=limit,
        min_tokens=chat.min_tokens or None,
        ignore_eos=chat.ignore_eos or None,
        stop=_stops(chat.stop),
        logit_bias=_logit_bias(chat.logit_bias or {}),
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


def _ignored(raw: Mapping[str, Any]) -> list[str]:
    """Names for the header: fields without effect at the top level, and those inside messages."""
    names = [name for name, value in raw.items() if value is not None and (name in _HARMLESS or name not in _KNOWN)]
    extras = {f"messages[].{name}" for message in raw["messages"] for name in message if name not in _MESSAGE_KEYS}
    shown = [name for name in (*names, *sorted(extras)) if _HEADER_NAME.match(name)]
    return shown[:_MAX_IGNORED_NAMED]
