"""Reads the metadata of a GGUF file (versions 2 and 3): names and values, without the tensors.

llama.cpp's own calls do not give arrays, and the merges of a tokenizer are one. The bundled model's 49,152 tokens
and 48,900 merges take some 50 ms.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9


def read_metadata(path: Path) -> dict[str, Any]:
    """All key-value pairs of the file. Raises OSError when it cannot be read or is no such file."""
    with path.open("rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise OSError(f"{path} is empty, not a GGUF file") from None
        with data:
            if data[:4] != b"GGUF":
                raise OSError(f"{path} is not a GGUF file: it begins with {data[:4]!r}")
            try:
                return _Reader(data).metadata()
            except (struct.error, KeyError, UnicodeDecodeError, OverflowError) as error:
                raise OSError(f"{path} is a damaged GGUF file, or of an unknown version") from error


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 4

    def metadata(self) -> dict[str, Any]:
        version = self._scalar("<I")
        if version not in (2, 3):
            raise KeyError(version)
        self._scalar("<Q")  # the number of tensors
        values: dict[str, Any] = {}
        for _ in range(self._scalar("<Q")):
            key = self._string()
            values[key] = self._value(self._scalar("<I"))
        return values

    def _scalar(self, form: str) -> Any:
        (value,) = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return value

    def _string(self) -> str:
        (size,) = struct.unpack_from("<Q", self._data, self._at)
        start = self._at + 8
        if start + size > len(self._data):
            raise struct.error("a string beyond the end of the file")
        self._at = start + size
        return self._data[start : self._at].decode()

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind != _ARRAY:
            return self._scalar(_SCALARS[kind])
        item, count = self._scalar("<I"), self._scalar("<Q")
        if item in _SCALARS:
            return list(self._scalars(_SCALARS[item], count))
        read: Callable[[], Any] = self._string if item == _STRING else lambda: self._value(item)
        return [read() for _ in range(count)]

    def _scalars(self, form: str, count: int) -> tuple[Any, ...]:
        whole = f"<{count}{form[1]}"
        values = struct.unpack_from(whole, self._data, self._at)
        self._at += struct.calcsize(whole)
        return values
