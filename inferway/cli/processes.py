"""Carries out what the supervisor decides: starts real processes, signals them, reports how they end."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from inferway.cli.core.log_lines import telling
from inferway.cli.core.supervisor import Action, Failure, Finish, Kill, Report, Start, Supervisor, Terminate
from inferway.tether import tethered

# The status that a shell gives to a command that could not be executed.
_NOT_EXECUTED = 127


@dataclass(frozen=True, slots=True)
class Exited:
    name: str
    status: int


@dataclass(frozen=True, slots=True)
class StopAsked:
    """By a signal, or by a task that watches for one."""


@dataclass(frozen=True, slots=True)
class Served:
    """The whole has answered for the first time."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    failure: Failure


Happening = Exited | StopAsked | Served | GivenUp


class ProcessGroup:
    """The processes of one supervisor, each with its output in `logs`/<name>.log.

    `commands` gives the argument list of each name, run in `directory` with `environ`. `say` gets the lines for the
    terminal; `on_start` is called after each start of a process.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        commands: Mapping[str, Sequence[str]],
        *,
        directory: Path,
        environ: Mapping[str, str],
        logs: Path,
        say: Callable[[str], None],
        on_start: Callable[[str], None] = lambda name: None,
    ) -> None:
        self._supervisor = supervisor
        self._commands = commands
        self._directory = directory
        self._environ = environ
        self._logs = logs
        self._say = say
        self._on_start = on_start
        self._happenings: asyncio.Queue[Happening] = asyncio.Queue()
        self._running: dict[str, asyncio.subprocess.Process] = {}

    def tell(self, happening: Happening) -> None:
        """Something happened that the supervisor must know; may be called from a signal handler of the loop."""
        self._happenings.put_nowait(happening)

    async def run(self) -> Failure | None:
        """Until everything has stopped; returns why it had to, None when it was asked to.

        No process outlives this call, also when it is cancelled.
        """
        try:
            async with asyncio.TaskGroup() as waiters:
                actions = self._supervisor.begin(now=time.monotonic())
                while True:
                    for action in actions:
                        if isinstance(action, Finish):
                            return action.failed
                        await self._carry_out(action, waiters)
                    actions = await self._next_actions()
        finally:
            await self._kill_all()

    async def _kill_all(self) -> None:
        """Returns when each has been reaped, so that nothing of them is left to the event loop."""
        for name in self._running:
            self._signal(name, signal.SIGKILL)
        for process in self._running.values():
            await process.wait()

    async def _next_actions(self) -> list[Action]:
        deadline = self._supervisor.next_deadline()
        wait_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(wait_s):
                happening = await self._happenings.get()
        except TimeoutError:
            return self._supervisor.tick(now=time.monotonic())
        now = time.monotonic()
        match happening:
            case Exited(name, status):
                return self._supervisor.exited(name, status, now=now)
            case StopAsked():
                return self._supervisor.stop(now=now)
            case Served():
                self._supervisor.served()
                return []
            case GivenUp(failure):
                return self._supervisor.give_up(failure, now=now)

    async def _carry_out(self, action: Action, waiters: asyncio.TaskGroup) -> None:
        match action:
            case Start(name):
                await self._start(name, waiters)
            case Terminate(name):
                self._signal(name, signal.SIGTERM)
            case Kill(name):
                self._signal(name, signal.SIGKILL)
            case Report(text):
                self._say(text)

    async def _start(self, name: str, waiters: asyncio.TaskGroup) -> None:
        # Its own session: Ctrl-C at the terminal reaches only this process, which stops the others in order.
        with log_path(self._logs, name).open("ab") as log:
            try:
                process = await asyncio.create_subprocess_exec(
                    *tethered(self._commands[name]),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    env=self._environ,
                    start_new_session=True,
                )
            except OSError as error:
                log.write(f"{error}\n".encode())
                self.tell(Exited(name, _NOT_EXECUTED))
                return
        self._running[name] = process
        waiters.create_task(self._wait(name, process))
        self._on_start(name)

    async def _wait(self, name: str, process: asyncio.subprocess.Process) -> None:
        status = await process.wait()
        # What a dead parent leaves behind must not keep its port.
        self._signal(name, signal.SIGKILL)
        del self._running[name]
        self.tell(Exited(name, status))

    def _signal(self, name: str, number: signal.Signals) -> None:
        """SIGTERM goes to the process, which tells its own; SIGKILL to all that it has started."""
        process = self._running.get(name)
        if process is None:
            return
        try:
            if number is signal.SIGKILL:
                os.killpg(process.pid, number)
            else:
                os.kill(process.pid, number)
        except ProcessLookupError:
            pass


def log_path(logs: Path, name: str) -> Path:
    return logs / f"{name}.log"


def last_lines(logs: Path, name: str, count: int = 8) -> list[str]:
    """The end of a process's output, for a person who wonders why it ended."""
    try:
        text = log_path(logs, name).read_text(errors="replace")
    except OSError:
        return []
    return telling(text.splitlines(), count)
