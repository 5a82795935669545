"""JSON bodies: decoded, brought into a declared shape, refused by the name of the field."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import msgspec

from inferway.errors import ApiError, Reason, invalid

T = TypeVar("T", bound=msgspec.Struct)

# Names that may stand in a response header.
_HEADER_NAME = re.compile(r"[A-Za-z0-9_.\[\]-]{1,64}\Z")
_MAX_NAMED = 16


def decode_object(body: bytes) -> dict[str, Any]:
    """The members of a JSON object. Raises ApiError (400)."""
    raw = _decode(body)
    if not isinstance(raw, dict):
        raise invalid(None, f"The body must be a JSON object, got {json_type(raw)}.")
    return raw


def convert(raw: Mapping[str, Any], shape: type[T], *, required: Collection[str]) -> T:
    """Null is the same as absent. Raises ApiError (400) that names the field."""
    for name in required:
        if raw.get(name) is None:
            raise invalid(name, f"The field '{name}' is required.")
    try:
        return msgspec.convert(raw, shape)
    except msgspec.ValidationError as error:
        raise _wrong_type(error) from None


def json_type(value: Any) -> str:
    """What a JSON value is, for a sentence."""
    names = {type(None): "null", bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "a list"}
    return names.get(type(value), "an object")


def unsupported(param: str, message: str) -> ApiError:
    return ApiError(Reason.UNSUPPORTED_VALUE, message, param)


def check_length(name: str, length: int, least: int, most: int) -> None:
    """Raises ApiError (400) unless a list has `least` to `most` items."""
    if not least <= length <= most:
        raise invalid(name, f"'{name}' must have {least} to {most} items, got {length}.")


def without_effect(raw: Mapping[str, Any], harmless: Collection[str], known: Collection[str]) -> list[str]:
    """Names of the fields that were sent and change nothing: those known as harmless, and those that nobody knows."""
    return [name for name, value in raw.items() if value is not None and (name in harmless or name not in known)]


def header_names(names: Collection[str]) -> list[str]:
    """Those of some field names that may stand in a header, not too many of them."""
    return [name for name in names if _HEADER_NAME.match(name)][:_MAX_NAMED]


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
