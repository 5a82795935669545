"""Messages of the wire as plain data, for JSON and for people."""

from __future__ import annotations

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message


def plain(message: Message) -> dict[str, Any]:
    """Every field by its name, None for one that is absent; enums by their words in small letters."""
    return {field.name: _value(message, field) for field in message.DESCRIPTOR.fields}


def _value(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        return [_single(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _single(value, field)


def _single(value: Any, field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return plain(value)
    if field.enum_type is None:
        return value
    # RELEASE_OUTCOME_OK of ReleaseOutcome is "ok".
    name: str = field.enum_type.values_by_number[value].name
    words = sum(character.isupper() for character in field.enum_type.name)
    return name.split("_", words)[-1].lower()
