"""The router's metrics. Gauges are read from the dispatcher at each scrape, so that none outlives its worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

from inferway.exposition import Readings
from inferway.metrics import LATENCY_BUCKETS, OTHER, CappedLabel, Registry

from .core.dispatcher import Dispatcher
from .core.headroom import capacity, headroom
from .core.health import BreakerState
from .core.messages import Action, Dispatch, WorkerStatus

# Models beyond these, in the order in which they come, are counted together.
_MODELS = 500

CANCELLED = "cancelled"
DISPATCHED = "dispatched"
# By whether they are in force.
_VERSIONS = {True: "loaded", False: "refused"}


class _Series:
    """A metric by its labels, each looked up in prometheus_client once: it takes a lock and microseconds each time."""

    def __init__(self, metric: Any) -> None:
        self._metric = metric
        self._known: dict[tuple[str, ...], Any] = {}

    def labels(self, *labels: str) -> Any:
        found = self._known.get(labels)
        if found is None:
            found = self._known[labels] = self._metric.labels(*labels)
        return found

    def forget(self, worker_id: str) -> None:
        """Of a metric whose first label is the worker."""
        self._metric.remove_by_labels({"worker": worker_id})
        self._known = {labels: found for labels, found in self._known.items() if labels[0] != worker_id}


class RouterMetrics:
    """One instance a router."""

    def __init__(self, registry: Registry, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._model = CappedLabel(_MODELS)

        def counter(name: str, doc: str, *labels: str) -> _Series:
            return _Series(registry.counter(name, doc, *labels))

        registry.add(_State(registry, dispatcher))
        self._queue_time = _Series(
            registry.histogram(
                "queue_time_seconds",
                "Time from submission to dispatch.",
                "model",
                "priority",
                buckets=LATENCY_BUCKETS,
            )
        )
        self._decisions = counter("decisions", "Requests that left the queue, by how.", "model", "outcome")
        self._refused = registry.counter("refused_submissions", "Submissions that broke the contract.")
        self._predicted = counter(
            "predicted_cached_tokens", "Prompt tokens predicted to be cached, of prompts that were computed.", "model"
        )
        self._actual = counter(
            "actual_cached_tokens", "Prompt tokens that the engine found cached, of the same prompts.", "model"
        )
        settings = counter("settings_versions", "New versions of files of settings.", "file", "outcome")
        self._routing_read = {taken: settings.labels("routing", outcome) for taken, outcome in _VERSIONS.items()}
        self._log_lines = counter("decision_log_lines", "Lines of the decision log, written or lost.", "outcome")
        self._releases = counter("releases", "Leases that gateways have given back.", "worker", "outcome")
        self._breaker_turns = counter(
            "breaker_transitions", "Times that a worker's breaker came into a state.", "worker", "state"
        )

    def decided(self, action: Action) -> None:
        label = self._label(action.request.model)
        if isinstance(action, Dispatch):
            self._queue_time.labels(label, str(action.request.priority)).observe(action.queue_time_s)
            self._decisions.labels(label, DISPATCHED).inc()
        else:
            self._decisions.labels(label, action.error.reason.label).inc()

    def cancelled(self, model: str, requests: int = 1) -> None:
        self._decisions.labels(self._label(model), CANCELLED).inc(requests)

    def refused_submission(self) -> None:
        self._refused.inc()

    def routing_read(self, is_taken: bool) -> None:
        """A new version of routing.yaml is in force, or was refused."""
        self._routing_read[is_taken].inc()

    def decision_log_lines(self, outcome: str, lines: int) -> None:
        self._log_lines.labels(outcome).inc(lines)

    def computed(self, model: str, *, predicted: int, actual: int) -> None:
        label = self._label(model)
        self._predicted.labels(label).inc(predicted)
        self._actual.labels(label).inc(actual)

    def released(self, worker_id: str, outcome: str) -> None:
        self._releases.labels(worker_id, outcome).inc()

    def breaker_turned(self, worker_id: str, state: str) -> None:
        self._breaker_turns.labels(worker_id, state).inc()

    def worker_down(self, worker_id: str) -> None:
        """Names of workers come and go with their pods; their series go too."""
        self._releases.forget(worker_id)
        self._breaker_turns.forget(worker_id)

    def _label(self, model: str) -> str:
        return self._model(model) if self._dispatcher.is_served(model) else OTHER


class _State:
    def __init__(self, registry: Registry, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        family = registry.family
        self._queue = (
            family("queue_requests", "Requests that wait.", "model"),
            family("queue_tokens", "Prompt tokens of requests that wait.", "model"),
            family("queue_oldest_seconds", "How long the one has waited that waits longest.", "model"),
        )
        self._ready = family("model_workers_ready", "Workers that may get requests of the model.", "model")
        self._slots_free = family("model_slots_free", "Requests that these workers have room for now.", "model")
        self._slots = family("model_slots", "Requests that these workers have at most, as things stand.", "model")
        self._backlog = family(
            "model_prefill_backlog_seconds",
            "Time that these workers take for the prompts that wait, in the queue and with them.",
            "model",
        )
        self._headroom = family(
            "model_headroom_ratio",
            "Share of the capacity that is free: the least of slots, KV cache and prefill; 0 without a ready worker.",
            "model",
        )
        self._quarantined = family(
            "quarantined_prompts", "Prompts that are sent to no worker because they may have killed two."
        )
        self._status = family("worker_status", "1 for the present status.", "worker", "status")
        self._breaker = family("worker_breaker", "1 for the present state of the breaker.", "worker", "state")
        self._of_worker = tuple(
            family(f"worker_{name}", doc, "worker")
            for name, doc in (
                ("slots", "Requests that it has at most, as far along as its slow start is."),
                ("requests_in_flight", "Requests dispatched and not released."),
                ("uncached_tokens_in_flight", "Uncached prompt tokens whose first token has not come."),
                ("num_requests_running", "Requests in the batch, by the last report."),
                ("num_requests_waiting", "Requests waiting at the worker, by the last report."),
                ("kv_used_tokens", "KV tokens in use, by the last report."),
                ("kv_total_tokens", "KV tokens that the cache holds."),
                ("index_trust_ratio", "Share of the predicted cached tokens that were there, lately."),
                ("indexed_blocks", "Blocks that the prefix index holds for the worker."),
            )
        )

    def __call__(self) -> Iterator[Readings]:
        now = time.monotonic()
        yield from self._queues(now)
        yield from self._models()
        held = self._quarantined()
        held.add_metric([], self._dispatcher.quarantine.num_held(now=now))
        yield held
        yield from self._workers()

    def _queues(self, now: float) -> Iterator[Readings]:
        families = [family() for family in self._queue]
        others = [0, 0, 0.0]
        shown = CappedLabel(_MODELS)
        for queue in self._dispatcher.queues():
            oldest_s = now - queue.oldest_at if queue.oldest_at is not None else 0.0
            if self._dispatcher.is_served(queue.model) and shown(queue.model) != OTHER:
                for family, value in zip(families, (queue.requests, queue.tokens, oldest_s), strict=True):
                    family.add_metric([queue.model], value)
            else:
                others = [others[0] + queue.requests, others[1] + queue.tokens, max(others[2], oldest_s)]
        for family, value in zip(families, others, strict=True):
            family.add_metric([OTHER], value)
        yield from families

    def _models(self) -> Iterator[Readings]:
        families = [make() for make in (self._ready, self._slots_free, self._slots, self._backlog, self._headroom)]
        served = (model for model in self._dispatcher.models() if model.workers)
        for model in islice(served, _MODELS):
            room = headroom(map(capacity, model.workers), queued_tokens=model.queue.tokens)
            for family, value in zip(families, room, strict=True):
                family.add_metric([model.name], value)
        yield from families

    def _workers(self) -> Iterator[Readings]:
        status, breaker = self._status(), self._breaker()
        families = [family() for family in self._of_worker]
        for worker in self._dispatcher.workers():
            for possible in (WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.LOST):
                status.add_metric([worker.worker_id, possible.value], worker.status is possible)
            for state in BreakerState:
                breaker.add_metric([worker.worker_id, state.value], worker.breaker.state is state)
            readings = (
                worker.slots_now,
                worker.books.requests_in_flight,
                worker.books.uncached_tokens,
                worker.report.num_requests_running,
                worker.report.num_requests_waiting,
                worker.report.kv_used_tokens,
                worker.kv_total_tokens or 0,
                worker.trust,
                self._dispatcher.indexed_blocks(worker),
            )
            for family, value in zip(families, readings, strict=True):
                family.add_metric([worker.worker_id], value)
        yield from (status, breaker, *families)
