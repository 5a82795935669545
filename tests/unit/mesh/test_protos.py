"""The contract between the services: generated code is current, and every part of it is explained."""

from __future__ import annotations

import filecmp
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet

CHECKOUT = Path(__file__).parents[3]
PROTOS = sorted((CHECKOUT / "protos").rglob("*.proto"))
# Field numbers of descriptor.proto, of which a path in SourceCodeInfo is made.
MESSAGE_TYPE, FIELD, NESTED_TYPE = 4, 2, 3


@cache
def files() -> dict[str, FileDescriptorProto]:
    """The parsed .proto files with their comments, by name."""
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", "protos", "--include_source_info"]
    names = [str(path.relative_to(CHECKOUT)) for path in PROTOS]
    done = subprocess.run(
        [*command, "--descriptor_set_out=/dev/stdout", *names], cwd=CHECKOUT, check=True, capture_output=True
    )
    return {file.name: file for file in FileDescriptorSet.FromString(done.stdout).file}


def messages(file: FileDescriptorProto) -> Iterator[tuple[tuple[int, ...], DescriptorProto]]:
    """Every message with its path in SourceCodeInfo, map entries left out."""
    pending: list[tuple[tuple[int, ...], DescriptorProto]]
    pending = [((MESSAGE_TYPE, i), message) for i, message in enumerate(file.message_type)]
    while pending:
        path, message = pending.pop()
        if message.options.map_entry:
            continue
        yield path, message
        pending += [((*path, NESTED_TYPE, i), nested) for i, nested in enumerate(message.nested_type)]


def uncommented(file: FileDescriptorProto) -> list[str]:
    """The messages and fields that no comment explains."""
    commented = {
        tuple(location.path)
        for location in file.source_code_info.location
        if location.leading_comments.strip() or location.trailing_comments.strip()
    }
    missing = []
    for path, message in messages(file):
        if path not in commented:
            missing.append(message.name)
        missing += [
            f"{message.name}.{field.name}"
            for i, field in enumerate(message.field)
            if (*path, FIELD, i) not in commented
        ]
    return missing


def test_generated_code_is_current(tmp_path: Path) -> None:
    """The committed modules are what scripts/generate_protos.sh makes of the .proto files, byte for byte."""
    subprocess.run(
        [CHECKOUT / "scripts/generate_protos.sh", tmp_path],
        env=os.environ | {"PYTHON": sys.executable},
        check=True,
    )
    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*_pb2*"))
    assert len(made) == 3 * len(PROTOS)
    stale = [str(path) for path in made if not filecmp.cmp(tmp_path / path, CHECKOUT / path, shallow=False)]
    assert not stale, "run `make protos`"


@pytest.mark.parametrize("proto", [path.name for path in PROTOS])
def test_everything_is_explained(proto: str) -> None:
    """Every message and every field has a comment."""
    assert uncommented(files()[f"inferway/api/v1/{proto}"]) == []


def test_every_enum_can_say_nothing() -> None:
    """The first value of every enum is its own _UNSPECIFIED, numbered 0."""
    enums: list[EnumDescriptorProto] = []
    for file in files().values():
        enums += file.enum_type
        for _, message in messages(file):
            enums += message.enum_type
    assert enums
    for enum in enums:
        assert enum.value[0].number == 0
        prefix = enum.value[0].name.removesuffix("UNSPECIFIED")
        assert prefix != enum.value[0].name, enum.name
        assert all(value.name.startswith(prefix) for value in enum.value), enum.name
