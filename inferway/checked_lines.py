"""Lines of files that are appended to and may be torn: a checksum, a space, and one JSON value without a line break.

A writer that dies, or a disk that fills, leaves the beginning of a line at the end. It is recognised by its checksum,
and so is whatever else a disk has made of a line; what stands after it is read all the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

_CHECKSUM_SIZE = 8


class Line(NamedTuple):
    """`payload` None: it is damaged. `end` is where the next one begins, counted from the beginning of the data."""

    payload: bytes | None
    end: int


def checked(payload: bytes) -> bytes:
    assert b"\n" not in payload
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


def lines_of(data: bytes) -> Iterator[Line]:
    """Those that end in `data`; a last one without its line break is not among them."""
    start = 0
    while (cut := data.find(b"\n", start)) >= 0:
        yield Line(_payload(data[start:cut]), cut + 1)
        start = cut + 1


def _payload(line: bytes) -> bytes | None:
    checksum, payload = line[:_CHECKSUM_SIZE], line[_CHECKSUM_SIZE + 1 :]
    is_whole = line[_CHECKSUM_SIZE : _CHECKSUM_SIZE + 1] == b" " and checksum == b"%08x" % zlib.crc32(payload)
    return payload if is_whole else None
