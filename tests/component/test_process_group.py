"""`inferway up` with stand-ins for the services: real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil
import pytest

from inferway.cli.core.supervisor import Failure, Policy, Supervisor
from inferway.cli.processes import ProcessGroup, Served, StopAsked, last_lines
from tests.support.waiting import until

CHECKOUT = Path(__file__).parents[2]
POLICY = Policy(first_pause_s=0.05, longest_pause_s=0.1, stop_grace_s=5.0)

# Appends "<name> starts <pid>" to a journal, then "<name> ends" when it is asked to finish.
STAND_IN = """
import os, signal, sys, time
name, journal = sys.argv[1:]
def write(text):
    with open(journal, "a") as file:
        print(name, text, file=file)
def finish(number, frame):
    write("ends")
    sys.exit(0)
signal.signal(signal.SIGTERM, finish)
write(f"starts {os.getpid()}")
print(f"{name} is here", flush=True)
while True:
    time.sleep(0.05)  # a signal that comes just before signal.pause() would wait for the next one
"""
STUBBORN = STAND_IN.replace("signal.signal(signal.SIGTERM, finish)", "signal.signal(signal.SIGTERM, signal.SIG_IGN)")
CANNOT_START = "import sys; print('no such model: gpt-0', file=sys.stderr); sys.exit(3)"
LEAVES_A_CHILD_BEHIND = (
    "import subprocess\nsubprocess.Popen([sys.executable, '-I', '-S', '-c', STAND_IN, name + '-child', journal])"
)


class Mesh:
    """A process group of stand-ins and what it did."""

    def __init__(self, folder: Path, programs: Mapping[str, str], policy: Policy = POLICY) -> None:
        self.logs = folder
        self.journal = folder / "journal"
        self.journal.touch()
        self.said: list[str] = []
        self.group = ProcessGroup(
            Supervisor(tuple(programs), policy),
            {
                name: (sys.executable, "-I", "-S", "-c", program, name, str(self.journal))
                for name, program in programs.items()
            },
            directory=folder,
            environ=os.environ,
            logs=folder,
            say=self.said.append,
        )

    def lines(self) -> list[str]:
        return self.journal.read_text().splitlines()

    def pid(self, name: str) -> int:
        """Of the last start of `name`."""
        return int([line.split()[2] for line in self.lines() if line.startswith(f"{name} starts")][-1])

    def starts(self, name: str) -> int:
        return sum(line.startswith(f"{name} starts") for line in self.lines())


def is_alive(pid: int) -> bool:
    """A zombie that nobody has reaped yet does not count."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def mesh(tmp_path: Path) -> Mesh:
    return Mesh(tmp_path, dict.fromkeys(("worker", "router", "gateway"), STAND_IN))


async def test_all_start_and_stop_in_order(mesh: Mesh) -> None:
    """Asked to stop, the group ends the gateway first and the worker last, and reports no failure."""
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mesh.group.run())
        await until(lambda: len(mesh.lines()) == 3)
        mesh.group.tell(StopAsked())

    assert running.result() is None
    assert mesh.lines()[3:] == ["gateway ends", "router ends", "worker ends"]
    assert last_lines(mesh.logs, "router") == ["router is here"]
    assert mesh.said == []


async def test_a_killed_process_is_started_again(mesh: Mesh) -> None:
    """A process that is killed comes back by itself, with one line about it."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(mesh.group.run())
        await until(lambda: len(mesh.lines()) == 3)
        mesh.group.tell(Served())
        os.kill(mesh.pid("router"), signal.SIGKILL)
        await until(lambda: mesh.starts("router") == 2)
        mesh.group.tell(StopAsked())

    assert mesh.said == ["router was killed by SIGKILL; starting it again in 0.05 s"]
    assert mesh.lines()[-1] == "worker ends"


@pytest.mark.parametrize(
    ("program", "sentence", "log"),
    [
        (CANNOT_START, "worker cannot start: it exited with status 3", "no such model: gpt-0"),
        ("import nowhere", "worker cannot start: it exited with status 1", "ModuleNotFoundError"),
    ],
)
async def test_what_cannot_start_ends_all(tmp_path: Path, program: str, sentence: str, log: str) -> None:
    """A process that exits before anything was served ends the others, and its last lines are at hand."""
    mesh = Mesh(tmp_path, {"worker": program, "router": STAND_IN})

    failure = await mesh.group.run()

    assert failure == Failure("worker", sentence)
    assert log in last_lines(mesh.logs, "worker")[-1]
    assert not mesh.lines() or not is_alive(mesh.pid("router"))


async def test_a_command_that_does_not_exist_is_a_failure(tmp_path: Path) -> None:
    """What cannot even be executed is explained by one line of its log."""
    group = ProcessGroup(
        Supervisor(["worker"], POLICY),
        {"worker": (str(tmp_path / "nowhere"),)},
        directory=tmp_path,
        environ={},
        logs=tmp_path,
        say=lambda text: None,
    )

    assert await group.run() == Failure("worker", "worker cannot start: it exited with status 1")
    assert last_lines(tmp_path, "worker") == [f"{tmp_path / 'nowhere'}: No such file or directory"]


async def test_a_stubborn_process_is_killed(tmp_path: Path) -> None:
    """A process that ignores the request to finish holds the stop up for its grace and no longer."""
    mesh = Mesh(tmp_path, {"worker": STUBBORN}, Policy(stop_grace_s=0.2))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mesh.group.run())
        await until(lambda: len(mesh.lines()) == 1)
        mesh.group.tell(StopAsked())

    assert running.result() is None
    assert mesh.said == ["worker did not finish within 0.2 s and was killed"]


async def test_a_second_request_ends_at_once(tmp_path: Path) -> None:
    """Asked twice, the group waits for nobody."""
    mesh = Mesh(tmp_path, {"worker": STUBBORN, "gateway": STUBBORN}, Policy(stop_grace_s=600.0))
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(mesh.group.run())
        await until(lambda: len(mesh.lines()) == 2)
        mesh.group.tell(StopAsked())
        mesh.group.tell(StopAsked())

    assert running.result() is None
    assert not is_alive(mesh.pid("worker"))
    assert not is_alive(mesh.pid("gateway"))


async def test_what_a_dead_process_leaves_behind_is_ended(tmp_path: Path) -> None:
    """Children of a process that was killed do not keep running beside its successor."""
    program = STAND_IN.replace("while True:", f"STAND_IN = {STAND_IN!r}\n{LEAVES_A_CHILD_BEHIND}\nwhile True:")
    mesh = Mesh(tmp_path, {"gateway": program})
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(mesh.group.run())
        await until(lambda: mesh.starts("gateway-child") == 1)
        left_behind = mesh.pid("gateway-child")
        os.kill(mesh.pid("gateway"), signal.SIGKILL)
        await until(lambda: mesh.starts("gateway") == 2)
        await until(lambda: not is_alive(left_behind))
        await until(lambda: mesh.starts("gateway-child") == 2)
        mesh.group.tell(StopAsked())


async def test_nothing_outlives_a_cancelled_group(mesh: Mesh) -> None:
    """When the caller's own task ends, so do the processes."""
    task = asyncio.create_task(mesh.group.run())
    await until(lambda: len(mesh.lines()) == 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(psutil.pid_exists(mesh.pid(name)) for name in ("worker", "router", "gateway"))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
async def test_nothing_outlives_a_killed_parent(tmp_path: Path) -> None:
    """When the supervisor's process is killed with SIGKILL, its children are asked to finish by the system."""
    parent = f"""
import asyncio, os, sys
from pathlib import Path
from inferway.cli.core.supervisor import Supervisor
from inferway.cli.processes import ProcessGroup
folder = Path({str(tmp_path)!r})
command = (sys.executable, "-I", "-S", "-c", {STAND_IN!r}, "worker", str(folder / "journal"))
group = ProcessGroup(Supervisor(["worker"]), {{"worker": command}}, directory=folder, environ=os.environ,
                     logs=folder, say=print)
asyncio.run(group.run())
"""
    journal = tmp_path / "journal"
    journal.touch()
    process = subprocess.Popen([sys.executable, "-c", parent], cwd=CHECKOUT)
    try:
        await until(lambda: journal.read_text().startswith("worker starts"))
    finally:
        process.kill()
        process.wait()
    await until(lambda: journal.read_text().endswith("worker ends\n"))
