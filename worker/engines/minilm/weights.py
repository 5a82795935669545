"""Reads a safetensors file: an 8-byte length, a JSON header of names, types and places, then the numbers."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_LENGTH_BYTES = 8
# Far above any header of a model that one would serve on a CPU; a file of another format claims any length.
_MAX_HEADER_BYTES = 16 << 20
_FLOAT_BYTES = 4


def read_weights(path: Path) -> dict[str, NDArray[np.float32]]:
    """The tensors of 32-bit floats by name, as read-only views of the file's pages; those of other types are left out.

    Raises OSError naming the file.
    """
    with path.open("rb") as file:
        if file.seek(0, 2) < _LENGTH_BYTES:
            raise _unreadable(path, "it is too short")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    header_bytes = int.from_bytes(data[:_LENGTH_BYTES], "little")
    begin = _LENGTH_BYTES + header_bytes
    if header_bytes > _MAX_HEADER_BYTES or begin > len(data):
        raise _unreadable(path, f"its header would have {header_bytes} bytes")
    tensors = {}
    try:
        header = json.loads(data[_LENGTH_BYTES:begin])
        header.pop("__metadata__", None)
        for name, entry in header.items():
            if entry["dtype"] != "F32":
                continue
            shape, (first, end) = entry["shape"], entry["data_offsets"]
            count = math.prod(shape)
            if end - first != count * _FLOAT_BYTES or not 0 <= first <= end <= len(data) - begin:
                raise _unreadable(path, f"{name} of shape {shape} is said to be at {first} to {end}")
            tensors[name] = np.frombuffer(data, "<f4", count, begin + first).reshape(shape)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _unreadable(path, "its header cannot be understood") from error
    return tensors


def _unreadable(path: Path, why: str) -> OSError:
    return OSError(f"{path} is not a whole safetensors file: {why}")
