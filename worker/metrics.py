"""The worker's metrics. Tallies of the step path are plain integers until a scrape asks for them."""

from __future__ import annotations

from collections import defaultdict

from prometheus_client import Counter, Gauge

from inferway.metrics import BulkHistogram

from .engine import Load

_RUNNING = Gauge("inferway_worker_num_requests_running", "Choices in the batch.")
_WAITING = Gauge("inferway_worker_num_requests_waiting", "Choices admitted and not in the batch.")
_KV_USED = Gauge("inferway_worker_kv_used_tokens", "Tokens in the KV cache that running choices need.")
_GENERATED = Counter("inferway_worker_generated_tokens_total", "Completion tokens.", ["model"])
_PROMPT = Counter("inferway_worker_prompt_tokens_total", "Prompt tokens of choices that were admitted.", ["model"])
_CACHED = Counter("inferway_worker_cached_tokens_total", "Prompt tokens found in the KV cache.", ["model"])
_OUTCOMES = Counter("inferway_worker_outcomes_total", "Choices by how they ended, once each.", ["outcome"])
_STEPS = BulkHistogram("inferway_worker_step_seconds", "Time between two engine steps while choices run.")


class Tallies:
    """What one worker has counted since the last `flush`."""

    def __init__(self) -> None:
        self.generated: defaultdict[str, int] = defaultdict(int)
        self.prompt: defaultdict[str, int] = defaultdict(int)
        self.cached: defaultdict[str, int] = defaultdict(int)
        self.outcomes: defaultdict[str, int] = defaultdict(int)

    def step(self, seconds: float) -> None:
        _STEPS.observe(seconds)

    def flush(self, load: Load | None) -> None:
        """Hand everything to Prometheus; called at a scrape."""
        for counter, tally in ((_GENERATED, self.generated), (_PROMPT, self.prompt), (_CACHED, self.cached)):
            for model, count in tally.items():
                counter.labels(model).inc(count)
            tally.clear()
        for outcome, count in self.outcomes.items():
            _OUTCOMES.labels(outcome).inc(count)
        self.outcomes.clear()
        _STEPS.flush()
        if load is not None:
            _RUNNING.set(load.num_requests_running)
            _WAITING.set(load.num_requests_waiting)
            _KV_USED.set(load.kv_used_tokens)
