"""The router's metrics. Gauges are read from the dispatcher at each scrape, so that none outlives its worker."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from inferway.metrics import LATENCY_BUCKETS, Registry

from .core.dispatcher import Dispatcher
from .core.health import BreakerState
from .core.messages import Action, Dispatch, WorkerStatus

CANCELLED = "cancelled"
DISPATCHED = "dispatched"
# The label of models that no worker serves: their names come from outside and have no bound.
_OTHER = "other"


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

        def counter(name: str, doc: str, *labels: str) -> _Series:
            return _Series(registry.counter(name, doc, *labels))

        registry.add(_State(registry, dispatcher))
        self._queue_time = _Series(
            registry.histogram(
                "queue_time_seconds", "Time from submission to dispatch.", "model", buckets=LATENCY_BUCKETS
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
        self._settings = counter("settings_versions", "New versions of files of settings.", "file", "outcome")
        self._log_lines = counter("decision_log_lines", "Lines of the decision log, written or lost.", "outcome")
        self._releases = counter("releases", "Leases that gateways have given back.", "worker", "outcome")
        self._breaker_turns = counter(
            "breaker_transitions", "Times that a worker's breaker came into a state.", "worker", "state"
        )

    def decided(self, action: Action) -> None:
        label = self._label(action.request.model)
        if isinstance(action, Dispatch):
            self._queue_time.labels(label).observe(action.queue_time_s)
            self._decisions.labels(label, DISPATCHED).inc()
        else:
            self._decisions.labels(label, action.error.reason.label).inc()

    def cancelled(self, model: str, requests: int = 1) -> None:
        self._decisions.labels(self._label(model), CANCELLED).inc(requests)

    def refused_submission(self) -> None:
        self._refused.inc()

    def routing_read(self, is_taken: bool) -> None:
        """A new version of routing.yaml is in force, or was refused."""
        self._settings.labels("routing", "loaded" if is_taken else "refused").inc()

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
        return model if self._dispatcher.is_served(model) else _OTHER


class _State(Collector):
    def __init__(self, registry: Registry, dispatcher: Dispatcher) -> None:
        self._registry = registry
        self._dispatcher = dispatcher

    def collect(self) -> Iterator[GaugeMetricFamily]:
        gauge = self._gauge
        requests = gauge("queue_requests", "Requests that wait.", "model")
        tokens = gauge("queue_tokens", "Prompt tokens of requests that wait.", "model")
        others = [0, 0]
        for queue in self._dispatcher.queues():
            if self._dispatcher.is_served(queue.model):
                requests.add_metric([queue.model], queue.requests)
                tokens.add_metric([queue.model], queue.tokens)
            else:
                others[0] += queue.requests
                others[1] += queue.tokens
        requests.add_metric([_OTHER], others[0])
        tokens.add_metric([_OTHER], others[1])
        yield requests
        yield tokens

        held = gauge("quarantined_prompts", "Prompts that are sent to no worker because they may have killed two.")
        held.add_metric([], self._dispatcher.quarantine.num_held(now=time.monotonic()))
        yield held

        status = gauge("worker_status", "1 for the present status.", "worker", "status")
        breaker = gauge("worker_breaker", "1 for the present state of the breaker.", "worker", "state")
        slots = gauge("worker_slots", "Requests that it has at most, as far along as its slow start is.", "worker")
        in_flight = gauge("worker_requests_in_flight", "Requests dispatched and not released.", "worker")
        uncached = gauge(
            "worker_uncached_tokens_in_flight", "Uncached prompt tokens whose first token has not come.", "worker"
        )
        running = gauge("worker_num_requests_running", "Requests in the batch, by the last report.", "worker")
        waiting = gauge("worker_num_requests_waiting", "Requests waiting at the worker, by the last report.", "worker")
        used = gauge("worker_kv_used_tokens", "KV tokens in use, by the last report.", "worker")
        total = gauge("worker_kv_total_tokens", "KV tokens that the cache holds.", "worker")
        trust = gauge("worker_index_trust", "Share of the predicted cached tokens that were there, lately.", "worker")
        blocks = gauge("worker_indexed_blocks", "Blocks that the prefix index holds for the worker.", "worker")
        for worker in self._dispatcher.workers():
            label = [worker.worker_id]
            for possible in (WorkerStatus.READY, WorkerStatus.DRAINING, WorkerStatus.LOST):
                status.add_metric([worker.worker_id, possible.value], worker.status is possible)
            for state in BreakerState:
                breaker.add_metric([worker.worker_id, state.value], worker.breaker.state is state)
            slots.add_metric(label, worker.slots_now)
            in_flight.add_metric(label, worker.books.requests_in_flight)
            uncached.add_metric(label, worker.books.uncached_tokens)
            running.add_metric(label, worker.report.num_requests_running)
            waiting.add_metric(label, worker.report.num_requests_waiting)
            used.add_metric(label, worker.report.kv_used_tokens)
            total.add_metric(label, worker.kv_total_tokens or 0)
            trust.add_metric(label, worker.trust)
            blocks.add_metric(label, self._dispatcher.indexed_blocks(worker))
        yield from (status, breaker, slots, in_flight, uncached, running, waiting, used, total, trust, blocks)

    def _gauge(self, name: str, doc: str, *labels: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(self._registry.name(name), doc, labels=labels)
