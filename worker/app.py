"""Builds a worker from its parts and takes it through its life: listen, load, serve, drain, close."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial

import grpc

from inferway import logs, net
from inferway.api.v1 import worker_pb2_grpc
from inferway.errors import ApiError
from inferway.grpc_util import InternalToken, add_health_and_reflection, bind, server, set_serving
from inferway.lifecycle import StopSignals, unless, wait_for
from inferway.metrics import Registry
from inferway.ops import OK, SHUTTING_DOWN, OpsServer, Readiness
from inferway.service import FAILED, STOPPED, CannotStart
from inferway.trace_export import Tracer

from .config import Config
from .core.detokenize import UnsupportedTokenizer
from .engine import Engine
from .engines import EngineNotInstalled, build
from .metrics import WorkerMetrics
from .runtime import Runtime
from .service import SERVICE_NAME, WorkerServicer
from .tracing import ChoiceTraces

log = logging.getLogger(__name__)

# Streams that end by themselves get this long to hand their last messages to the network.
_CLOSE_GRACE_S = 2.0


class App:
    """One worker. `listen`, `serve` and `close` are called in this order; `close` always."""

    def __init__(self, config: Config, engine: Engine | None = None) -> None:
        """`engine` None: the configured one."""
        self._config = config
        self._engine = engine
        self._grpc: grpc.aio.Server | None = None
        self._ops: OpsServer | None = None
        self._runtime: Runtime | None = None
        self._tracer: Tracer | None = None
        self._watch: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._has_failed = asyncio.Event()
        self._failure = ""
        self.address = ""
        self.ops_address = ""

    @property
    def runtime(self) -> Runtime:
        assert self._runtime is not None, "listen first"
        return self._runtime

    async def listen(self) -> None:
        """Open both listeners. Peers that come before `load` is done are told that the model is loading.

        Raises CannotListen, and CannotStart without the packages of the engine.
        """
        config = self._config
        ops_listener = net.bind(config.ops_listen)
        registry = Registry("worker")
        self._ops = OpsServer(ops_listener, self._readiness, partial(self._scrape, registry))
        self._grpc = server(InternalToken(config.internal_token, config.internal_token_file))
        self.address = bind(self._grpc, config.listen)
        self.ops_address = net.shown(ops_listener)
        self._health = add_health_and_reflection(self._grpc, SERVICE_NAME)
        await set_serving(self._health, SERVICE_NAME, False)
        worker_id = config.worker_id(int(self.address.rpartition(":")[2]))
        try:
            engine = self._engine or build(config, worker_id)
        except EngineNotInstalled as error:
            raise CannotStart(str(error)) from error
        tracer = self._tracer = Tracer("worker", config, registry, instance_id=worker_id)
        traces = ChoiceTraces(tracer) if tracer.is_on else None
        self._runtime = Runtime(engine, worker_id, time.monotonic, WorkerMetrics(registry), traces)
        tracer.start()
        worker_pb2_grpc.add_WorkerServicer_to_server(WorkerServicer(self._runtime), self._grpc)
        await self._grpc.start()
        await self._ops.start()
        logs.event(
            log,
            "listening",
            address=self.address,
            ops_address=self.ops_address,
            worker_id=worker_id,
            instance_id=self._runtime.instance_id,
        )

    async def serve(self, signals: StopSignals) -> int:
        """Until it is asked to stop and has drained, or its engine has failed. Raises CannotStart."""
        if await unless(signals.stop, self.load()):
            await unless(signals.stop, self._has_failed.wait())
        if not self._has_failed.is_set():
            await unless(signals.stop_now, self.drain())
        return FAILED if self._has_failed.is_set() else STOPPED

    async def load(self) -> None:
        """Start the engine, then say that this worker is ready.

        Raises CannotStart with the engine's reason.
        """
        started_at = time.monotonic()
        try:
            info = await self.runtime.start()
        except ApiError as error:
            raise CannotStart(f"the engine cannot start: {error.message}") from error
        except (OSError, UnsupportedTokenizer) as error:
            raise CannotStart(f"the engine cannot start: {error}") from error
        self._watch = asyncio.create_task(self._watch_engine(), name="engine watch")
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
        await wait_for(self._has_failed, self._config.drain_delay_s)
        self.runtime.refuse_new()
        if not await wait_for(self.runtime.idle, self._config.drain_limit_s):
            logs.event(log, "drain_limit_passed", level=logging.WARNING)

    async def close(self) -> None:
        """End what still runs, and close in reverse order of building; safe after a step that failed."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        if self._runtime is not None:
            self._runtime.end_streams()
        if self._grpc is not None:
            await self._grpc.stop(_CLOSE_GRACE_S)
        if self._ops is not None:
            await self._ops.close()
        if self._runtime is not None:
            await self._runtime.close()
        if self._tracer is not None:
            await self._tracer.close()
        logs.event(log, "closed")

    async def _watch_engine(self) -> None:
        """When the engine has failed for good, so has this worker: nothing is left that a restart would lose."""
        try:
            sentence = await self.runtime.wait_failed()
        except Exception as error:
            log.exception("engine_watch_failed")
            sentence = f"it can no longer be watched: {error}"
        if sentence is None:
            return
        self._is_leaving = True
        self._failure = sentence
        logs.event(log, "engine_failed", level=logging.ERROR, error=sentence)
        await set_serving(self._health, SERVICE_NAME, False)
        self.runtime.fail()
        self._has_failed.set()

    def _readiness(self) -> Readiness:
        if self._failure:
            return Readiness(f"the engine has failed: {self._failure}")
        if self._is_leaving:
            return Readiness(SHUTTING_DOWN)
        if self._runtime is None or self._runtime.info is None:
            return Readiness("starting: the engine is loading its model")
        return Readiness(OK)

    async def _scrape(self, registry: Registry, content_type: str) -> bytes:
        self.runtime.flush_metrics()
        return await registry.scrape(content_type)
