"""What the gateway counts. Label values are bounded: model names come from the catalogue, else "other"."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from inferway.metrics import GAP_BUCKETS, LATENCY_BUCKETS, BulkHistogram

OTHER = "other"


class Metrics:
    """One instance a process; `flush` about once a second."""

    def __init__(self) -> None:
        name = "inferway_gateway_"
        self.requests = Counter(name + "requests", "Requests by how they ended.", ["model", "outcome"])
        self.http_responses = Counter(name + "http_responses", "Responses by route and status.", ["route", "status"])
        self.in_flight = Gauge(name + "requests_in_flight", "Requests being answered.", multiprocess_mode="livesum")
        self.queue_time = Histogram(
            name + "queue_time_seconds", "Queued to dispatched.", ["model"], buckets=LATENCY_BUCKETS
        )
        self.time_to_first_token = Histogram(
            name + "time_to_first_token_seconds", "Received to first output.", ["model"], buckets=LATENCY_BUCKETS
        )
        self.e2e_latency = Histogram(
            name + "e2e_request_latency_seconds", "Received to finished.", ["model"], buckets=LATENCY_BUCKETS
        )
        self.inter_token_latency = BulkHistogram(
            name + "inter_token_latency_seconds", "Gaps between tokens of one choice.", GAP_BUCKETS
        )
        self.tokens = Counter(name + "tokens", "Tokens by kind.", ["model", "kind"])
        self.retries = Counter(name + "retries", "Requests sent to a further worker.", ["reason"])
        self.fallback_dispatches = Counter(name + "fallback_dispatches", "Requests dispatched without a router.")
        self.sessions = Gauge(name + "worker_sessions", "Workers with an open session.", multiprocess_mode="livesum")
        self.routers = Gauge(name + "routers_connected", "Routers with an open stream.", multiprocess_mode="livesum")
        self.loop_lag = Histogram(
            name + "event_loop_lag_seconds", "How late a timer of the event loop fired.", buckets=GAP_BUCKETS
        )

    def flush(self) -> None:
        self.inter_token_latency.flush()
