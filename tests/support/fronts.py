"""Real proxies in front of gateways, as `python -m inferway front` configures and starts them."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pytest

from inferway.cli.front import find
from inferway.cli.ports import free_ports
from inferway.config import load
from inferway.front.nginx import nginx_conf
from inferway.front.settings import PROXIES, FrontConfig, Proxy
from tests.support.processes import START_TIMEOUT_S, Process
from tests.support.waiting import wait_until

__all__ = ["PROXIES", "Front", "Proxy", "need"]


def need(*proxies: Proxy) -> None:
    """Skip the test where one of them is not installed."""
    for proxy in proxies:
        if find(proxy, os.environ) is None:
            pytest.skip(f"{proxy} is not installed: make setup setup-nginx brings it where it may")


class Front:
    """One proxy, listening when the block is entered."""

    def __init__(self, proxy: Proxy, folder: Path, gateways: Sequence[str], *flags: str) -> None:
        self.proxy = proxy
        self.address = f"127.0.0.1:{free_ports({'front': 0})['front']}"
        self._folder = folder / self.address.rpartition(":")[2]
        self._flags = ("--listen", self.address, "--processes", "1", *flags)
        run = ("--run", "--state-dir", str(self._folder), *self._with(gateways))
        self.process = Process("inferway", "front", proxy, *run, wait=False)

    def _with(self, gateways: Sequence[str]) -> tuple[str, ...]:
        return ("--gateways", ",".join(gateways), *self._flags)

    def __enter__(self) -> Front:
        try:
            wait_until(self._is_up, START_TIMEOUT_S, f"{self.proxy} listens")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _is_up(self) -> bool:
        assert self.process.popen.poll() is None, self.log_text()
        return self.listens()

    def listens(self) -> bool:
        """Whether its port takes connections."""
        host, _, port = self.address.rpartition(":")
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex((host, int(port))) == 0

    def log_text(self) -> str:
        return self.process.log_text()

    def reload(self, gateways: Sequence[str]) -> None:
        """nginx: send new requests to these; those that run stay with the processes that have them."""
        assert self.proxy == "nginx"
        text = nginx_conf(load(FrontConfig, "front", {}, self._with(gateways)))
        (self._folder / "nginx.conf").write_text(text)
        self.process.popen.send_signal(signal.SIGHUP)

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.process.__exit__()
