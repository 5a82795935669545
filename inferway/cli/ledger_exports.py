"""Exported ledgers: a folder with a file, or several, for each tenant and day.

    tenant=T/_exported.json                   up to which entry of the tenant's stream they go
    tenant=T/day=2026-11-30/FIRST_LAST.csv    entries that ended on that day, of a batch that goes from FIRST to LAST

A batch is written under other names, brought to disk, renamed, and then `_exported.json` says that it is there: it is
the only truth. Files of a batch that goes beyond it are what a crash has left; readers pass over them, and the next
export deletes them. One export runs at a time, and none while somebody reads.
"""

from __future__ import annotations

import contextlib
import csv
import fcntl
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote, unquote

import msgspec

from inferway.ledger import COLUMNS, FLAGS, TEXTS, VERSION, LedgerEntry, entry_of
from inferway.usage import day_at, day_of

Format = Literal["csv", "parquet"]

_TENANT, _DAY = "tenant=", "day="
_STATE = "_exported.json"
_UNFINISHED = ".unfinished"
_STREAM_ID = "stream_id"


class ExportError(Exception):
    """A sentence that says why nothing more could be read or written."""


class StreamId(NamedTuple):
    """Of an entry in a stream; they grow."""

    ms: int
    sequence: int

    @classmethod
    def of(cls, text: str) -> StreamId:
        ms, _, sequence = text.partition("-")
        return cls(int(ms), int(sequence or 0))

    def __str__(self) -> str:
        return f"{self.ms}-{self.sequence}"


class Streamed(NamedTuple):
    id: StreamId
    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class State:
    """`entries` exported so far, up to `last`; None: nothing yet."""

    last: StreamId | None = None
    entries: int = 0


@contextlib.contextmanager
def locked(folder: Path, *, exclusively: bool) -> Iterator[None]:
    """Whoever writes is alone. Raises ExportError when somebody else writes, or reads while we want to write."""
    flags = os.O_RDWR | os.O_CREAT if exclusively else os.O_RDONLY
    try:
        fd = os.open(folder / ".lock", flags | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        # Nothing has been exported to it.
        yield
        return
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusively else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ExportError(f"{folder} is in use by another export or usage") from None
    finally:
        os.close(fd)


def tenants_in(folder: Path) -> list[str]:
    return sorted(unquote(path.name.removeprefix(_TENANT)) for path in folder.glob(f"{_TENANT}*"))


class TenantExport:
    """What a folder holds of one tenant."""

    def __init__(self, folder: Path, tenant: str) -> None:
        self._folder = folder / f"{_TENANT}{quote(tenant, safe='')}"

    def state(self) -> State:
        """Raises ExportError."""
        try:
            raw = msgspec.json.decode((self._folder / _STATE).read_bytes())
            return State(StreamId.of(raw["last"]), int(raw["entries"]))
        except FileNotFoundError:
            return State()
        except (ValueError, LookupError, TypeError, OSError) as error:
            raise ExportError(f"{self._folder / _STATE} cannot be read: {error}") from None

    def entries(self, since_ms: int | None = None, until_ms: int | None = None) -> Iterator[LedgerEntry]:
        """Those of the days that these times touch. Raises ExportError, UnknownEntry."""
        last = self.state().last
        first_day = day_at(since_ms) if since_ms is not None else ""
        last_day = day_at(until_ms) if until_ms is not None else "9999-99-99"
        for path in sorted(self._folder.glob(f"{_DAY}*/*")):
            day = path.parent.name.removeprefix(_DAY)
            if first_day <= day <= last_day and last is not None and not _is_beyond(path, last):
                yield from _READERS[path.suffix](path)

    def write(self, batch: Sequence[Streamed], file_format: Format) -> State:
        """Keep one more batch, in order, behind those that there are. Atomic; returns what there is then."""
        state = self.state()
        assert state.last is None or batch[0].id > state.last, "in order"
        by_day = defaultdict(list)
        for each in batch:
            by_day[day_of(each.entry)].append(each)
        name = f"{batch[0].id}_{batch[-1].id}.{file_format}"
        for day, streamed in by_day.items():
            folder = self._folder / f"{_DAY}{day}"
            folder.mkdir(parents=True, exist_ok=True)
            _write_whole(folder / name, lambda path, rows=streamed: _WRITERS[file_format](path, rows))  # type: ignore[misc]
        _sync(self._folder)
        after = State(batch[-1].id, state.entries + len(batch))
        raw = msgspec.json.encode({"version": VERSION, "last": str(after.last), "entries": after.entries})
        _write_whole(self._folder / _STATE, lambda path: path.write_bytes(raw))
        return after

    def clean(self) -> int:
        """Delete what a crash has left; how many files that were."""
        last = self.state().last
        left = [
            path
            for path in self._folder.glob(f"{_DAY}*/*")
            if path.suffix == _UNFINISHED or last is None or _is_beyond(path, last)
        ]
        for path in left:
            path.unlink()
        return len(left)


def _is_beyond(path: Path, last: StreamId) -> bool:
    """Whether a file belongs to a batch of which nothing says that it is whole."""
    try:
        return path.suffix not in _READERS or StreamId.of(path.stem.partition("_")[2]) > last
    except ValueError:
        return True


def _write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """The file is there as a whole, on disk, or not at all."""
    unfinished = path.with_name(path.name + _UNFINISHED)
    write(unfinished)
    _sync(unfinished)
    unfinished.rename(path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# Formats.


def _write_csv(path: Path, rows: Sequence[Streamed]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((*COLUMNS, _STREAM_ID))
        for stream_id, entry in rows:
            record = dict(entry.record()) | {"finished_ms": str(entry.finished_ms)}
            writer.writerow((*(record[name] for name in COLUMNS), stream_id))


def _read_csv(path: Path) -> Iterator[LedgerEntry]:
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            yield entry_of({"v": str(VERSION), **row})


def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise ExportError("Parquet needs the package pyarrow (the extra `export`); csv needs nothing") from None
    return pyarrow


def _write_parquet(path: Path, rows: Sequence[Streamed]) -> None:
    arrow = _arrow()
    texts, flags = dict.fromkeys(TEXTS, arrow.string()), dict.fromkeys(FLAGS, arrow.bool_())
    types = {**dict.fromkeys(COLUMNS, arrow.int64()), **texts, **flags}
    columns = {name: arrow.array([getattr(entry, name) for _, entry in rows], types[name]) for name in COLUMNS}
    columns[_STREAM_ID] = arrow.array([str(stream_id) for stream_id, _ in rows], arrow.string())
    arrow.parquet.write_table(arrow.table(columns), path, compression="zstd")


def _read_parquet(path: Path) -> Iterator[LedgerEntry]:
    # Not as a part of a data set: the folders' names would become columns.
    for batch in _arrow().parquet.ParquetFile(path).iter_batches():
        for row in batch.to_pylist():
            yield LedgerEntry(**{name: row[name] for name in COLUMNS if name in row})


_WRITERS: Mapping[str, Callable[[Path, Sequence[Streamed]], None]] = {"csv": _write_csv, "parquet": _write_parquet}
_READERS: Mapping[str, Callable[[Path], Iterator[LedgerEntry]]] = {".csv": _read_csv, ".parquet": _read_parquet}
