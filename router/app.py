"""Builds a router from its parts and takes it through its life: listen, serve, drain, close."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from random import Random

import grpc
from aiohttp import web

from inferway import logs
from inferway.api.v1 import router_pb2_grpc
from inferway.grpc_util import InternalToken, add_health_and_reflection, server, set_serving

from .config import Config
from .core.dispatcher import Dispatcher
from .core.policy import PredictedTtft
from .core.queue import QueueLimits
from .driver import Driver
from .metrics import RouterMetrics
from .ops import Readiness, WorkerLine, ops_app
from .service import SERVICE_NAME, RouterService
from .sources import DnsName, HostAndPort, host_and_port, parse_sources, resolve
from .worker_pool import WorkerPool, status_of

log = logging.getLogger(__name__)

# A worker that has not answered by then does not keep the router from serving the others.
_READY_WITHOUT_ALL_S = 5.0
# After the last decision, for replies that are on their way.
_CLOSE_GRACE_S = 0.2
# Lease ids are a random prefix of this many bits and a counter of 40: 35 years at 1,000 a second.
_LEASE_PREFIX_BITS = 23
_LEASE_COUNTER_BITS = 40


class CannotListen(Exception):
    """A listener's address is taken, or is none."""


class App:
    """One router. `listen`, `serve_until`, `drain` and `close` are called in this order; `close` always.

    Raises ValueError, naming option and value, when an address cannot be read.
    """

    def __init__(
        self,
        config: Config,
        *,
        resolver: Callable[[DnsName], Awaitable[list[str]]] = resolve,
        resolve_interval_s: float = 3.0,
    ) -> None:
        self._config = config
        self._sources = parse_sources(config.workers)
        host_and_port("--listen", config.listen, least_port=0)
        self._ops_target = host_and_port("--ops-listen", config.ops_listen, least_port=0)
        self._resolver = resolver
        self._resolve_interval_s = resolve_interval_s
        rng = self._rng = Random()
        prefix = rng.randrange(1, 1 << _LEASE_PREFIX_BITS)
        self.dispatcher = Dispatcher(
            policy=PredictedTtft(),
            rng=rng,
            first_lease_id=(prefix << _LEASE_COUNTER_BITS) + 1,
            limits=QueueLimits(config.queue_limit_requests, config.queue_limit_tokens),
        )
        self._metrics = RouterMetrics(self.dispatcher)
        self._driver = Driver(self.dispatcher, self._metrics)
        self._grpc: grpc.aio.Server | None = None
        self._ops: web.AppRunner | None = None
        self._pool: WorkerPool | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._is_ready = False
        self._is_leaving = False
        self.address = ""
        self.ops_address = ""

    async def listen(self) -> None:
        """Open both listeners and go looking for workers. Raises CannotListen."""
        config = self._config
        token = InternalToken(config.internal_token, config.internal_token_file)
        ops_socket = _bind(self._ops_target)
        self._grpc = server(token)
        self._health = add_health_and_reflection(self._grpc, SERVICE_NAME)
        await set_serving(self._health, SERVICE_NAME, False)
        try:
            port = self._grpc.add_insecure_port(config.listen)
        except RuntimeError as error:
            ops_socket.close()
            raise CannotListen(f"cannot listen on {config.listen}") from error
        self.address = f"{config.listen.rpartition(':')[0]}:{port}"
        router_id = config.name or f"{socket.gethostname()}:{port}"
        pool = self._pool = WorkerPool(
            self._sources,
            token,
            router_id,
            self._driver,
            self._rng,
            resolver=self._resolver,
            resolve_interval_s=self._resolve_interval_s,
        )
        servicer = RouterService(router_id, self._driver, pool.members, self._metrics)
        router_pb2_grpc.add_RouterServicer_to_server(servicer, self._grpc)
        await self._grpc.start()
        self._ops = web.AppRunner(ops_app(self._readiness, self._metrics.render), access_log=None)
        await self._ops.setup()
        await web.SockSite(self._ops, ops_socket).start()
        host, ops_port = ops_socket.getsockname()[:2]
        self.ops_address = f"{host}:{ops_port}"
        self._tasks = [
            asyncio.create_task(pool.run(), name="worker pool"),
            asyncio.create_task(self._become_ready(pool), name="readiness"),
        ]
        logs.event(log, "listening", address=self.address, ops_address=self.ops_address, router_id=router_id)

    async def serve_until(self, stop: asyncio.Event) -> None:
        """Back when `stop` is set. Raises what a task of ours has failed with."""
        stopped = asyncio.create_task(stop.wait(), name="stop")
        running = {stopped, *self._tasks}
        try:
            while not stopped.done():
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
        finally:
            stopped.cancel()

    async def drain(self) -> None:
        """Readiness off; back when nobody waits any more, or at the drain limit.

        Requests are still taken and decided: gateways leave when the streams end, and until then they are served.
        """
        self._is_leaving = True
        await set_serving(self._health, SERVICE_NAME, False)
        logs.event(log, "draining", limit_s=self._config.drain_limit_s, waiting=self.dispatcher.num_waiting)
        try:
            async with asyncio.timeout(self._config.drain_limit_s):
                await self._driver.until_nobody_waits()
        except TimeoutError:
            waiting = self.dispatcher.num_waiting
            logs.event(log, "drain_limit_passed", level=logging.WARNING, waiting=waiting)

    async def close(self) -> None:
        """End all streams and close in reverse order of building; safe after a step that failed."""
        if self._grpc is not None:
            await self._grpc.stop(_CLOSE_GRACE_S)
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._ops is not None:
            await self._ops.cleanup()
        self._driver.close()
        logs.event(log, "closed")

    async def _become_ready(self, pool: WorkerPool) -> None:
        changed = asyncio.Event()
        self._driver.watchers.add(changed)
        try:
            async with asyncio.timeout(_READY_WITHOUT_ALL_S):
                while pool.unanswered():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            logs.event(log, "ready_without_all", level=logging.WARNING, unanswered=pool.unanswered())
        finally:
            self._driver.watchers.discard(changed)
        self._is_ready = True
        if not self._is_leaving:
            await set_serving(self._health, SERVICE_NAME, True)
            logs.event(log, "ready")

    def _readiness(self) -> Readiness:
        assert self._pool is not None
        workers = []
        for member in self._pool.members():
            worker = self.dispatcher.worker(member.worker_id) if member.worker_id is not None else None
            status = status_of(member, worker.status if worker else None)
            workers.append(WorkerLine(member.address, member.worker_id, status.value))
        if self._is_leaving:
            return Readiness("shutting_down", workers)
        if not self._is_ready:
            missing = ", ".join(self._pool.unanswered()) or "the first reports"
            return Readiness(f"waiting for {missing}", workers)
        return Readiness("ok", workers)


def _bind(target: HostAndPort) -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(*target, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=128)
    except OSError as error:
        raise CannotListen(f"cannot listen on {target.host}:{target.port}") from error
