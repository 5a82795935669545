"""JSON bodies: decoded, brought into a declared shape, refused by the name of the field."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from math import isfinite
from typing import Any, NamedTuple, TypeVar

import msgspec

from inferway.errors import ApiError, Reason, invalid

T = TypeVar("T", bound=msgspec.Struct)


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


def sent(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the fields that were sent; null is the same as absent."""
    return tuple(name for name, value in raw.items() if value is not None)


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise invalid(None, "The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        if (found := _fault_in_a_field(body)) is not None:
            raise invalid(found.path, f"'{found.path}' {found.fault}.") from None
        raise invalid(None, f"The body is not valid JSON: {_sentence(str(error))}") from None


def _sentence(message: str) -> str:
    text = message.removeprefix("JSON is malformed: ").partition(" - at ")[0]
    return text if text.endswith(".") else text + "."


# Above this a fault is refused without naming its field: the second parse, 8 ms for a megabyte, would be everybody's.
_LOCATE_LIMIT_BYTES = 1 << 17
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# The longest integer that msgspec reads.
_MAX_DIGITS = 4300


class _Fault(str):
    """Stands in a decoded body for a value that cannot be taken, and says why."""


_HALF_A_PAIR = _Fault("holds half of a surrogate pair, which is not a character")
_TOO_LARGE = _Fault("is a number too large to be read")
_NO_NUMBER = _Fault("is not a number that JSON knows")


class _Found(NamedTuple):
    path: str
    fault: _Fault


def _fault_in_a_field(body: bytes) -> _Found | None:
    """Where the body is JSON but for one value, the field that has it."""
    if len(body) > _LOCATE_LIMIT_BYTES:
        return None
    try:
        # The standard parser lets through what the other one refuses without saying where.
        decoded = json.loads(body, parse_int=_int, parse_float=_float, parse_constant=lambda _: _NO_NUMBER)
        return _find_fault(decoded, "")
    except (ValueError, RecursionError):
        return None


def _int(text: str) -> int | _Fault:
    return int(text) if len(text.lstrip("-")) <= _MAX_DIGITS else _TOO_LARGE


def _float(text: str) -> float | _Fault:
    return value if isfinite(value := float(text)) else _TOO_LARGE


def _find_fault(value: Any, path: str) -> _Found | None:
    items: list[tuple[str, Any]] = []
    if isinstance(value, str):
        fault = value if isinstance(value, _Fault) else _HALF_A_PAIR if _LONE_SURROGATE.search(value) else None
        return _Found(path, fault) if fault is not None and path else None
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else key, item) for key, item in value.items()]
        if any(_LONE_SURROGATE.search(key) for key in value):
            return _Found(path, _HALF_A_PAIR) if path else None
    elif isinstance(value, list):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    return next((found for where, item in items if (found := _find_fault(item, where)) is not None), None)


def _wrong_type(error: msgspec.ValidationError) -> ApiError:
    """msgspec says "Expected `int`, got `str` - at `$.messages[0].role`"."""
    message, _, location = str(error).partition(" - at ")
    param = location.strip("`").removeprefix("$").removeprefix(".") or None
    message = message.replace("`", "'")
    return invalid(param, f"{param}: {message}." if param else f"{message}.")
