"""The processes that SGLang spawned: watched, and ended with everything that they started."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterable

import psutil

# SIGKILL is carried out at once, except where a driver holds a process in the kernel.
_END_LIMIT_S = 30.0


class Children:
    """Processes of this one, by id. Ended at the latest with the interpreter, which would otherwise wait for them."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = set(pids)
        self._descriptors: list[int] = []
        atexit.register(self.end)

    def watch(self, has_ended: Callable[[int], None]) -> None:
        """`has_ended(pid)` is called on this loop as soon as one of them is gone."""
        loop = asyncio.get_running_loop()
        for pid in self._pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                loop.call_soon(has_ended, pid)
                continue
            self._descriptors.append(descriptor)
            loop.add_reader(descriptor, self._ended, descriptor, pid, has_ended)

    def unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        for descriptor in self._descriptors:
            loop.remove_reader(descriptor)
            os.close(descriptor)
        self._descriptors.clear()

    def end(self) -> None:
        """Kill them and theirs, and wait until they are gone. Blocks."""
        atexit.unregister(self.end)
        for pid in self._pids:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                family = [*process.children(recursive=True), process]
                for member in family:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        member.kill()
        for child in multiprocessing.active_children():
            if child.pid in self._pids:
                child.join(_END_LIMIT_S)
        self._pids.clear()

    def _ended(self, descriptor: int, pid: int, has_ended: Callable[[int], None]) -> None:
        asyncio.get_running_loop().remove_reader(descriptor)
        has_ended(pid)


def spawned() -> set[int]:
    """Ids of all processes that this one has started through multiprocessing and that still run."""
    return {child.pid for child in multiprocessing.active_children() if child.pid is not None}
