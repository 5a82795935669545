"""The engine and everyone on it: sessions that generate, watchers that listen.

Everything here runs on one event loop and nothing awaits on the path of a token: an engine step is one pass over its
outputs, each going through its choice's text machine into its session's outbox, and then one wake-up a session.

Who owns what: a `Live` choice is known by its engine key, unique in the process, and by its gateway key, unique in
its session. It leaves both tables at its last delta, and what the engine still says about it afterwards reaches
nobody. A stop string ends a choice here before the engine knows; an abort, also that of a session which broke, waits
for the engine's answer, because that carries the final count. What a gateway has not settled when its session breaks
is offered to another one (core/orphans.py).
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from inferway import logs
from inferway.errors import OK, OUTCOMES, ApiError, Reason

from .core.admission import check, check_settlement
from .core.choice import Choice, Delta
from .core.detokenize import TokenTable, token_table
from .core.orphans import Orphan, Orphans
from .core.served import ServedModels
from .core.stop import StopStrings
from .core.trace import ChoiceEnd
from .core.watch import CacheContents, WatchFeed
from .embeddings import Embeddings
from .engine import Adapter, EmbedRequest, Engine, EngineInfo, FinishReason, GenerateRequest, Load, Output, Step
from .metrics import WorkerMetrics
from .occupancy import Occupancy
from .orphan_offers import OrphanOffers
from .sessions import GatewaySession, Live, Watcher
from .tracing import ChoiceTraces

log = logging.getLogger(__name__)

# Share of the newest duration in the running mean that Retry-After is made from.
_DURATION_WEIGHT = 0.1
_RETRY_AFTER_S = (1.0, 30.0)
_ENGINE_FAILED = "The engine of this worker has failed."


class Runtime:
    def __init__(
        self,
        engine: Engine,
        worker_id: str,
        clock: Callable[[], float],
        metrics: WorkerMetrics,
        traces: ChoiceTraces | None = None,
    ) -> None:
        self._traces = traces
        self._engine = engine
        self._clock = clock
        self._metrics = metrics
        self.worker_id = worker_id
        self.instance_id = uuid.uuid4().hex
        self.info: EngineInfo | None = None
        self.served = ServedModels()
        self.steps = 0
        self.is_draining = False
        self.is_closing = False
        self._is_refusing = False
        self._occupancy = Occupancy()
        self.idle = self._occupancy.idle
        self._embeddings = Embeddings(engine, self._check_open, self.served, self._occupancy, clock, metrics, traces)
        # By the engine's name of the model; an embedding model has none.
        self._tables: dict[str, TokenTable] = {}
        # Adapters that take nothing new and are about to go.
        self._leaving: set[Adapter] = set()
        self._changes: set[asyncio.Task[None]] = set()
        self._live: dict[int, Live] = {}
        self._sessions: set[GatewaySession] = set()
        self._orphans: Orphans[GatewaySession] = Orphans()
        self._offers = OrphanOffers(self._orphans, self._sessions, clock)
        self._watchers: set[Watcher] = set()
        self._contents = CacheContents()
        self._last_key = 0
        self._last_step_at = 0.0
        self._mean_duration_s = 0.0

    async def start(self) -> EngineInfo:
        """Load the engine. Raises ApiError, OSError or UnsupportedTokenizer with a sentence for the operator."""
        info = await self._engine.start(self._on_step)
        self._tables = {
            model.name: token_table(model.tokenizer_json, shown=model.structural_marks, beyond=model.token_bytes)
            for model in info.models
            if "embeddings" not in model.capabilities
        }
        self.info = info
        self._embeddings.start(info)
        self._update_served()
        return info

    def open_session(self) -> GatewaySession:
        session = GatewaySession()
        session.wake.set()  # it is told the version of the models
        self._sessions.add(session)
        return session

    def greet_session(self, session: GatewaySession, gateway_id: str) -> None:
        """The gateway has said who it is."""
        session.gateway_id = gateway_id
        self._offers.renew()

    def close_session(self, session: GatewaySession) -> None:
        """The gateway is gone: everything it asked for stops now."""
        self._sessions.discard(session)
        session.is_open = False
        self._orphans.lose(session, session.gateway_id, now=self._clock())
        for gateway_key in list(session.live):
            self.abort(session, gateway_key)
        self._offers.renew()

    def generate(
        self,
        session: GatewaySession,
        gateway_key: int,
        request: GenerateRequest,
        stop: Sequence[str],
        settlement: bytes = b"",
    ) -> None:
        """Admit one choice, or put the reason for its refusal into the session's outbox.

        What becomes of one with a `settlement` is remembered until the session says `settle`.
        """
        try:
            self._admit(session, gateway_key, request, stop, settlement)
        except ApiError as error:
            self._refuse(session, gateway_key, request, error)
        except Exception:
            # A fault of ours in one request must not end the session with the streams of all others.
            log.exception("admission_failed", extra={"fields": {"request_id": request.request_id}})
            fault = ApiError(Reason.INTERNAL_ERROR, "An internal error occurred.")
            self._refuse(session, gateway_key, request, fault)

    def _refuse(self, session: GatewaySession, gateway_key: int, request: GenerateRequest, error: ApiError) -> None:
        self._metrics.outcomes[error.reason.label] += 1
        logs.event(log, "refused", request_id=request.request_id, outcome=error.reason.label, detail=error.message)
        self._send(session, gateway_key, Delta(error=error))
        session.wake.set()
        if self._traces is not None:
            now = self._clock()
            self._trace(request, error.reason.label, now, now)

    def abort(self, session: GatewaySession, gateway_key: int, reason: str = "") -> None:
        """Stop a choice; its last delta comes with the engine's answer. Unknown keys are ignored.

        `reason` is the outcome to tell; one that is unknown or empty: its caller has left.
        """
        live = session.live.get(gateway_key)
        if live is not None and not live.aborted_for:
            live.aborted_for = reason if reason in OUTCOMES else Reason.CLIENT_CLOSED_REQUEST.label
            self._engine.abort(live.engine_key)

    def settle(self, session: GatewaySession, gateway_keys: Sequence[int]) -> None:
        """These choices are booked. Unknown keys are ignored."""
        self._orphans.settle(session, gateway_keys)

    def book_orphans(self, orphan_ids: Sequence[int]) -> None:
        """Unknown ones are ignored."""
        self._orphans.book(orphan_ids)
        self._offers.renew()

    def age_ms(self, orphan: Orphan) -> int:
        """Since its last choice ended."""
        return max(0, round((self._clock() - orphan.ended_at) * 1000))

    async def embed(self, requests: Sequence[EmbedRequest], lease_id: int) -> list[Sequence[float]]:
        """The embeddings of all inputs of one request; cancelling it frees what it holds. Raises ApiError."""
        return await self._embeddings.compute(requests, lease_id)

    def open_watch(self) -> Watcher:
        assert self.info is not None
        models = [model.name for model in self.info.models] if self.info.publishes_kv_events else []
        watcher = Watcher(WatchFeed(self._contents, models))
        self._watchers.add(watcher)
        return watcher

    def close_watch(self, watcher: Watcher) -> None:
        self._watchers.discard(watcher)

    def load(self) -> Load:
        return self._engine.load()

    def lease_ids(self) -> list[int]:
        """The leases of all choices and embeddings that have not ended, each once."""
        return self._occupancy.lease_ids()

    def announce_drain(self) -> None:
        """Tell every watcher that this worker is leaving."""
        self.is_draining = True
        self._wake_watchers()

    def refuse_new(self) -> None:
        """Take nothing new; what runs goes on."""
        self._is_refusing = True

    async def load_adapter(self, model: str, adapter: str, path: str) -> None:
        """Load a LoRA adapter from a folder on this machine; it is served as "model:adapter". Raises ApiError."""
        await self._to_the_end(self._load_adapter(self.served.adapter(model, adapter), path))

    async def unload_adapter(self, model: str, adapter: str) -> None:
        """Take nothing new for an adapter; the engine forgets it when its last request has ended. Raises ApiError."""
        known = self.served.adapter(model, adapter)
        self.served.find(f"{model}:{adapter}")
        await self._to_the_end(self._unload_adapter(known))

    async def wait_failed(self) -> str | None:
        return await self._engine.wait_failed()

    def fail(self) -> None:
        """The engine is gone for good: what runs ends in worker_failed, what comes is refused."""
        self.refuse_new()
        self.announce_drain()
        ends = [Output(key, error=ApiError(Reason.WORKER_FAILED, _ENGINE_FAILED)) for key in self._live]
        self._on_step(Step(ends))

    def end_streams(self) -> None:
        """Every session and watch ends once what waits in it is written."""
        self.is_closing = True
        for session in self._sessions:
            session.wake.set()
        self._wake_watchers()

    async def close(self) -> None:
        await self._engine.close()
        self._offers.end()

    async def _load_adapter(self, adapter: Adapter, path: str) -> None:
        await self._engine.load_adapter(adapter, path)
        self._update_served()

    async def _unload_adapter(self, adapter: Adapter) -> None:
        self._leaving.add(adapter)
        self._update_served()
        try:
            await self._engine.unload_adapter(adapter)
        finally:
            self._leaving.discard(adapter)
            self._update_served()

    async def _to_the_end(self, change: Coroutine[Any, Any, None]) -> None:
        """Once begun, a change is finished also when its caller leaves."""
        task = asyncio.create_task(change)
        self._changes.add(task)
        task.add_done_callback(self._changes.discard)
        await asyncio.shield(task)

    def _update_served(self) -> None:
        assert self.info is not None
        self.served.update(self.info.models, [known for known in self._engine.adapters() if known not in self._leaving])
        for session in self._sessions:
            session.wake.set()
        self._wake_watchers()

    def flush_metrics(self) -> None:
        self._metrics.flush(self._engine.load() if self.info is not None else None, self._orphans)

    def _admit(
        self,
        session: GatewaySession,
        gateway_key: int,
        request: GenerateRequest,
        stop: Sequence[str],
        settlement: bytes,
    ) -> None:
        running = session.live.get(gateway_key)
        if running is not None or gateway_key in session.outbox:
            # Two requests must never share a key's deltas: neither of them goes on.
            if running is not None:
                self._drop(running, Reason.INTERNAL_ERROR.label)
            raise ApiError(Reason.INVALID_REQUEST, f"The key {gateway_key} is in use on this session.", "key")
        info = self._check_open()
        served = self.served.find(request.model)
        table = self._tables.get(served.model)
        if table is None:
            raise ApiError(Reason.UNSUPPORTED_VALUE, f"'{request.model}' is an embedding model.", "model")
        sampling = check(request, stop, served.info)
        check_settlement(settlement)
        limit = info.max_running + info.max_waiting
        if len(self._live) >= limit:
            raise ApiError(
                Reason.OVERLOADED,
                f"This worker takes {limit} requests at a time and has {len(self._live)}.",
                retry_after_s=self._retry_after_s(),
            )
        self._last_key += 1
        request = replace(request, key=self._last_key, model=served.model, adapter=served.adapter, sampling=sampling)
        stops = StopStrings(stop) if stop else None
        choice = Choice(
            table,
            len(request.prompt_token_ids),
            stops,
            sampling.min_tokens or 0,
            logprobs=request.logprobs is not None,
        )
        self._engine.generate(request)
        if settlement:
            self._orphans.begin(session, gateway_key, settlement, len(request.prompt_token_ids))
        live = Live(
            self._last_key, gateway_key, session, request, choice, self._clock(), is_settled_later=bool(settlement)
        )
        self._live[live.engine_key] = live
        session.live[gateway_key] = live
        self._occupancy.begin(request.lease_id)
        self._metrics.prompt_tokens[served.model] += len(request.prompt_token_ids)
        self._wake_watchers()

    def _on_step(self, step: Step) -> None:
        now = self._clock()
        if self._live:
            if self._last_step_at:
                self._metrics.step(now - self._last_step_at)
            self._last_step_at = now
        self.steps += 1
        moved: set[GatewaySession] = set()
        for output in step.outputs:
            live = self._live.get(output.key)
            if live is None:
                continue
            if output.token_ids:
                self._metrics.completion_tokens[live.request.model] += len(output.token_ids)
            delta = live.choice.feed(output)
            if delta is None:
                continue
            if not live.has_output:
                live.has_output = True
                if live.choice.completion_tokens:
                    live.first_output_at = now
                if output.queue_s is not None:
                    live.prefill_at = live.started_at + output.queue_s
                self._metrics.cached_tokens[live.request.model] += live.choice.cached_tokens
            if delta.finish_reason is not None or delta.error is not None:
                self._end(live, _outcome(delta, live), now)
                if delta.must_abort:
                    self._engine.abort(live.engine_key)
            if live.session.is_open:
                self._send(live.session, live.gateway_key, delta)
                moved.add(live.session)
        for session in moved:
            session.wake.set()
        if step.kv_events:
            self._contents.apply(step.kv_events)
            for watcher in self._watchers:
                watcher.feed.add(step.kv_events)
        if not self._live:
            self._last_step_at = 0.0
        self._wake_watchers()

    def _send(self, session: GatewaySession, gateway_key: int, delta: Delta) -> None:
        for given_up in session.outbox.put(gateway_key, delta):
            live = session.live.get(given_up)
            if live is not None:
                session.outbox.tell_usage(given_up, live.choice.usage)
                self._drop(live, Reason.OVERLOADED.label)

    def _drop(self, live: Live, outcome: str) -> None:
        """End a choice that the engine still runs, without waiting for its answer."""
        self._end(live, outcome, self._clock())
        self._engine.abort(live.engine_key)

    def _end(self, live: Live, outcome: str, now: float) -> None:
        """The only way out of the tables, once a choice."""
        del self._live[live.engine_key]
        del live.session.live[live.gateway_key]
        if live.is_settled_later:
            self._orphans.end(live.session, live.gateway_key, live.choice.usage, outcome, now=now)
            if not live.session.is_open:
                self._offers.renew()
            self._offers.log_dropped(now)
        if self.is_closing and outcome == Reason.CLIENT_CLOSED_REQUEST.label:
            outcome = Reason.SHUTTING_DOWN.label  # cut at the drain limit, whoever was there to read it
        request, seconds = live.request, now - live.started_at
        self._occupancy.end(request.lease_id)
        self._metrics.outcomes[outcome] += 1
        self._mean_duration_s += (seconds - self._mean_duration_s) * _DURATION_WEIGHT
        logs.event(
            log,
            "ended",
            request_id=request.request_id,
            choice_index=request.choice_index,
            model=request.model,
            outcome=outcome,
            seconds=round(seconds, 4),
            prompt_tokens=live.choice.prompt_tokens,
            cached_tokens=live.choice.cached_tokens,
            completion_tokens=live.choice.completion_tokens,
        )
        if self._traces is not None:
            self._trace(request, outcome, live.started_at, now, live)

    def _trace(
        self, request: GenerateRequest, outcome: str, started: float, now: float, live: Live | None = None
    ) -> None:
        """`live` None: it was refused."""
        assert self._traces is not None
        choice = live.choice if live is not None else None
        end = ChoiceEnd(
            request_id=request.request_id,
            model=request.model[:200],
            engine=self.info.name if self.info is not None else "",
            choice_index=request.choice_index,
            lease_id=request.lease_id,
            started=started,
            prefill=live.prefill_at if live is not None else 0.0,
            first_token=live.first_output_at if live is not None else 0.0,
            ended=now,
            outcome=outcome,
            prompt_tokens=choice.prompt_tokens if choice is not None else len(request.prompt_token_ids),
            cached_tokens=choice.cached_tokens if choice is not None else 0,
            completion_tokens=choice.completion_tokens if choice is not None else 0,
        )
        self._traces.ended(request.traceparent, end)

    def _check_open(self) -> EngineInfo:
        """What the engine is, unless nothing new is taken. Raises ApiError."""
        if self._is_refusing:
            raise ApiError(Reason.SHUTTING_DOWN, "This worker is shutting down.", retry_after_s=1.0)
        if self.info is None:
            raise ApiError(Reason.MODEL_NOT_READY, "This worker is loading its model.", retry_after_s=1.0)
        return self.info

    def _retry_after_s(self) -> float:
        """When a slot should be free: the mean duration of a choice over the slots that end one after another."""
        assert self.info is not None
        least, greatest = _RETRY_AFTER_S
        return min(greatest, max(least, self._mean_duration_s / self.info.max_running))

    def _wake_watchers(self) -> None:
        for watcher in self._watchers:
            watcher.wake.set()


def _outcome(delta: Delta, live: Live) -> str:
    if delta.error is not None:
        return delta.error.reason.label
    if delta.finish_reason is FinishReason.ABORTED:
        return live.aborted_for or Reason.CLIENT_CLOSED_REQUEST.label
    return OK
