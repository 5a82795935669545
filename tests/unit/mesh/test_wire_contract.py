"""The wire contract only grows: peers of the last release understand those of this one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FieldDescriptorProto

from scripts.wire_contract import RELEASED, breaks, contract, files

NOW = contract(files())


def test_nothing_is_taken_back() -> None:
    """Every message, field, value and method of the last release is there; what went is reserved, number and name.

    After a deliberate change of what has never been released: `python -m scripts.wire_contract --release`.
    """
    assert breaks(RELEASED.read_text().splitlines(), NOW) == []


def _delete(message: DescriptorProto, _enum: EnumDescriptorProto) -> None:
    del message.field[0]


def _retype(message: DescriptorProto, _enum: EnumDescriptorProto) -> None:
    message.field[0].type = FieldDescriptorProto.TYPE_BYTES


def _renumber(message: DescriptorProto, _enum: EnumDescriptorProto) -> None:
    message.field[0].number = 999


def _rename(message: DescriptorProto, _enum: EnumDescriptorProto) -> None:
    message.field[0].name = "another"


def _repeat(message: DescriptorProto, _enum: EnumDescriptorProto) -> None:
    message.field[0].label = FieldDescriptorProto.LABEL_REPEATED


def _reserve_the_number_only(message: DescriptorProto, _enum: EnumDescriptorProto) -> None:
    number = message.field[0].number
    del message.field[0]
    message.reserved_range.add(start=number, end=number + 1)


def _reuse(message: DescriptorProto, _enum: EnumDescriptorProto) -> None:
    name, number = message.field[0].name, message.field[0].number
    message.field[0].name = "another"
    message.reserved_name.append(name)
    message.reserved_range.add(start=number, end=number + 1)


def _delete_a_value(_message: DescriptorProto, enum: EnumDescriptorProto) -> None:
    del enum.value[-1]


def _renumber_a_value(_message: DescriptorProto, enum: EnumDescriptorProto) -> None:
    enum.value[-1].number = 999


def _changed(change: Callable[[DescriptorProto, EnumDescriptorProto], None]) -> list[str]:
    types, router, worker = files()
    message = next(one for one in router.message_type if one.name == "Submit")
    change(message, types.enum_type[0])
    return contract([types, router, worker])


@pytest.mark.parametrize(
    "change",
    [
        *(_delete, _retype, _renumber, _rename, _repeat, _reserve_the_number_only, _reuse),
        *(_delete_a_value, _renumber_a_value),
    ],
)
def test_what_breaks(change: Callable[[DescriptorProto, EnumDescriptorProto], None]) -> None:
    """A field or value that goes, moves or means something else."""
    assert breaks(NOW, _changed(change)) != []


def _grow(message: DescriptorProto, enum: EnumDescriptorProto) -> None:
    message.field.add(name="new", number=999, type=FieldDescriptorProto.TYPE_BOOL)
    enum.value.add(name="NEW", number=999)


def _retire(message: DescriptorProto, enum: EnumDescriptorProto) -> None:
    name, number = message.field[0].name, message.field[0].number
    del message.field[0]
    message.reserved_name.append(name)
    message.reserved_range.add(start=number, end=number + 1)
    value_name, value_number = enum.value[-1].name, enum.value[-1].number
    del enum.value[-1]
    enum.reserved_name.append(value_name)
    enum.reserved_range.add(start=value_number, end=value_number)


@pytest.mark.parametrize("change", [_grow, _retire])
def test_what_may_be(change: Callable[[DescriptorProto, EnumDescriptorProto], None]) -> None:
    """New ones, and those that are retired with number and name."""
    assert breaks(NOW, _changed(change)) == []


def test_methods_stay() -> None:
    """A method that goes, or becomes a stream, breaks who calls it."""
    types, router, worker = files()
    del router.service[0].method[0]
    worker.service[0].method[0].server_streaming = not worker.service[0].method[0].server_streaming
    assert len(breaks(NOW, contract([types, router, worker]))) == 2
