"""What the gateway counts. Label values are bounded: model names come from the catalogue, else "other"."""

from __future__ import annotations

from collections.abc import Callable

from inferway.metrics import GAP_BUCKETS, LATENCY_BUCKETS, OTHER, CappedLabel, Registry

__all__ = ["OTHER", "Metrics"]

# Tenants and models beyond these, in the order in which they come, are counted together.
_TENANTS = 200
_MODELS = 500
# Reading what a process takes costs a millisecond where it has thousands of connections.
_FLUSHES_A_PROCESS = 5


# How a process may end that is replaced.
DIED, STALLED = "died", "stalled"


class Metrics:
    """One instance a process; `flush` about once a second."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._flushes = 0
        counter, gauge, histogram = registry.counter, registry.gauge, registry.histogram
        self.requests = counter("requests", "Requests by how they ended.", "model", "outcome")
        self.http_responses = counter("http_responses", "Responses by route and status.", "route", "status")
        self.in_flight = gauge("requests_in_flight", "Requests being answered.")
        self.awaiting_worker = gauge(
            "requests_awaiting_worker", "Requests that wait for the first worker of a model.", "model"
        )
        self.queue_time = histogram("queue_time_seconds", "Queued to dispatched.", "model", buckets=LATENCY_BUCKETS)
        self.time_to_first_token = histogram(
            "time_to_first_token_seconds",
            "Received to the first delta from the worker.",
            "model",
            buckets=LATENCY_BUCKETS,
        )
        self.e2e_latency = histogram(
            "e2e_request_latency_seconds", "Received to finished.", "model", buckets=LATENCY_BUCKETS
        )
        self.time_per_output_token = histogram(
            "time_per_output_token_seconds",
            "Mean gap of a request after its first token, of answers of two tokens and more.",
            "model",
            buckets=GAP_BUCKETS,
        )
        self.inter_token_latency = registry.bulk_histogram(
            "inter_token_latency_seconds", "Gaps between tokens of one choice.", buckets=GAP_BUCKETS
        )
        self._model = CappedLabel(_MODELS, registry.label_values("model"))
        self.tokens = counter("tokens", "Tokens by kind.", "model", "kind")
        self.tenant = CappedLabel(_TENANTS, registry.label_values("tenant"))
        self.tenant_requests = counter("tenant_requests", "A tenant's requests by how they ended.", "tenant", "outcome")
        self.tenant_tokens = counter("tenant_tokens", "A tenant's tokens by kind.", "tenant", "kind")
        self.tool_calls = counter(
            "tool_calls", "Tool calls by what became of them, and markup that was none.", "model", "outcome"
        )
        self.retries = counter("retries", "Requests sent to a further worker.", "reason")
        self.fallback_dispatches = counter("fallback_dispatches", "Requests dispatched without a router.")
        self.quota_refusals = counter(
            "quota_refusals", "Requests that a bound refused, or would have in shadow mode.", "bound", "mode"
        )
        self.quota_decisions = counter(
            "quota_decisions", "Requests by who decided on their quota, and how.", "decision"
        )
        self.quota_store_up = gauge("quota_store_up", "Whether the store of quotas answers; 1 where there is none.")
        self._settings = counter("settings_versions", "New versions of files of settings.", "file", "outcome")
        self.sessions = gauge("worker_sessions", "Workers with an open session.")
        self.routers = gauge("routers_connected", "Routers with an open stream.")
        self._process_ends = counter(
            "process_ends", "Processes, of several that share a port, which ended unasked or hung.", "reason"
        )
        for reason in (DIED, STALLED):
            self._process_ends.labels(reason)
        self.loop_lag = histogram(
            "event_loop_lag_seconds", "How late a timer of the event loop fired.", buckets=GAP_BUCKETS
        )

    def follow(self, ended: str) -> None:
        """This process stands in for one that has DIED or STALLED; empty: for none."""
        if ended:
            self._process_ends.labels(ended).inc()

    def settings_file(self, file: str) -> Callable[[bool], None]:
        """What counts the versions of a file of settings, whether they are in force or were refused."""
        loaded, refused = (self._settings.labels(file, outcome) for outcome in ("loaded", "refused"))
        return lambda taken: (loaded if taken else refused).inc()

    def model(self, name: str, *, is_known: bool) -> str:
        """The label of a model; what no worker has ever served is OTHER."""
        return self._model(name) if is_known else OTHER

    def flush(self) -> None:
        self.inter_token_latency.flush()
        self._flushes += 1
        if self._flushes % _FLUSHES_A_PROCESS == 0:
            self._registry.tell_process()
