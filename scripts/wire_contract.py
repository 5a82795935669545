"""What peers of other versions rely on: every message, field, enum and method of protos/, a line each.

python -m scripts.wire_contract        # what protos/ say that the released contract does not allow
python -m scripts.wire_contract --release    # at a release: what is there becomes the released contract
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

from inferway.api.v1 import router_pb2, types_pb2, worker_pb2

RELEASED = Path(__file__).resolve().parents[1] / "protos/released.txt"
_LABELS = {FieldDescriptorProto.LABEL_REPEATED: "repeated ", FieldDescriptorProto.LABEL_REQUIRED: "required "}


def files() -> list[FileDescriptorProto]:
    """The contract as the services have it."""
    found = []
    for module in (types_pb2, router_pb2, worker_pb2):
        file = FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        found.append(file)
    return found


def contract(files: Iterable[FileDescriptorProto]) -> list[str]:
    """Sorted lines; numbers and names that are reserved have lines, too."""
    return sorted(line for file in files for line in _of_file(file))


def breaks(released: Sequence[str], current: Sequence[str]) -> list[str]:
    """The released lines that `current` does not keep, which may add to them.

    What a field or a value of an enum stood for may go when both its number and its name are reserved.
    """
    known = set(current)
    gone = [line for line in released if line not in known]
    return [line for line in gone if not _may_go(line, known)]


def _may_go(line: str, known: set[str]) -> bool:
    kind, owner, number, *_, name = line.split()
    if kind not in ("field", "value"):
        return False
    is_there = any(one.startswith(f"{kind} {owner} {number} ") for one in known)
    return not is_there and {f"reserved {owner} {number}", f"reserved {owner} {name}"} <= known


def _of_file(file: FileDescriptorProto) -> Iterator[str]:
    for message in file.message_type:
        yield from _of_message(file.package, message)
    for enum in file.enum_type:
        yield from _of_enum(file.package, enum)
    for service in file.service:
        for method in service.method:
            takes, gives = ("stream " * stream for stream in (method.client_streaming, method.server_streaming))
            name = f"{file.package}.{service.name}/{method.name}"
            yield f"method {name} {takes}{method.input_type} {gives}{method.output_type}"


def _of_message(scope: str, message: DescriptorProto) -> Iterator[str]:
    name = f"{scope}.{message.name}"
    yield f"message {name}"
    for field in message.field:
        yield f"field {name} {field.number} {_type(message, field)} {field.name}"
    for reserved in message.reserved_range:
        yield from (f"reserved {name} {number}" for number in range(reserved.start, reserved.end))
    yield from (f"reserved {name} {word}" for word in message.reserved_name)
    for nested in message.nested_type:
        yield from _of_message(name, nested)
    for enum in message.enum_type:
        yield from _of_enum(name, enum)


def _type(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    kind = field.type_name or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.proto3_optional:
        return f"optional {kind}"
    if field.HasField("oneof_index"):
        return f"oneof {message.oneof_decl[field.oneof_index].name} {kind}"
    return f"{_LABELS.get(field.label, '')}{kind}"


def _of_enum(scope: str, enum: EnumDescriptorProto) -> Iterator[str]:
    name = f"{scope}.{enum.name}"
    yield f"enum {name}"
    yield from (f"value {name} {value.number} {value.name}" for value in enum.value)
    for reserved in enum.reserved_range:
        yield from (f"reserved {name} {number}" for number in range(reserved.start, reserved.end + 1))
    yield from (f"reserved {name} {word}" for word in enum.reserved_name)


def main(argv: Sequence[str]) -> int:
    current = contract(files())
    if argv == ["--release"]:
        RELEASED.write_text("\n".join(current) + "\n")
        return 0
    broken = breaks(RELEASED.read_text().splitlines(), current)
    print("\n".join(broken), end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
