"""Builds a worker from its parts and takes it through its life: listen, load, drain, close."""

from __future__ import annotations

import asyncio
import logging
import socket
import time

import grpc
from aiohttp import web

from inferway import logs
from inferway.api.v1 import worker_pb2_grpc
from inferway.grpc_util import InternalToken, add_health_and_reflection, server, set_serving

from .config import Config
from .engine import Engine
from .engines import build
from .ops import ops_app
from .runtime import Runtime
from .service import SERVICE_NAME, WorkerServicer

log = logging.getLogger(__name__)

# Streams that end by themselves get this long to hand their last messages to the network.
_CLOSE_GRACE_S = 2.0


class CannotListen(Exception):
    """A listener's address is taken, or is none."""


class App:
    """One worker. `listen`, `load`, `drain` and `close` are called in this order; `close` always."""

    def __init__(self, config: Config, engine: Engine | None = None) -> None:
        """`engine` None: the configured one."""
        self._config = config
        self._engine = engine
        self._grpc: grpc.aio.Server | None = None
        self._ops: web.AppRunner | None = None
        self._runtime: Runtime | None = None
        self._is_leaving = False
        self.address = ""
        self.ops_address = ""

    @property
    def runtime(self) -> Runtime:
        assert self._runtime is not None, "listen first"
        return self._runtime

    async def listen(self) -> None:
        """Open both listeners. Peers that come before `load` is done are told that the model is loading.

        Raises CannotListen, and EngineNotInstalled.
        """
        _split(self._config.listen)
        self._grpc = server(InternalToken(self._config.internal_token, self._config.internal_token_file))
        self._health = add_health_and_reflection(self._grpc, SERVICE_NAME)
        try:
            port = self._grpc.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise CannotListen(f"cannot listen on {self._config.listen}") from error
        self.address = f"{self._config.listen.rpartition(':')[0]}:{port}"
        worker_id = self._config.worker_id(port)
        self._runtime = Runtime(self._engine or build(self._config, worker_id), worker_id, time.monotonic)
        servicer = WorkerServicer(self._runtime, int(time.time()))
        worker_pb2_grpc.add_WorkerServicer_to_server(servicer, self._grpc)
        await set_serving(self._health, SERVICE_NAME, False)
        await self._grpc.start()
        self._ops = web.AppRunner(ops_app(self._status, self._runtime.flush_metrics), access_log=None)
        await self._ops.setup()
        ops_socket = _bind(self._config.ops_listen)
        await web.SockSite(self._ops, ops_socket).start()
        host, ops_port = ops_socket.getsockname()[:2]
        self.ops_address = f"{host}:{ops_port}"
        logs.event(
            log,
            "listening",
            address=self.address,
            ops_address=self.ops_address,
            worker_id=worker_id,
            instance_id=self._runtime.instance_id,
        )

    async def load(self) -> None:
        """Start the engine, then say that this worker is ready. Raises what Runtime.start raises."""
        started_at = time.monotonic()
        info = await self.runtime.start()
        if not self._is_leaving:
            await set_serving(self._health, SERVICE_NAME, True)
        models = [model.name for model in info.models]
        logs.event(log, "ready", engine=info.name, models=models, seconds=round(time.monotonic() - started_at, 3))

    async def drain(self) -> None:
        """Readiness off and nothing new; back when nothing runs any more, or at the drain limit."""
        self._is_leaving = True
        await set_serving(self._health, SERVICE_NAME, False)
        self.runtime.announce_drain()
        logs.event(log, "draining", delay_s=self._config.drain_delay_s, limit_s=self._config.drain_limit_s)
        await asyncio.sleep(self._config.drain_delay_s)
        self.runtime.refuse_new()
        try:
            async with asyncio.timeout(self._config.drain_limit_s):
                await self.runtime.idle.wait()
        except TimeoutError:
            logs.event(log, "drain_limit_passed", level=logging.WARNING)

    async def close(self) -> None:
        """End what still runs, and close in reverse order of building; safe after a step that failed."""
        if self._runtime is not None:
            self._runtime.end_streams()
        if self._grpc is not None:
            await self._grpc.stop(_CLOSE_GRACE_S)
        if self._ops is not None:
            await self._ops.cleanup()
        if self._runtime is not None:
            await self._runtime.close()
        logs.event(log, "closed")

    def _status(self) -> str:
        if self._is_leaving:
            return "shutting_down"
        return "ok" if self.runtime.info is not None else "starting"


def _bind(address: str) -> socket.socket:
    host, port = _split(address)
    try:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target[:2], family=family, backlog=128)
    except OSError as error:
        raise CannotListen(f"cannot listen on {address}") from error


def _split(address: str) -> tuple[str, int]:
    """Host and port of host:port; gRPC itself takes ports above 65535 for others."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise CannotListen(f"cannot listen on {address}: an address is host:port with a port from 0 to 65535")
    return host.strip("[]"), int(port)
