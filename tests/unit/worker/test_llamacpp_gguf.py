"""The reader of GGUF metadata, on files made here."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from worker.engines.llamacpp.gguf import read_metadata


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def file(*pairs: tuple[str, int, bytes], version: int = 3) -> bytes:
    body = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in pairs)
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(pairs)) + body


def test_values(tmp_path: Path) -> None:
    """Scalars, strings and arrays of both come back under their names."""
    path = tmp_path / "a.gguf"
    path.write_bytes(
        file(
            ("small", 0, struct.pack("<B", 200)),
            ("negative", 5, struct.pack("<i", -5)),
            ("flag", 7, struct.pack("<?", True)),
            ("real", 12, struct.pack("<d", 0.5)),
            ("large", 10, struct.pack("<Q", 2**60)),
            ("text", 8, text("Ünïcödé")),
            ("numbers", 9, struct.pack("<IQ3i", 5, 3, 1, -2, 3)),
            ("texts", 9, struct.pack("<IQ", 8, 2) + text("a") + text("")),
            ("nested", 9, struct.pack("<IQ", 9, 1) + struct.pack("<IQ2H", 2, 2, 7, 8)),
        )
    )
    assert read_metadata(path) == {
        "small": 200,
        "negative": -5,
        "flag": True,
        "real": 0.5,
        "large": 2**60,
        "text": "Ünïcödé",
        "numbers": [1, -2, 3],
        "texts": ["a", ""],
        "nested": [[7, 8]],
    }


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty"),
        (b"PK\x03\x04 and more", "not a GGUF file"),
        (b"GGUF", "damaged"),
        (file(version=9), "damaged"),
        (file(("text", 8, struct.pack("<Q", 2**40) + b"abc")), "damaged"),
        (file(("texts", 9, struct.pack("<IQ", 8, 2**50))), "damaged"),
        (file(("odd", 77, b"1234")), "damaged"),
    ],
    ids=["empty", "another kind", "cut after the magic", "version", "string too long", "array too long", "type"],
)
def test_no_gguf(tmp_path: Path, data: bytes, complaint: str) -> None:
    """What is no readable GGUF file is refused with its path and what is wrong."""
    path = tmp_path / "broken.gguf"
    path.write_bytes(data)
    with pytest.raises(OSError, match=complaint) as caught:
        read_metadata(path)
    assert str(path) in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    """A missing file is the system's own error."""
    with pytest.raises(FileNotFoundError):
        read_metadata(tmp_path / "none.gguf")
