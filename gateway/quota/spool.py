"""Settlements on disk while the store is away: files that only grow, each held by one process.

A file is locked as long as its process lives. What a process leaves behind is free, and whoever finds it takes it over:
reads it to its end, and deletes it. What has been given to the store is marked in the file itself, by a line with the
offset up to which that is so; what was given and not yet marked is given again, and the store drops it by its id.

Everything here blocks, and one call at a time is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from inferway import logs
from inferway.checked_lines import checked, lines_of

from ..core.quota.calls import Settlement
from ..core.quota.policy import Bound, Kind

log = logging.getLogger(__name__)

SUFFIX = ".spool"
# A file of which everything is booked is deleted; one this long gets no more, so that that comes to pass.
_SEGMENT_BYTES = 8 << 20
_READ_BYTES = 256 << 10


class Spooled(NamedTuple):
    tenant_id: str
    settlement: Settlement
    # When the request ended, Unix milliseconds: its age is known again whenever it is booked.
    ended_ms: int


class Spool:
    """The files of one process, and those that it has taken over.

    `append` keeps at most `max_bytes` in all; the oldest is never dropped for the newest.
    """

    def __init__(self, folder: Path, owner: str, max_bytes: int) -> None:
        """`owner` is the process's alone, and fit for a file's name. Raises OSError where the folder cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._owner = owner
        self._max_bytes = max_bytes
        self._made = 0
        self._segments: list[_Segment] = []
        # The one that gets what comes next.
        self._open: _Segment | None = None
        self._given: _Segment | None = None

    @property
    def size_bytes(self) -> int:
        return sum(segment.end for segment in self._segments)

    @property
    def is_empty(self) -> bool:
        return not self._segments

    def adopt(self) -> int:
        """Take over the files that belong to no living process; how many there were. Raises OSError."""
        own = {segment.path for segment in self._segments}
        found = [path for path in self._folder.glob(f"*{SUFFIX}") if path not in own]
        taken = [segment for path in sorted(found, key=_written_at) if (segment := _Segment.of_nobody(path))]
        self._segments[:0] = taken
        for segment in taken:
            logs.event(log, "spool_taken_over", file=segment.path.name, bytes=segment.end - segment.read)
            self._drop_if_done(segment)
        return len(taken)

    def append(self, spooled: Sequence[Spooled]) -> int:
        """How many of them, from the first on, are on disk when this returns. Raises OSError where none is."""
        lines = [checked(_encode(_line(each))) for each in spooled]
        room = self._max_bytes - self.size_bytes
        fitting = 0
        while fitting < len(lines) and len(lines[fitting]) <= room:
            room -= len(lines[fitting])
            fitting += 1
        if fitting:
            data = b"".join(lines[:fitting])
            try:
                self._segment().append(data)
            except OSError as error:
                # What the disk has made of that file nobody knows: the next one may be well.
                logs.event(log, "spool_file_failed", level=logging.ERROR, problem=str(error))
                self._forget_open()
                self._segment().append(data)
        return fitting

    def head(self, most: int) -> Sequence[Spooled]:
        """The oldest that have not been booked, in order; empty: there are none. Raises OSError."""
        while self._segments:
            segment = self._segments[0]
            spooled = segment.head(most)
            if spooled:
                self._given = segment
                return spooled
            self._drop_if_done(segment)
        return ()

    def done(self) -> None:
        """What the last `head` returned is booked."""
        assert self._given is not None, "head comes first"
        segment, self._given = self._given, None
        segment.done()
        self._drop_if_done(segment)

    def close(self) -> None:
        """What is still there is free for another process."""
        for segment in self._segments:
            segment.close()
        self._segments.clear()
        self._open = None

    def _segment(self) -> _Segment:
        if self._open is None or self._open.end > _SEGMENT_BYTES:
            self._made += 1
            self._open = _Segment.new(self._folder / f"{self._owner}.{self._made:06d}{SUFFIX}")
            self._segments.append(self._open)
        return self._open

    def _forget_open(self) -> None:
        segment, self._open = self._open, None
        if segment is not None:
            self._drop_if_done(segment)

    def _drop_if_done(self, segment: _Segment) -> None:
        if segment.read < segment.end:
            return
        self._segments.remove(segment)
        if segment is self._open:
            self._open = None
        segment.delete()


class _Segment:
    """One file, locked."""

    def __init__(self, path: Path, fd: int, read: int, end: int) -> None:
        self.path = path
        self._fd = fd
        # What is before it has been booked.
        self.read = read
        # What is behind it is no line of ours: the rest of a write that failed.
        self.end = end
        self._read_next = read

    @classmethod
    def new(cls, path: Path) -> _Segment:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _sync_folder(path.parent)
        except BaseException:
            os.close(fd)
            raise
        return cls(path, fd, 0, 0)

    @classmethod
    def of_nobody(cls, path: Path) -> _Segment | None:
        """The file of a process that is gone; None while there is one that holds it, or when it is gone itself."""
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(fd).st_nlink:
                return cls(path, fd, *_extent(_read(fd, 0, os.fstat(fd).st_size), path.name))
        except BlockingIOError:
            pass
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def append(self, data: bytes) -> None:
        """Raises OSError: then nothing has been appended."""
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(self._fd, data[written:], self.end + written)
            os.fsync(self._fd)
            if not os.fstat(self._fd).st_nlink:
                raise FileNotFoundError(f"{self.path} has been deleted")
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self.end)
            raise
        self.end += len(data)

    def head(self, most: int) -> list[Spooled]:
        found: list[Spooled] = []
        size = _READ_BYTES
        self._read_next = self.read
        while not found and self._read_next < self.end:
            start = self._read_next
            for payload, cut in lines_of(_read(self._fd, start, min(size, self.end - start))):
                self._read_next = start + cut
                if payload is None:
                    logs.event(log, "spool_line_damaged", level=logging.ERROR, file=self.path.name, behind=start + cut)
                elif (line := _decoded(payload)) is not None:
                    found.append(line)
                    if len(found) == most:
                        break
            if self._read_next == start:
                if start + size >= self.end:
                    break
                size *= 2
        if not found:
            self.read = self.end
        return found

    def done(self) -> None:
        self.read = self._read_next
        if self.read < self.end:
            # Where it cannot be written, what has been booked is given to the store again after a crash.
            with contextlib.suppress(OSError):
                self.append(checked(_encode(_Done(self.read))))

    def delete(self) -> None:
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            # Whoever finds it finds nothing in it.
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, 0)
        self.close()

    def close(self) -> None:
        os.close(self._fd)


# The lines of a file.


class _Settlement(msgspec.Struct, tag="settlement"):
    tenant: str
    id: str
    # Scope, kind, amount.
    bounds: list[tuple[str, str, int]]
    units: int
    is_request: bool
    ended_ms: int
    part: str
    record: list[tuple[str, str]]


class _Done(msgspec.Struct, tag="done"):
    """What stands before this offset has been booked."""

    offset: int


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Settlement | _Done).decode


def _line(spooled: Spooled) -> _Settlement:
    settlement = spooled.settlement
    return _Settlement(
        tenant=spooled.tenant_id,
        id=settlement.reservation_id,
        bounds=[(bound.scope, bound.kind.value, bound.most) for bound in settlement.bounds],
        units=settlement.units,
        is_request=settlement.is_request,
        ended_ms=spooled.ended_ms,
        part=settlement.part,
        record=list(settlement.record),
    )


def _decoded(payload: bytes) -> Spooled | None:
    """None: it is no settlement."""
    try:
        line = _decode(payload)
        if isinstance(line, _Done):
            return None
        bounds = tuple(Bound(scope, Kind(kind), most) for scope, kind, most in line.bounds)
    except (msgspec.DecodeError, ValueError):
        logs.event(log, "spool_line_unknown", level=logging.ERROR, line=payload.decode(errors="replace"))
        return None
    settlement = Settlement(line.id, bounds, line.units, line.is_request, part=line.part, record=tuple(line.record))
    return Spooled(line.tenant, settlement, line.ended_ms)


def _extent(data: bytes, name: str) -> tuple[int, int]:
    """Up to where a file has been booked, and where its last line ends."""
    read = end = 0
    for payload, end in lines_of(data):  # noqa: B007
        if payload is not None and payload.startswith(b'{"type":"done"'):
            read = max(read, _decode(payload).offset)  # type: ignore[union-attr]
    if end < len(data):
        logs.event(log, "spool_tail_torn", level=logging.WARNING, file=name, bytes=len(data) - end)
    return min(read, end), end


def _read(fd: int, start: int, size: int) -> bytes:
    parts = []
    while size and (part := os.pread(fd, size, start)):
        parts.append(part)
        start, size = start + len(part), size - len(part)
    return b"".join(parts)


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _written_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0
