"""JSON schemas that callers send: checked before anything is admitted, and what a text is by one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import jsonschema_rs
import msgspec

from inferway.errors import ApiError, Reason

MAX_SCHEMA_BYTES = 65_536
# Levels of nesting: engines and validators descend by recursion.
MAX_SCHEMA_DEPTH = 64


class Schema:
    """A schema that has been found valid."""

    def __init__(self, schema: dict[str, Any], param: str) -> None:
        """`param` is where in the request it stands. Raises ApiError (INVALID_SCHEMA) that names keyword and path.

        References lead within the schema only: nothing is ever fetched.
        """
        self.schema = schema
        size = len(msgspec.json.encode(schema))
        if size > MAX_SCHEMA_BYTES:
            raise _invalid(param, f"it may have {MAX_SCHEMA_BYTES} bytes at most, got {size}")
        if (depth := _depth(schema)) > MAX_SCHEMA_DEPTH:
            raise _invalid(param, f"it may be nested {MAX_SCHEMA_DEPTH} levels deep at most, got {depth}")
        try:
            self._validator = jsonschema_rs.validator_for(schema, retriever=_refuse)
        except jsonschema_rs.ValidationError as error:
            path = _path(error.instance_path)
            keyword = next((str(step) for step in reversed(error.instance_path) if isinstance(step, str)), "")
            where = f"'{keyword}' at {path}: " if keyword else ""
            raise _invalid(param, f"{where}{error.message}") from None
        except (jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
            raise _invalid(param, str(error).partition("\n")[0]) from None

    def mistake(self, text: str) -> str | None:
        """What is wrong with a JSON text, in a sentence; None: it is valid."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return "The arguments are not valid JSON."
        error = next(self._validator.iter_errors(value), None)
        return f"{_path(error.instance_path)}: {error.message[:500]}" if error is not None else None


def compiled(schema: dict[str, Any], param: str) -> Schema:
    """The checked schema, from memory where it has been checked lately. Raises as Schema does."""
    return _compiled(msgspec.json.encode(schema), param)


@lru_cache(maxsize=1024)
def _compiled(encoded: bytes, param: str) -> Schema:
    return Schema(msgspec.json.decode(encoded), param)


def _refuse(uri: str) -> Any:
    raise ValueError(f"'$ref' leads out of the schema: {uri[:200]}")


def _invalid(param: str, message: str) -> ApiError:
    return ApiError(Reason.INVALID_SCHEMA, f"'{param}' is not a valid JSON schema: {message[:500]}.", param)


def _path(steps: Sequence[str | int]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _depth(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            item
            for one in level
            for item in (one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ())
            if isinstance(item, Mapping | list)
        ]
    return depth


def with_references_moved(schema: Any, to: str) -> Any:
    """A copy for a place deeper in another schema: references to "#..." lead to `to`, where its root is now."""
    return _mapped(schema, lambda ref: to + ref[1:] if ref.startswith("#") else ref)


def _mapped(value: Any, moved: Callable[[str], str]) -> Any:
    if isinstance(value, Mapping):
        return {
            key: moved(item) if key in ("$ref", "$dynamicRef") and isinstance(item, str) else _mapped(item, moved)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [_mapped(item, moved) for item in value]
    return value
