"""The ledger of an installation without a store: entries in files of one folder, of which `usage` makes sums."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from inferway import logs
from inferway.checked_lines import checked
from inferway.ledger import LEDGER_SUFFIX

from .store import Booking, Books

log = logging.getLogger(__name__)

# What is kept for a disk that does not take it.
_MAX_UNWRITTEN = 100_000


class FileLedger:
    """Entries appended to a file a day, `DAY.OWNER.ledger`. Files are never deleted."""

    def __init__(self, folder: Path, owner: str, *, clock: Callable[[], float] = time.time) -> None:
        """`owner` is the process's alone, and fit for a file's name. Raises OSError where the folder cannot be made."""
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._owner = owner
        self._clock = clock
        self._unwritten: list[bytes] = []
        self._lock = threading.Lock()

    def write(self, _tenant_id: str, record: Sequence[tuple[str, str]]) -> None:
        """Keep an entry, whose record names its tenant, for the next `flush`."""
        self._unwritten.append(checked(msgspec.json.encode(dict(record))))

    async def flush(self) -> None:
        """Bring everything to disk. What the disk does not take is tried again with the next one."""
        if not self._unwritten:
            return
        lines, self._unwritten = self._unwritten, []
        day = time.strftime("%Y-%m-%d", time.gmtime(self._clock()))
        path = self._folder / f"{day}.{self._owner}{LEDGER_SUFFIX}"
        try:
            # Shielded: a task that is cancelled must not leave it open whether they were written.
            await asyncio.shield(asyncio.to_thread(self._append, path, b"".join(lines)))
        except OSError as error:
            self._unwritten = [*lines, *self._unwritten]
            logs.event(log, "ledger_file_failed", level=logging.ERROR, problem=str(error), entries=len(lines))
            if lost := self._unwritten[_MAX_UNWRITTEN:]:
                del self._unwritten[_MAX_UNWRITTEN:]
                logs.event(log, "ledger_entries_lost", level=logging.ERROR, entries=len(lost))

    def _append(self, path: Path, data: bytes) -> None:
        # One that was cancelled may still be at it.
        with self._lock:
            _append(path, data)


class FiledBooks:
    """Books that give their entries to a ledger of files, flushed before what they book counts as booked."""

    def __init__(self, books: Books, ledger: FileLedger) -> None:
        """`books` write to `ledger`."""
        self._books = books
        self._ledger = ledger

    async def settle_many(self, bookings: Sequence[Booking]) -> Sequence[bool]:
        answers = await self._books.settle_many(bookings)
        await self._ledger.flush()
        return answers


def _append(path: Path, data: bytes) -> None:
    """All of it, on disk, or nothing. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        end = os.lseek(fd, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(data):
                written += os.pwrite(fd, data[written:], end + written)
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(fd, end)
            raise
    finally:
        os.close(fd)
