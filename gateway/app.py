"""The composition root of one gateway process: builds every part, runs them, and takes them down in reverse."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import inf

from aiohttp import web

from inferway import grpc_util, logs
from inferway.errors import ApiError, Reason
from inferway.lifecycle import StopSignals, wait_for
from inferway.metrics import Registry
from inferway.ops import OK, SHUTTING_DOWN, Readiness
from inferway.service import STOPPED
from inferway.settings_file import SettingsFile
from inferway.trace_export import Tracer

from .accounting import Accounting
from .accounts import closing
from .admin.app import Admin
from .admin.server import AdminFront
from .arrivals import Arrivals
from .authentication import authentication
from .catalog import Catalog
from .choices import Sink
from .config import Config
from .core.limits import Limits
from .core.naming import Naming, parse_models
from .directory.access import Access
from .embedding import Embedding
from .generation import TICK_S, Generation, Plan
from .generation_group import GenerationGroup, Running
from .http_server import HttpServer
from .in_flight import Selection
from .listener import Acceptor, open_admin_listener, open_listener, shown_addresses
from .metrics import Metrics
from .middleware import Front, Routes
from .openapi import PATH as OPENAPI
from .openapi import make_openapi
from .pulse import beat
from .router_client import Ask
from .routes.chat import make_chat
from .routes.completions import make_completions
from .routes.embeddings import make_embeddings
from .routes.generate import Inference
from .routes.health import ops_routes
from .routes.models import ONE_MODEL, make_list_models, make_one_model
from .routes.tokenize import make_detokenize, make_tokenize
from .routing import Routing
from .shared_secrets import cache_secret, key_secret
from .tracing import Tracing
from .worker_messages import EmbedSpec
from .worker_sessions import WorkerSessions

log = logging.getLogger(__name__)

_TICKS_A_FLUSH = 4
# A gateway that starts with models that may be without workers waits so long for the workers that there are.
_MEET_S = 10.0
_JOIN_S = 2.0
_JOIN_POLL_S = 0.05
# Time for the last in-band errors to leave after the drain limit.
_LAST_WORDS_S = 1.0
# Time for the workers to hear of what has been booked last, or they would offer it to other gateways.
_TELL_S = 0.1


class Gateway:
    """One process of the gateway, on a listening socket that is its own or inherited.

    `listen`, `serve` and `close` are called in this order; `close` always.
    """

    def __init__(self, config: Config) -> None:
        """Raises CannotStart."""
        self._config = config
        registry = Registry("gateway")
        self._metrics = Metrics(registry)
        self._metrics.follow(config.follows)
        token = grpc_util.InternalToken(config.internal_token, config.internal_token_file)
        gateway_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._tracer = Tracer("gateway", config, registry, instance_id=gateway_id)
        self._executor = ThreadPoolExecutor(max_workers=2, thread_name_prefix="tokenize")
        self._accounting = Accounting(config, gateway_id, registry, self._metrics)
        self._sessions = WorkerSessions(gateway_id, token, self._sessions_changed, self._accounting.offered)
        self._naming = SettingsFile("--models", config.models, parse_models, Naming())
        keyed = key_secret(config, token).encode()
        self._access = Access(config, keyed)
        self._arrivals = Arrivals(self._metrics.awaiting_worker)
        self._catalog = Catalog(
            self._executor, self._sessions.connected, self._sessions.meets, lambda: self._naming.value, self._arrivals
        )
        self._routing = Routing(config.routers, config.workers, gateway_id, token, self._sessions, self._metrics)
        # Those of each request that is being answered.
        self._generations: dict[Running, Sequence[Generation]] = {}
        self._draining = False
        # Whether models that come when they are asked for could be asked for once, and when routers had first told of
        # workers.
        self._takes_demand = False
        self._told_at = inf
        self._listener: socket.socket | None = None
        self._admin_listener: socket.socket | None = None
        inference = Inference(
            config=config,
            catalog=self._catalog,
            new_generations=self._new_generations,
            discard=self._discard,
            new_embedding=self._new_embedding,
            quotas=self._accounting.quotas,
            executor=self._executor,
            cache_secret=cache_secret(config, token).encode(),
            naming=lambda: self._naming.value,
            is_blocked=self._access.is_model_blocked,
            limits=Limits(
                max_messages=config.max_messages, max_choices=config.max_choices, max_prompts=config.max_prompts
            ),
        )
        tokenize, detokenize = make_tokenize(inference), make_detokenize(inference)
        routes: Routes = {
            "/v1/chat/completions": {"POST": make_chat(inference)},
            "/v1/completions": {"POST": make_completions(inference)},
            "/v1/embeddings": {"POST": make_embeddings(inference)},
            "/v1/models": {"GET": make_list_models(inference)},
            ONE_MODEL: {"GET": make_one_model(inference)},
            "/tokenize": {"POST": tokenize},
            "/v1/tokenize": {"POST": tokenize},
            "/detokenize": {"POST": detokenize},
            "/v1/detokenize": {"POST": detokenize},
            **ops_routes(self._readiness, registry.scrape),
        }
        self.routes: Routes = {**routes, OPENAPI: {"GET": make_openapi()}}
        caller_of = authentication(self._access.directory, anyone_may_choose_workers=config.choose_workers)
        self._front = Front(
            self.routes,
            self._metrics,
            caller_of,
            self._catalog.has,
            closing(self._accounting.quotas),
            config.client_write_timeout_s,
            tracing=Tracing(self._tracer, config.trace_sample_ratio) if self._tracer.is_on else None,
        )
        self._admin = Admin(
            config,
            keyed,
            gateway_id,
            in_flight=self._front.in_flight,
            file=lambda: self._access.file,
            changes=self._access.changes,
            books=self._accounting.standings,
            living=lambda: self._accounting.gateways,
        )

    async def listen(self) -> None:
        """Raises CannotListen."""
        self._listener = open_listener(self._config)
        self._admin_listener = open_admin_listener(self._config)
        if self._config.listen_fd is not None:
            # Ctrl-C at a terminal reaches parent and children; the parent tells its children itself.
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        logs.event(log, "listening", **shown_addresses(self._listener, self._admin_listener))

    async def serve(self, signals: StopSignals) -> int:
        """Until it is asked to stop and has drained."""
        assert self._listener is not None, "listen first"
        self._tracer.start()
        runner, admin_runner = self._new_runner(self._front, self._front.refused), self._new_runner(self._admin.front)
        await runner.setup()
        await admin_runner.setup()
        async with asyncio.TaskGroup() as group:
            parts = [
                group.create_task(self._sessions.run()),
                group.create_task(self._catalog.run()),
                group.create_task(self._routing.run()),
                group.create_task(self._tick()),
                group.create_task(self._naming.run(self._metrics.settings_file("models"))),
                group.create_task(self._access.run(self._metrics.settings_file)),
                group.create_task(self._accounting.run()),
                group.create_task(self._admin.run()),
            ]
            if self._config.pulse_fd is not None:
                parts.append(group.create_task(beat(self._config.pulse_fd)))
            if self._admin_listener is not None:
                await web.SockSite(admin_runner, self._admin_listener).start()
            if self._config.listen_fd is not None:
                await self._wait_to_join(signals.stop)
            assert runner.server is not None, "set up"
            acceptor = Acceptor(self._listener, runner.server)
            acceptor.start()
            await signals.stop.wait()
            await self._drain(signals.stop_now)
            acceptor.stop()
            self._listener.close()
            await runner.cleanup()
            await self._accounting.close()
            self._sessions.tell_settled()
            await asyncio.sleep(_TELL_S)
            await admin_runner.cleanup()
            for part in reversed(parts):
                part.cancel()
        return STOPPED

    def _new_runner(
        self, front: Front | AdminFront | None, on_refused: Callable[[ApiError, str], None] | None = None
    ) -> web.ServerRunner:
        config = self._config
        server = HttpServer(
            front, max_header_bytes=config.max_header_bytes, keepalive_s=config.keepalive_s, on_refused=on_refused
        )
        return web.ServerRunner(server, shutdown_timeout=_LAST_WORDS_S)

    async def _wait_to_join(self, stop: asyncio.Event) -> None:
        """One of several processes accepts beside the others once it can serve, or after a while to say why not."""
        deadline = time.monotonic() + _JOIN_S
        while not self._readiness().is_ready and time.monotonic() < deadline and not stop.is_set():
            await wait_for(stop, _JOIN_POLL_S)

    async def close(self) -> None:
        await self._tracer.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        await self._admin.close()
        await self._access.close()
        for listener in (self._listener, self._admin_listener):
            if listener is not None:
                listener.close()
        logs.event(log, "closed")

    async def _drain(self, stop_now: asyncio.Event) -> None:
        """Readiness goes at once; new requests are served through the delay, running ones up to the limit."""
        self._draining = self._front.leaving = True
        config = self._config
        in_flight = len(self._front.in_flight)
        logs.event(
            log, "draining", delay_s=config.drain_delay_s, limit_s=config.drain_limit_s, requests_in_flight=in_flight
        )
        await wait_for(stop_now, config.drain_delay_s)
        self._front.shutting_down = True
        deadline = time.monotonic() + config.drain_limit_s
        while self._front.in_flight and not stop_now.is_set() and time.monotonic() < deadline:
            await wait_for(stop_now, TICK_S)
        left = len(self._front.in_flight)
        if left:
            logs.event(log, "drain_limit_passed", level=logging.WARNING, requests_in_flight=left)
            self._front.in_flight.end(Selection(), Reason.SHUTTING_DOWN, "The server was shut down during the answer.")
            await asyncio.sleep(_LAST_WORDS_S)

    async def _tick(self) -> None:
        """The only clock: deadlines, stalls and heartbeats of all requests, and the metrics' bulk parts."""
        tick = 0
        while True:
            before = time.monotonic()
            await asyncio.sleep(TICK_S)
            now = time.monotonic()
            self._metrics.loop_lag.observe(max(0.0, now - before - TICK_S))
            for generation in [one for several in self._generations.values() for one in several]:
                try:
                    generation.tick(now)
                except Exception:
                    # A fault of ours in one request must not stop everybody's clock.
                    log.exception("tick_failed")
                    generation.fail(ApiError(Reason.INTERNAL_ERROR, "An internal error occurred."))
            self._routing.place_parked()
            tick += 1
            if tick % _TICKS_A_FLUSH == 0:
                self._metrics.flush()
                self._accounting.flush_metrics()

    def _new_generations(self, plans: Sequence[Plan], sinks: Sequence[Sink]) -> Running:
        generations = [
            Generation(plan, sink, self._routing, self._sessions, self._metrics)
            for plan, sink in zip(plans, sinks, strict=True)
        ]
        running: Running = generations[0] if len(generations) == 1 else GenerationGroup(generations)
        self._generations[running] = generations
        return running

    def _new_embedding(self, ask: Ask, spec: EmbedSpec, deadline: float) -> Embedding:
        return Embedding(ask, spec, deadline, self._routing, self._sessions, self._metrics)

    def _discard(self, running: Running) -> None:
        running.close()
        self._generations.pop(running, None)

    def _sessions_changed(self) -> None:
        self._metrics.sessions.set(len(self._sessions.connected()))
        self._catalog.refresh()
        self._routing.place_parked()

    def _readiness(self) -> Readiness:
        models = [model.name for model in self._catalog.all() if self._sessions.serving(model.name)]
        if self._draining:
            status = SHUTTING_DOWN
        elif (models and self._catalog.settled) or self._can_wait():
            status = OK
        else:
            status = "starting: no connected worker has its models and tokenizers loaded here yet"
        details = {
            "models": models,
            "workers": len(self._sessions.connected()),
            "routers": self._routing.connected_routers,
            "fallback": self._routing.falls_back,
            "quota_store": self._accounting.store,
            "gateways": self._accounting.gateways,
        }
        return Readiness(status, details)

    def _can_wait(self) -> bool:
        """Whether requests may come though no worker is there, because it is they that bring one.

        Not before it is known which workers there are: those of other models are met first, within reason.
        """
        if not self._naming.value.on_demand:
            return False
        known = self._routing.known_workers()
        if known is not None:
            self._told_at = min(self._told_at, time.monotonic())
        waited = time.monotonic() - self._told_at
        if known is not None and (not known or self._catalog.settled or waited >= _MEET_S):
            self._takes_demand = True
        return self._takes_demand
