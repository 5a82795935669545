"""The worker's metrics. Tallies of the step path are plain integers until a scrape asks for them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from inferway.metrics import GAP_BUCKETS, CappedLabel, Registry

from .core.orphans import Orphans
from .engine import Load

# Adapters beyond these, in the order in which they come, are counted together.
_MODELS = 500


class WorkerMetrics:
    """What one worker counts. The dictionaries hold what has come since the last `flush`."""

    def __init__(self, registry: Registry) -> None:
        self.prompt_tokens: defaultdict[str, int] = defaultdict(int)
        self.cached_tokens: defaultdict[str, int] = defaultdict(int)
        self.completion_tokens: defaultdict[str, int] = defaultdict(int)
        self.outcomes: defaultdict[str, int] = defaultdict(int)
        self._label = CappedLabel(_MODELS)
        counter, gauge = registry.counter, registry.gauge
        self._counters = (
            (counter("prompt_tokens", "Prompt tokens of choices that were admitted.", "model"), self.prompt_tokens),
            (counter("cached_tokens", "Prompt tokens found in the KV cache.", "model"), self.cached_tokens),
            (counter("completion_tokens", "Tokens that the engine has made.", "model"), self.completion_tokens),
            (counter("outcomes", "Choices by how they ended, once each.", "outcome"), self.outcomes),
        )
        self._grammars = counter("grammar_cache", "Constraints by whether their compiled grammar was there.", "outcome")
        self._grammars_told = {"hit": 0, "miss": 0}
        self._orphans = counter("orphans", "What lost gateways left unsettled: made, booked, dropped.", "event")
        self._orphans_told = {"made": 0, "booked": 0, "dropped": 0}
        self._running = gauge("num_requests_running", "Choices in the batch.")
        self._waiting = gauge("num_requests_waiting", "Choices admitted and not in the batch.")
        self._unsettled = gauge("unsettled", "Choices that have ended and that their gateway has not settled yet.")
        self._orphans_waiting = gauge("orphans_waiting", "Orphans that no gateway has booked yet.")
        self._kv_used = gauge("kv_used_tokens", "Tokens in the KV cache that running choices need.")
        self._steps = registry.bulk_histogram(
            "step_seconds", "Time between two engine steps while choices run.", buckets=GAP_BUCKETS
        )

    def step(self, seconds: float) -> None:
        self._steps.observe(seconds)

    def flush(self, load: Load | None, orphans: Orphans[Any]) -> None:
        """Hand everything to Prometheus; called at a scrape."""
        for counter, tally in self._counters:
            for label, count in tally.items():
                counter.labels(self._label(label) if tally is not self.outcomes else label).inc(count)
            tally.clear()
        self._steps.flush()
        self._unsettled.set(orphans.num_unsettled)
        self._orphans_waiting.set(len(orphans))
        for event, total in (("made", orphans.made), ("booked", orphans.booked), ("dropped", orphans.dropped)):
            self._orphans.labels(event).inc(total - self._orphans_told[event])
            self._orphans_told[event] = total
        if load is not None:
            self._running.set(load.num_requests_running)
            self._waiting.set(load.num_requests_waiting)
            self._kv_used.set(load.kv_used_tokens)
            for outcome, total in (("hit", load.grammar_hits), ("miss", load.grammar_misses)):
                self._grammars.labels(outcome).inc(total - self._grammars_told[outcome])
                self._grammars_told[outcome] = total
