"""Builds a router from its parts and takes it through its life: listen, serve, drain, close."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from random import Random

import grpc

from inferway import logs, net
from inferway.api.v1 import router_pb2_grpc
from inferway.config import ConfigError
from inferway.grpc_util import InternalToken, add_health_and_reflection, bind, server, set_serving
from inferway.lifecycle import StopSignals, unless, wait_for
from inferway.metrics import Registry
from inferway.ops import OK, SHUTTING_DOWN, OpsServer, Readiness
from inferway.service import STOPPED
from inferway.settings_file import SettingsFile
from inferway.trace_export import Tracer

from .config import Config
from .core.dispatcher import Dispatcher
from .core.endpoints import Departed
from .core.health import HealthRules
from .core.placement.routing import read_routing, routing_of
from .core.queue import Ageing, QueueLimits
from .core.records import Records
from .decision_log import DecisionLog
from .driver import Driver
from .explanation import explain
from .kubernetes import EndpointWatch, KubernetesApi, api_url
from .metrics import RouterMetrics
from .pages import decisions_page
from .service import SERVICE_NAME, RouterService
from .sources import DnsName, Sources, parse_sources, resolve
from .tracing import DecisionTraces
from .worker_pool import WorkerPool

log = logging.getLogger(__name__)

# A worker that has not answered by then does not keep the router from using the others.
_READY_WITHOUT_ALL_S = 5.0
# After the last decision, for replies that are on their way.
_CLOSE_GRACE_S = 0.2
# Lease ids are a random prefix of this many bits and a counter of 40: 35 years at 1,000 a second.
_LEASE_PREFIX_BITS = 23
_LEASE_COUNTER_BITS = 40


class App:
    """One router. `listen`, `serve` and `close` are called in this order; `close` always. Raises ConfigError."""

    def __init__(
        self,
        config: Config,
        *,
        resolver: Callable[[DnsName], Awaitable[list[str]]] = resolve,
        resolve_interval_s: float = 3.0,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        if not config.workers:
            raise ConfigError(["--workers: at least one address is needed, got none"])
        self._config = config
        self._sources = parse_sources(config.workers)
        self._resolver = resolver
        self._resolve_interval_s = resolve_interval_s
        rng = self._rng = Random()
        self._watches = _watches(config, self._sources, rng, environ)
        prefix = rng.randrange(1, 1 << _LEASE_PREFIX_BITS)
        self._routing = SettingsFile("--routing", config.routing, read_routing, routing_of("default"))
        self.dispatcher = Dispatcher(
            routing=self._routing.value,
            rng=rng,
            first_lease_id=(prefix << _LEASE_COUNTER_BITS) + 1,
            limits=QueueLimits(
                config.queue_limit_requests,
                config.queue_limit_tokens,
                config.queue_band_limit_requests,
                config.queue_band_limit_tokens,
            ),
            ageing=Ageing(config.queue_ageing_s, config.queue_aged_share),
            health=HealthRules(
                failures_to_open=config.breaker_failures,
                open_s=config.breaker_open_s,
                open_max_s=max(config.breaker_open_s, config.breaker_open_max_s),
                successes_to_close=config.breaker_successes,
                slow_start_s=config.slow_start_s,
                quarantine_s=config.quarantine_s,
            ),
            holds_back=True,
        )
        self._registry = Registry("router")
        self._metrics = RouterMetrics(self._registry, self.dispatcher)
        self._decision_log: DecisionLog | None = None
        if config.decision_log:
            self._decision_log = DecisionLog(config.decision_log, self._metrics.decision_log_lines)
        self._records = Records(
            config.explain_records, ended=self._decision_log.add if self._decision_log is not None else None
        )
        self._records.routing_version = self._routing.version
        self._tracer = Tracer("router", config, self._registry, instance_id=config.name)
        traces = DecisionTraces(self._tracer, self._records) if self._tracer.is_on else None
        self._driver = Driver(self.dispatcher, self._metrics, self._records, traces)
        self._grpc: grpc.aio.Server | None = None
        self._ops: OpsServer | None = None
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
        self._grpc = server(token)
        self.address = bind(self._grpc, config.listen)
        self._health = add_health_and_reflection(self._grpc, SERVICE_NAME)
        await set_serving(self._health, SERVICE_NAME, False)
        router_id = config.name or f"{socket.gethostname()}:{self.address.rpartition(':')[2]}"
        page = decisions_page(partial(explain, router_id, dispatcher=self.dispatcher, records=self._records), token)
        ops_listener = net.bind(config.ops_listen)
        self.ops_address = net.shown(ops_listener)
        self._ops = OpsServer(ops_listener, self._readiness, self._registry.scrape, pages=[page])
        pool = self._pool = WorkerPool(
            self._sources,
            token,
            router_id,
            self._driver,
            self._rng,
            watches=self._watches,
            resolver=self._resolver,
            resolve_interval_s=self._resolve_interval_s,
        )
        servicer = RouterService(router_id, self._driver, pool.members, pool.cordon, self._metrics)
        router_pb2_grpc.add_RouterServicer_to_server(servicer, self._grpc)
        self._tracer.start()
        await self._grpc.start()
        await self._ops.start()
        self._tasks = [
            asyncio.create_task(pool.run(), name="worker pool"),
            asyncio.create_task(self._begin(pool), name="readiness"),
            asyncio.create_task(self._follow_routing(), name="routing"),
        ]
        if self._decision_log is not None:
            self._tasks.append(asyncio.create_task(self._decision_log.run(), name="decision log"))
        logs.event(log, "listening", address=self.address, ops_address=self.ops_address, router_id=router_id)

    async def serve(self, signals: StopSignals) -> int:
        """Until it is asked to stop and has drained. Raises what a task of ours has failed with."""
        await self._until(signals.stop)
        await unless(signals.stop_now, self.drain())
        return STOPPED

    async def _until(self, stop: asyncio.Event) -> None:
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
        if not await wait_for(self._driver.nobody_waits, self._config.drain_limit_s):
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
            await self._ops.close()
        if self._decision_log is not None:
            await self._decision_log.close()
        self._driver.close()
        await self._tracer.close()
        logs.event(log, "closed")

    async def _follow_routing(self) -> None:
        def take(is_taken: bool) -> None:
            self._metrics.routing_read(is_taken)
            if is_taken:
                self.dispatcher.take_routing(self._routing.value)
                self._records.routing_version = self._routing.version

        await self._routing.run(take)

    async def _begin(self, pool: WorkerPool) -> None:
        """Requests wait until every worker is met that is there, and readiness until every one is that is known."""
        changed = asyncio.Event()
        self._driver.watchers.add(changed)
        try:
            async with asyncio.timeout(_READY_WITHOUT_ALL_S):
                while pool.untried():
                    await changed.wait()
                    changed.clear()
                self._driver.begin()
                while pool.unanswered():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            logs.event(log, "ready_without_all", level=logging.WARNING, unanswered=pool.unanswered())
            self._driver.begin()
        finally:
            self._driver.watchers.discard(changed)
        self._is_ready = True
        if not self._is_leaving:
            await set_serving(self._health, SERVICE_NAME, True)
            logs.event(log, "ready")

    def _readiness(self) -> Readiness:
        workers = []
        for member in self._pool.members() if self._pool is not None else ():
            status = self._driver.known(member.worker_id).status.value
            workers.append({"address": member.address, "worker_id": member.worker_id, "status": status})
        details = {"workers": workers}
        if self._is_leaving:
            return Readiness(SHUTTING_DOWN, details)
        if not self._is_ready:
            missing = ", ".join(self._pool.unanswered()) if self._pool is not None else ""
            return Readiness(f"starting: waiting for {missing or 'the first reports'}", details)
        return Readiness(OK, details)


def _watches(config: Config, sources: Sources, rng: Random, environ: Mapping[str, str]) -> list[EndpointWatch]:
    """One for each service of Kubernetes. Raises ConfigError when nobody says where its API server is."""
    if not sources.services:
        return []
    url = api_url(config.kubernetes_api, environ)
    if not url:
        raise ConfigError([f"--workers: {sources.services[0]} needs --kubernetes-api outside of a pod"])
    api = KubernetesApi(url, config.kubernetes_token_file, config.kubernetes_ca_file)
    departed = Departed()
    return [EndpointWatch(service, api, departed, rng) for service in sources.services]
