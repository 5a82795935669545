"""Entries of the ledger as text, and the lines of the files that hold them."""

from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferway.checked_lines import checked, lines_of
from inferway.ledger import (
    COLUMNS,
    FLAGS,
    TEXTS,
    LedgerEntry,
    UnknownEntry,
    entry_of,
    stream_key,
    stream_pattern,
    tenant_of,
)

NUMBERS = st.integers(0, 10**15)
OPTIONAL = {"priority", "received_ms", "first_token_ms"}
ENTRIES = st.builds(
    LedgerEntry,
    **{name: st.text(min_size=name in ("reservation_id", "tenant", "outcome")) for name in TEXTS},
    **{name: st.none() | NUMBERS if name in OPTIONAL else NUMBERS for name in set(COLUMNS) - TEXTS - FLAGS},
    is_stream=st.none() | st.booleans(),
)


@given(ENTRIES)
def test_an_entry_is_read_as_it_was_written(entry: LedgerEntry) -> None:
    """Whatever its values are, absent ones stay absent; the end is added by whoever books it."""
    record = dict(entry.record())
    assert "finished_ms" not in record
    assert entry_of({**record, "finished_ms": str(entry.finished_ms)}) == entry


def test_names_come_in_one_order_whatever_is_known() -> None:
    """A stream stores the names of neighbours once only where they are the same."""
    short = LedgerEntry(reservation_id="r", tenant="t", outcome="ok")
    long = LedgerEntry(reservation_id="r", tenant="t", outcome="ok", worker="w", priority=3, is_stream=True)
    assert [name for name, _ in short.record()] == [name for name, _ in long.record()]


def test_names_of_later_versions_are_passed_over() -> None:
    """What a reader does not know it ignores; what it cannot understand it refuses, with a reason."""
    record = {"v": "1", "reservation_id": "r", "tenant": "t", "outcome": "ok", "finished_ms": "5", "colour": "red"}
    assert entry_of(record) == LedgerEntry(reservation_id="r", tenant="t", outcome="ok", finished_ms=5)
    for change, problem in (
        ({"v": "2"}, "its version is '2', not 1"),
        ({"outcome": ""}, "it has no outcome"),
        ({"prompt_tokens": "many"}, "its prompt_tokens is no number"),
    ):
        with pytest.raises(UnknownEntry, match=problem):
            entry_of(record | change)


@pytest.mark.parametrize("prefix", ["inferway", "mesh[1]*"])
def test_streams_are_found_by_their_names(prefix: str) -> None:
    """The pattern finds the streams of a prefix, and a name tells its tenant."""
    key = stream_key(prefix, "acme")
    assert key == f"{prefix}:{{acme}}:ledger"
    assert tenant_of(prefix, key) == "acme"
    assert tenant_of(prefix, f"{prefix}:{{acme}}:books") is None
    assert tenant_of("other", key) is None
    if prefix == "inferway":
        assert fnmatch.fnmatchcase(key, stream_pattern(prefix))
    else:
        assert stream_pattern(prefix) == r"mesh\[1\]\*:{*}:ledger"


@given(st.lists(st.binary().map(lambda raw: raw.replace(b"\n", b"")), max_size=5), st.data())
def test_a_torn_line_is_none_and_a_damaged_one_is_known(payloads: list[bytes], data: st.DataObject) -> None:
    """Cut anywhere, the lines before the cut are whole; with a byte changed, no line says anything else than it did."""
    whole = b"".join(map(checked, payloads))
    cut = data.draw(st.integers(0, len(whole)))
    found = [line.payload for line in lines_of(whole[:cut])]
    assert found == payloads[: len(found)]
    assert sum(len(checked(payload)) for payload in found) <= cut
    if whole:
        at = data.draw(st.integers(0, len(whole) - 1))
        other = data.draw(st.integers(0, 255).filter(lambda byte: byte != whole[at]))
        changed = whole[:at] + bytes([other]) + whole[at + 1 :]
        read = [line.payload for line in lines_of(changed) if line.payload is not None]
        assert len(read) < len(payloads)
        rest = iter(payloads)
        assert all(any(payload == each for each in rest) for payload in read), "in order, nothing made up"
