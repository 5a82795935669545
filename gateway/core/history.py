"""Earlier calls in a conversation, as a model's chat template expects them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

IdStyle = Literal["openai", "mistral", "kimi"]

_ALPHANUMERICS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# Under this name stands what was no JSON object.
NOT_AN_OBJECT = "invalid_arguments"


def with_calls_as_expected(
    messages: Sequence[dict[str, Any]], *, arguments_as_text: bool, id_style: IdStyle
) -> list[dict[str, Any]]:
    """Arguments as an object or as text; ids in the family's form, the same for a call and its result.

    Arguments that are no JSON object, such as those of a call that was cut off, are kept as the text that they are,
    under a name that says so: the conversation goes on.
    """
    ids: dict[str, str] = {}
    changed = []
    for message in messages:
        calls = message.get("tool_calls")
        if calls:
            message = {**message, "tool_calls": [_call(call, arguments_as_text, id_style, ids) for call in calls]}
        if "tool_call_id" in message and id_style != "openai":
            given = str(message["tool_call_id"])
            message = {**message, "tool_call_id": ids.get(given) or _id(given, message.get("name", ""), id_style, ids)}
        changed.append(message)
    return changed


def _call(call: Mapping[str, Any], as_text: bool, id_style: IdStyle, ids: dict[str, str]) -> dict[str, Any]:
    function = call["function"]
    arguments = _arguments(function["arguments"], as_text=as_text)
    given = str(call.get("id", ""))
    own = given if id_style == "openai" else ids.get(given) or _id(given, function["name"], id_style, ids)
    return {**call, "id": own, "function": {**function, "arguments": arguments}}


def _arguments(given: str | Mapping[str, Any], *, as_text: bool) -> str | Mapping[str, Any]:
    if isinstance(given, str):
        if as_text:
            return given
        try:
            value = msgspec.json.decode(given or "{}")
        except (msgspec.DecodeError, RecursionError):
            return {NOT_AN_OBJECT: given}
        return value if isinstance(value, dict) else {NOT_AN_OBJECT: given}
    return msgspec.json.encode(given).decode() if as_text else given


def _id(given: str, name: str, style: IdStyle, ids: dict[str, str]) -> str:
    """An id in the family's form for one in any form."""
    if style == "mistral":
        made = given if is_mistral_id(given) else mistral_id(hashlib.sha256(given.encode("utf-8", "replace")).digest())
    else:
        made = given if given.startswith("functions.") else f"functions.{name}:{len(ids)}"
    ids[given] = made
    return made


def is_mistral_id(text: str) -> bool:
    return len(text) == 9 and all(character in _ALPHANUMERICS for character in text)


def mistral_id(randomness: bytes) -> str:
    """Nine letters and digits, made of at least as many bytes."""
    return "".join(_ALPHANUMERICS[byte % len(_ALPHANUMERICS)] for byte in randomness[:9])


def described_in_words(messages: Sequence[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For a template that knows no tools: the first system message says which there are."""
    functions = "\n".join(msgspec.json.encode(tool["function"]).decode() for tool in tools)
    words = f"You can call these functions, described by JSON schemas:\n{functions}"
    if messages and messages[0]["role"] == "system":
        first = {**messages[0], "content": f"{messages[0]['content']}\n\n{words}"}
        return [first, *messages[1:]]
    return [{"role": "system", "content": words}, *messages]
