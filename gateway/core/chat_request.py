"""A chat request as OpenAI clients send it: parsed, checked and turned into our own terms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from inferway.errors import invalid
from inferway.sampling import RANGES, TOP_LOGPROBS, check_range

from .body import convert, decode_object, json_type, sent, unsupported
from .constraints import Constraint
from .fields import CHAT, MAX_METADATA_PAIRS, PART_TYPES, ROLES
from .generation_fields import (
    GenerationBody,
    GenerationRequest,
    ServiceTier,
    common_fields,
    prepared,
)
from .output_format import read_format
from .tool_request import NO_TOOLS, ToolUse, read_functions, read_tools

# OpenAI's names, and the tier that each is served in. There is no capacity that could be bought ahead.
_TIERS: Mapping[str, ServiceTier] = {
    "auto": "default",
    "default": "default",
    "scale": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
}
# What every template is given: a caller's own would be without effect, or replace what was checked.
_OF_TEMPLATES = ("messages", "tools", "add_generation_prompt", "bos_token", "eos_token")


class Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None


class ChatBody(GenerationBody, kw_only=True):
    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    functions: list[dict[str, Any]] | None = None
    function_call: str | dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    metadata: dict[str, str] | None = None
    modalities: list[str] | None = None
    service_tier: str | None = None
    prompt_cache_key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest(GenerationRequest):
    # Plain data for the template: role and content (text) and, where given, name, tool_calls, tool_call_id, ...
    messages: list[dict[str, Any]]
    tool_use: ToolUse = NO_TOOLS
    template_kwargs: Mapping[str, Any] = field(default_factory=dict)


def parse_chat(body: bytes) -> ChatRequest:
    """Check the body of POST /v1/chat/completions but for limits that are configured. Raises ApiError (400)."""
    raw = decode_object(body)
    ignored = CHAT.screen(raw)
    chat = convert(prepared(raw), ChatBody, required=("model", "messages"))
    if not chat.messages:
        raise invalid("messages", "'messages' must have at least 1 item, got 0.")
    messages = [_message(message, f"messages[{index}]") for index, message in enumerate(chat.messages)]
    _check_output_options(chat)
    tool_use = _tool_use(chat)
    for reserved in _OF_TEMPLATES:
        if reserved in (chat.chat_template_kwargs or ()):
            raise invalid("chat_template_kwargs", f"'chat_template_kwargs' must not contain '{reserved}'.")
    return ChatRequest(
        **common_fields(chat, max_tokens=_max_tokens(chat)),
        messages=messages,
        tool_use=tool_use,
        constraint=_format(chat, tool_use),
        template_kwargs=chat.chat_template_kwargs or {},
        logprobs=(chat.top_logprobs or 0) if chat.logprobs else None,
        ignored=ignored,
        fields=sent(raw),
        max_tokens_field="max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens",
        sticky_key=chat.prompt_cache_key or chat.user or "",
        user=chat.user or "",
        service_tier=_service_tier(chat),
    )


def _max_tokens(chat: ChatBody) -> int | None:
    check_range("max_completion_tokens", chat.max_completion_tokens, RANGES["max_tokens"])
    limit, older = chat.max_completion_tokens, chat.max_tokens
    if limit is None:
        return older
    if older not in (None, limit):
        raise invalid(
            "max_tokens", f"'max_tokens' ({older}) contradicts 'max_completion_tokens' ({limit}); send one of them."
        )
    return limit


def _service_tier(chat: ChatBody) -> ServiceTier:
    asked = chat.service_tier or "auto"
    if asked not in _TIERS:
        raise invalid("service_tier", f"'service_tier' must be one of {', '.join(_TIERS)}, got '{asked[:64]}'.")
    if chat.priority is not None and chat.service_tier is not None:
        raise invalid("service_tier", "'service_tier' and 'priority' say the same in two ways; send one of them.")
    return _TIERS[asked]


def _message(message: Message, path: str) -> dict[str, Any]:
    if message.role not in ROLES:
        raise invalid(f"{path}.role", f"'{path}.role' must be one of {', '.join(ROLES)}, got '{message.role[:64]}'.")
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


def _content(message: Message, path: str) -> str:
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
        if kind not in PART_TYPES:
            shown = str(kind)[:64]
            raise unsupported(f"{where}.type", f"Content of type '{shown}' is not supported by this model, only text.")
        text = part.get("refusal" if kind == "refusal" else "text")
        if not isinstance(text, str):
            raise invalid(f"{where}.text", f"'{where}.text' must be a string, got {json_type(text)}.")
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
            f"'{path}.function.arguments' must be a string, got {json_type(arguments)}.",
        )
    return {
        "id": call.get("id", ""),
        "type": "function",
        "function": {"name": function["name"], "arguments": arguments},
    }


def _check_output_options(chat: ChatBody) -> None:
    """Fields about the shape of the answer that no model serves yet, and their own mistakes first."""
    check_range("top_logprobs", chat.top_logprobs, TOP_LOGPROBS)
    if chat.top_logprobs is not None and not chat.logprobs:
        raise invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true.")
    if chat.modalities is not None and chat.modalities != ["text"]:
        raise unsupported("modalities", "Only the modality 'text' is supported.")
    if chat.metadata is not None and len(chat.metadata) > MAX_METADATA_PAIRS:
        raise invalid("metadata", f"'metadata' must have at most {MAX_METADATA_PAIRS} pairs, got {len(chat.metadata)}.")


def _tool_use(chat: ChatBody) -> ToolUse:
    if chat.functions is None and chat.function_call is None:
        return read_tools(chat.tools, chat.tool_choice, is_parallel=chat.parallel_tool_calls)
    if chat.tools is not None or chat.tool_choice is not None:
        older, newer = ("functions", "tools") if chat.functions is not None else ("function_call", "tool_choice")
        raise invalid(older, f"'{older}' is the older form of '{newer}'; send one of them.")
    if not chat.functions:
        raise invalid("function_call", "'function_call' needs 'functions'.")
    return read_functions(chat.functions, chat.function_call)


def _format(chat: ChatBody, tool_use: ToolUse) -> Constraint | None:
    """A format that the text must have; then no call can be forced. What calls must match depends on the model."""
    asked = read_format(chat.response_format, chat.guided())
    if asked is not None and tool_use.is_forced:
        forced = tool_use.choice_field
        raise invalid(asked.param, f"'{asked.param}' cannot be asked for beside a call that '{forced}' forces.")
    return asked
