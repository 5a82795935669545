"""Real processes of the mesh for tests and benchmarks: started on free ports, found by their "listening" line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 20.0


class Process:
    """`python -m MODULE ARGS...` in the checkout, its JSON log kept in a file."""

    def __init__(self, module: str, *args: str, env: Mapping[str, str] | None = None, wait: bool = True) -> None:
        self.module, self._args, self._env = module, args, env
        self._log_file = tempfile.NamedTemporaryFile("w+", prefix=f"{module}-", suffix=".log", delete=False)  # noqa: SIM115
        self.popen = subprocess.Popen(
            [sys.executable, "-m", module, *args],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdout=self._log_file,
            stderr=self._log_file,
        )
        self.address = self.ops_address = ""
        if wait:
            self.wait_listening()

    def wait_listening(self) -> None:
        event = self.wait_for_event("listening")
        self.address, self.ops_address = event["address"], event.get("ops_address", "")

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
        lines = []
        for line in self.log_text().splitlines():
            try:
                parsed = json.loads(line)
            except ValueError:
                continue
            if isinstance(parsed, dict) and (name is None or parsed.get("event") == name):
                lines.append(parsed)
        return lines

    def wait_for_event(self, name: str, timeout_s: float = START_TIMEOUT_S) -> dict[str, Any]:
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if events := self.events(name):
                return events[0]
            if self.popen.poll() is not None:
                raise AssertionError(f"{self.module} ended with {self.popen.returncode}:\n{self.log_text()[-4000:]}")
            time.sleep(0.02)
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


def http_json(url: str, timeout_s: float = 5.0) -> tuple[int, Any]:
    """Status and parsed body of a GET, error statuses included."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def wait_until(condition: Any, timeout_s: float, what: str) -> None:
    """Poll `condition` until it is true."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s} s: {what}")
        time.sleep(0.02)


class Mesh:
    """Workers, a router and a gateway, as one installation. Everything is a real process on loopback."""

    def __init__(
        self,
        *,
        workers: Sequence[Sequence[str]] = (("--engine", "scripted"),),
        router_args: Sequence[str] = (),
        gateway_args: Sequence[str] = (),
        with_router: bool = True,
    ) -> None:
        self._worker_args = workers
        self._router_args = router_args
        self._gateway_args = gateway_args
        self._with_router = with_router
        self.workers: list[Process] = []
        self.router: Process | None = None
        self.gateway: Process

    def __enter__(self) -> Mesh:
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _start(self) -> None:
        self.workers = [start_worker(*args) for args in self._worker_args]
        addresses = ",".join(worker.address for worker in self.workers)
        flags = ["--workers", addresses]
        if self._with_router:
            self.router = Process(
                "router",
                "--listen",
                "127.0.0.1:0",
                "--ops-listen",
                "127.0.0.1:0",
                "--workers",
                addresses,
                *self._router_args,
            )
            flags = ["--routers", self.router.address]
        self.gateway = Process("gateway", "--listen", "127.0.0.1:0", *flags, *self._gateway_args)
        self.wait_ready()

    def wait_ready(self) -> None:
        wait_until(lambda: http_json(self.url("/health/ready"))[0] == 200, START_TIMEOUT_S, "gateway ready")

    def url(self, path: str = "") -> str:
        return f"http://{self.gateway.address}{path}"

    def processes(self) -> list[Process]:
        found = [getattr(self, "gateway", None), self.router, *self.workers]
        return [process for process in found if process is not None]

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        threads = [threading.Thread(target=process.__exit__) for process in self.processes()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def start_worker(*args: str, listen: str = "127.0.0.1:0") -> Process:
    return Process("worker", "--listen", listen, "--ops-listen", "127.0.0.1:0", *args)
