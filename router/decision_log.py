"""The decision log: a file with a JSON line for each request that has left the router, for the simulator.

Lines are made and gathered on the event loop, a few microseconds each, and written by one thread of their own. Between
the two there is a bounded buffer: what a slow or broken disk does not take is lost, counted and told, and no request
waits for it. The file is opened anew when it was moved or removed, so that whoever rotates logs need not say so.

docs/simulator.md describes a line. It holds hashes of the prompt, never text.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from inferway import logs

from .core.records import Record, milliseconds

log = logging.getLogger(__name__)

_GATHER_S = 0.2
# Some ten thousand lines of long prompts.
_BUFFER_BYTES = 32 << 20
# At the end of the process, for a disk that does not answer.
_CLOSE_LIMIT_S = 2.0
_MODE = 0o640
_encode = msgspec.json.Encoder().encode


class DecisionLog:
    """`add` is called on the loop that `run` runs on. `count` is told how many lines were written or lost."""

    def __init__(self, path: str, count: Callable[[str, int], None], *, buffer_bytes: int = _BUFFER_BYTES) -> None:
        self._path = path
        self._file = _File(path)
        self._count = count
        self._buffer_bytes = buffer_bytes
        self._lines: list[bytes] = []
        self._size = 0
        self._lost_in_buffer = 0
        self._is_failing = False
        self._filled = asyncio.Event()
        # Of monotonic seconds, so that lines are as far apart as requests were, whatever becomes of the wall clock.
        self._epoch = time.time() - time.monotonic()
        self._thread = ThreadPoolExecutor(1, "decision-log")

    def add(self, record: Record) -> None:
        """A request is over; its hashes may be forgotten afterwards."""
        line = _encode(_line(record, self._epoch)) + b"\n"
        if self._size + len(line) > self._buffer_bytes:
            self._lost_in_buffer += 1
        else:
            self._lines.append(line)
            self._size += len(line)
        self._filled.set()

    async def run(self) -> None:
        """Write until cancelled; a file that cannot be opened is told at once."""
        await self._flush()
        while True:
            await self._filled.wait()
            await asyncio.sleep(_GATHER_S)
            await self._flush()

    async def close(self) -> None:
        """Write what is left, unless that takes too long."""
        try:
            async with asyncio.timeout(_CLOSE_LIMIT_S):
                if self._filled.is_set():
                    await self._flush()
        except TimeoutError:
            logs.event(log, "decision_log_not_written", level=logging.ERROR, file=self._path)
        self._thread.shutdown(wait=False)

    async def _flush(self) -> None:
        self._filled.clear()
        lines, self._lines, self._size = self._lines, [], 0
        lost, self._lost_in_buffer = self._lost_in_buffer, 0
        problem = f"the disk is too slow for {lost} lines" if lost else ""
        error = await asyncio.get_running_loop().run_in_executor(self._thread, self._file.append, lines)
        if error is not None:
            problem = str(error)
            lost += len(lines)
        elif lines:
            self._count("written", len(lines))
        if lost:
            self._count("lost", lost)
        self._tell(problem)

    def _tell(self, problem: str) -> None:
        """Once when it begins, once when it is over."""
        if problem and not self._is_failing:
            logs.event(log, "decision_log_fails", level=logging.ERROR, file=self._path, error=problem)
        elif self._is_failing and not problem:
            logs.event(log, "decision_log_works_again", file=self._path)
        self._is_failing = bool(problem)


class _File:
    """Belongs to the thread that writes."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fd: int | None = None

    def append(self, lines: list[bytes]) -> OSError | None:
        """Write all lines, if any, or none; returns why none could be."""
        try:
            fd = self._opened()
            data = memoryview(b"".join(lines))
            size = os.fstat(fd).st_size
            try:
                while data:
                    data = data[os.write(fd, data) :]
            except OSError:
                if stat.S_ISREG(os.fstat(fd).st_mode):
                    os.ftruncate(fd, size)  # no half a line
                raise
        except OSError as error:
            return error
        return None

    def _opened(self) -> int:
        if self._fd is not None:
            if self._is_there(self._fd):
                return self._fd
            os.close(self._fd)
            self._fd = None
        # A pipe without a reader is an error, not a wait.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        self._fd = os.open(self._path, flags, _MODE)
        return self._fd

    def _is_there(self, fd: int) -> bool:
        try:
            return os.path.samestat(os.stat(self._path), os.fstat(fd))
        except FileNotFoundError:
            return False


def _line(record: Record, epoch: float) -> dict[str, object]:
    request, dispatch = record.request, record.dispatch
    line: dict[str, object] = {
        "at_ms": round((epoch + request.queued_at) * 1000, 3),
        "request_id": request.request_id,
        "model": request.model,
        "tenant_id": request.tenant_id,
        "priority": request.priority,
        "prompt_tokens": request.prompt_tokens,
        # Of one that was tried elsewhere again, or never ran: null, so that a trace has it once.
        "completion_tokens": record.completion_tokens if record.has_run else None,
        "cached_tokens": None if record.cached_tokens is None else min(record.cached_tokens, request.prompt_tokens),
        "outcome": outcome(record),
        "queue_ms": milliseconds(record.decided_at - request.queued_at),
    }
    if dispatch is not None:
        line |= {
            "worker_id": dispatch.worker_id,
            "predicted_cached_tokens": dispatch.predicted_cached_tokens,
            "predicted_ttft_ms": milliseconds(dispatch.predicted_ttft_s),
            "ttft_ms": None
            if record.first_token_at is None
            else milliseconds(record.first_token_at - record.decided_at),
            "lease_ms": None if record.ended_at is None else milliseconds(record.ended_at - record.decided_at),
        }
    line["block_hashes"] = list(request.block_hashes)
    return line


def outcome(record: Record) -> str:
    """How the lease ended, why there was none, or "unknown" where nobody has said."""
    if record.error is not None:
        return record.error.reason.label
    if record.dispatch is None:
        return "cancelled"
    return record.outcome.value if record.outcome is not None else "unknown"
