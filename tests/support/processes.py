"""Real processes of the mesh for tests and benchmarks: started on free ports, found by their "listening" line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.support.json_lines import JsonLines
from tests.support.probes import http_json, metric
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class Process:
    """`PYTHON -m MODULE ARGS...` in the checkout, its JSON log kept in a file."""

    def __init__(
        self,
        module: str,
        *args: str,
        python: str | Path = sys.executable,
        env: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> None:
        self.module, self._args, self._env = module, args, env
        self._log_file = tempfile.NamedTemporaryFile("w+", prefix=f"{module}-", suffix=".log", delete=False)  # noqa: SIM115
        self._log_lines = JsonLines(Path(self._log_file.name))
        self.popen = subprocess.Popen(
            [python, "-m", module, *args],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdout=self._log_file,
            stderr=self._log_file,
        )
        self.address = self.ops_address = self.admin_address = ""
        if wait:
            try:
                self.wait_listening()
            except BaseException:
                self.__exit__()
                raise

    def wait_listening(self) -> None:
        event = self.wait_for_event("listening")
        self.address, self.ops_address = event["address"], event.get("ops_address", "")
        self.admin_address = event.get("admin_address", "")

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def port(self) -> int:
        return int(self.address.rsplit(":", 1)[1])

    def log_text(self) -> str:
        return Path(self._log_file.name).read_text()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        """The log's JSON lines, those of one event if named."""
        lines = self._log_lines.read()
        return [line for line in lines if name is None or line.get("event") == name]

    def wait_for_event(self, name: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        """The first log line of this event. Raises AssertionError, with the log, when the process ends without it."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if events := self.events(name):
                return events[0]
            if self.popen.poll() is not None:
                raise AssertionError(f"{self.module} ended with {self.popen.returncode}:\n{self.log_text()[-4000:]}")
            time.sleep(0.01)
        raise AssertionError(f"{self.module} did not log {name!r} in {timeout_s} s:\n{self.log_text()[-4000:]}")

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()

    def stop(self) -> int:
        """SIGTERM, and SIGKILL when it takes too long; the exit status."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            try:
                self.popen.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.popen.kill()
        return self.popen.wait()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_exc: object) -> None:
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGTERM)
            time.sleep(0.1)  # two signals at once would count as one
            self.popen.send_signal(signal.SIGTERM)  # the second one: no drain
        try:
            self.popen.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
        self._log_file.close()
        Path(self._log_file.name).unlink(missing_ok=True)


class Mesh:
    """Workers, routers and gateways, one of each unless told otherwise. Everything is a real process on loopback.

    `router` and `gateway` are the first ones.

    `router_workers` makes the router's --workers of their addresses. `python` is the interpreter of all of it,
    `worker_python` that of the workers, whose engine may need an environment of its own; `start_timeout_s` is how long
    they may take to load their models.
    """

    def __init__(
        self,
        *,
        workers: Sequence[Sequence[str]] = (("--engine", "scripted"),),
        router_args: Sequence[str] = (),
        gateway_args: Sequence[str] = (),
        with_router: bool = True,
        num_routers: int = 1,
        num_gateways: int = 1,
        router_workers: Callable[[Sequence[str]], str] = ",".join,
        python: str | Path = sys.executable,
        worker_python: str | Path | None = None,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self._worker_args = workers
        self._python = python
        self._worker_python = worker_python or python
        self._start_timeout_s = start_timeout_s
        self._router_args = router_args
        self._gateway_args = gateway_args
        self._num_routers = num_routers if with_router else 0
        self._num_gateways = num_gateways
        self._router_workers = router_workers
        self.workers: list[Process] = []
        self.routers: list[Process] = []
        self.gateways: list[Process] = []
        # Killed, and followed by another at the same address; their logs are still of interest.
        self._predecessors: list[Process] = []

    def __enter__(self) -> Mesh:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        self.workers = [start_worker(*args, python=self._worker_python) for args in self._worker_args]
        flags = ["--workers", ",".join(self._worker_addresses())]
        for _ in range(self._num_routers):
            self.routers.append(self._start_router("127.0.0.1:0"))
            flags = ["--routers", ",".join(router.address for router in self.routers)]
        flags += ["--listen", "127.0.0.1:0", *self._gateway_args]
        for _ in range(self._num_gateways):
            self.gateways.append(Process("gateway", *flags, python=self._python))
        self.wait_ready()

    @property
    def router(self) -> Process | None:
        return self.routers[0] if self.routers else None

    @property
    def gateway(self) -> Process:
        return self.gateways[0]

    def _worker_addresses(self) -> list[str]:
        return [worker.address for worker in self.workers]

    def _start_router(self, listen: str) -> Process:
        workers = self._router_workers(self._worker_addresses())
        flags = ("--listen", listen, "--ops-listen", "127.0.0.1:0", "--workers", workers)
        return Process("router", *flags, *self._router_args, python=self._python)

    def start_worker_again(self, index: int) -> Process:
        """Follow a worker that was killed: the same flags, the same address."""
        old = self.workers[index]
        assert old.popen.poll() is not None
        self.workers[index] = start_worker(*self._worker_args[index], listen=old.address, python=self._worker_python)
        self._predecessors.append(old)
        return self.workers[index]

    def start_router_again(self, index: int = 0) -> Process:
        """Follow a router that was killed, at the same gRPC address; health and metrics get a new one."""
        old = self.routers[index]
        assert old.popen.poll() is not None
        self.routers[index] = self._start_router(old.address)
        self._predecessors.append(old)
        return self.routers[index]

    def wait_ready(self) -> None:
        """Until each part has found all others; a gateway alone is ready with its first worker."""

        def has_found_all(gateway: Process) -> bool:
            status, state = http_json(f"http://{gateway.address}/health/ready")
            has_its_routers = len(state["routers"]) == len(self.routers)
            return status == 200 and has_its_routers and state["workers"] == len(self.workers)

        def is_whole() -> bool:
            pages = [f"http://{router.ops_address}/health/ready" for router in self.routers]
            return all(http_json(page)[0] == 200 for page in pages) and all(map(has_found_all, self.gateways))

        wait_until(is_whole, self._start_timeout_s, "gateways, routers and all workers have found each other")

    def url(self, path: str = "") -> str:
        return f"http://{self.gateway.address}{path}"

    def processes(self) -> list[Process]:
        """All of this installation, those that were killed included."""
        return [*self.gateways, *self.routers, *self.workers, *self._predecessors]

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        threads = [threading.Thread(target=process.__exit__) for process in self.processes()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def start_worker(*args: str, listen: str = "127.0.0.1:0", python: str | Path = sys.executable) -> Process:
    return Process("worker", "--listen", listen, "--ops-listen", "127.0.0.1:0", *args, python=python)


def engine_load(worker: Process) -> int:
    """Choices at a worker's engine, running and waiting, by its own report."""
    page = f"http://{worker.ops_address}/metrics"
    return int(sum(metric(page, f"inferway_worker_num_requests_{state}") for state in ("running", "waiting")))
