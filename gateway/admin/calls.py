"""One request to the port for admins, as its handler sees it, and what handlers share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any, NamedTuple, TypeVar

import msgspec

from inferway.errors import ApiError, Reason, invalid
from inferway.settings import SettingsError, shaped, unix_s

from ..core.tenants import TenantFields, check_model_quotas

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    # The name of the credential.
    by: str
    places: Mapping[str, str]
    # In the endpoint's shape; of a patch as it came.
    body: Any = None
    query: Any = None


class Result(NamedTuple):
    body: Any
    status: int = 200


Handler = Callable[[Call], Awaitable[Result]]


def in_shape(raw: Any, shape: type[T], path: str = "") -> T:
    """Raises ApiError (400) with every mistake by its place; `param` is the place of the first."""
    try:
        if shape is TenantFields:
            check_model_quotas(raw, path)
        return shaped(raw, shape, path)
    except SettingsError as error:
        mistakes = str(error).splitlines()
        place, _, sentence = mistakes[0].partition(": ")
        raise invalid(place if sentence else None, "; ".join(mistakes)) from None


def merged(document: Any, patch: Any) -> Any:
    """RFC 7396: members of `patch` replace those of `document`, deeply; null takes one away."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(document) if isinstance(document, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), value)
    return result


def fields_of(settings: Any, shape: type[msgspec.Struct]) -> dict[str, Any]:
    """What `settings` says in the fields of `shape`, as JSON has it, without what says nothing."""
    only = shape(**{name: getattr(settings, name) for name in shape.__struct_fields__})
    # By way of JSON, so that what has just been said looks as it does when it comes from the store.
    plain: dict[str, Any] = _without_nulls(msgspec.json.decode(msgspec.json.encode(only)))
    return plain


def _without_nulls(value: Any) -> Any:
    """In documents of settings an absent member, a null and an object of such say the same."""
    if not isinstance(value, Mapping):
        return value
    members = {name: _without_nulls(member) for name, member in value.items()}
    return {name: member for name, member in members.items() if member is not None and member != {}}


def not_found(what: str) -> ApiError:
    return ApiError(Reason.NOT_FOUND, f"There is no {what}.")


def read_time(text: str | None, param: str) -> int | None:
    """Unix seconds of a day's beginning or of a time, in UTC unless it says otherwise. Raises ApiError (400)."""
    if text is None:
        return None
    try:
        return unix_s(date.fromisoformat(text))
    except ValueError:
        pass
    try:
        at = datetime.fromisoformat(text)
        unix = int((at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp())
        shown_time(unix)  # in UTC it may be of no year that there is
        return unix
    except (ValueError, OverflowError):
        raise invalid(param, f"'{param}' must be a day (2027-06-30) or a time (2027-06-30T12:00:00Z).") from None


def shown_time(unix: int | None) -> str | None:
    return None if unix is None else datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")
