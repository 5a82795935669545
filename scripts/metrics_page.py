"""docs/metrics.md: every metric of every service, from where it is declared."""

from __future__ import annotations

from random import Random

from gateway.metrics import Metrics as GatewayMetrics
from gateway.quota.ledger_watch import LedgerMetrics
from gateway.quota.settling import SettlingMetrics
from inferway.metrics import Described, Registry
from inferway.trace_export import Tracer
from router.core.dispatcher import Dispatcher
from router.core.placement.routing import routing_of
from router.core.queue import QueueLimits
from router.metrics import RouterMetrics
from worker.metrics import WorkerMetrics

# What bounds the values of each label.
LABELS = {
    "bound": "names of limits, a dozen",
    "decision": "closed set of the code",
    "event": "closed set of the code",
    "file": "kinds of files of settings",
    "kind": "`prompt`, `cached` (of the prompt ones), `completion`",
    "mode": "`enforced`, `shadow`",
    "model": "the first 500 names that workers serve, adapters among them; any other is `other`",
    "outcome": "closed set of the code; of requests [these](errors.md)",
    "priority": "`0` to `9`",
    "python": "one",
    "reason": "closed set of the code",
    "revision": "one",
    "route": "paths of the [API](api.md); any other is `other`",
    "state": "closed set of the code",
    "status": "HTTP statuses in use; of workers `ready`, `draining`, `lost`",
    "tenant": "the first 200 tenants that a process serves; further ones are `other`",
    "version": "one",
    "worker": "workers that the router knows; its series go when it goes",
}
# By the end of a name, without `_total`.
_UNITS = ("seconds", "tokens", "bytes", "ratio", "blocks")


def per_second(metric: str, *by: str, where: str = "") -> str:
    """How fast a counter rises, summed over all processes."""
    labels = f" by ({', '.join(by)})" if by else ""
    selector = f"{{{where}}}" if where else ""
    return f"sum{labels} (rate(inferway_{metric}{selector}[5m]))"


def quantile(share: float, histogram: str, *by: str, where: str = "") -> str:
    return f"histogram_quantile({share:g}, {per_second(f'{histogram}_bucket', 'le', *by, where=where)})"


_CACHED = per_second("gateway_tokens_total", "model", where='kind="cached"')
_PROMPT = per_second("gateway_tokens_total", "model", where='kind="prompt"')
_CAME = per_second("router_actual_cached_tokens_total", "model")
_PREDICTED = per_second("router_predicted_cached_tokens_total", "model")
CACHED_RATIO = f"{_CACHED} / {_PROMPT}"
TRUTH = f"{_CAME} / {_PREDICTED}"

DERIVED = (
    ("Share of prompt tokens that were cached.", CACHED_RATIO),
    ("Cached tokens that came, of those predicted; below 1 the index promises what is not there.", TRUTH),
    ("99 of 100 have their first token within.", quantile(0.99, "gateway_time_to_first_token_seconds", "model")),
    ("Capacity that is free, where a model's requests go.", "min by (model) (inferway_router_model_headroom_ratio)"),
)


class _NoTraces:
    otlp_endpoint = ""


def services() -> dict[str, list[Described]]:
    """What each service declares, in its order."""
    gateway, router, worker = Registry("gateway"), Registry("router"), Registry("worker")
    GatewayMetrics(gateway)
    SettlingMetrics(gateway)
    LedgerMetrics(gateway)
    dispatcher = Dispatcher(routing=routing_of("default"), rng=Random(0), first_lease_id=1, limits=QueueLimits())
    RouterMetrics(router, dispatcher)
    WorkerMetrics(worker)
    for service, registry in (("gateway", gateway), ("router", router), ("worker", worker)):
        Tracer(service, _NoTraces(), registry)
    return {"gateway": gateway.described, "router": router.described, "worker": worker.described}


def unit(metric: Described) -> str:
    name = metric.name.removesuffix("_total")
    return next((one for one in _UNITS if name.endswith(f"_{one}") or f"_{one}_" in name), "")


def metrics_page(note: str) -> str:
    declared = services()
    sections = "\n".join(_section(service, metrics) for service, metrics in declared.items())
    used = sorted({label for metrics in declared.values() for metric in metrics for label in metric.labels})
    labels = "\n".join(f"| `{label}` | {LABELS[label]} |" for label in used)
    derived = "\n".join(f"| {what} | `{expression}` |" for what, expression in DERIVED)
    return f"""{note}
# Metrics

Prometheus text at `/metrics`, or OpenMetrics for a scraper that asks for it, with gzip where it unpacks that: of the
gateway on its own port, of router and worker on their ops ports. A page is written beside what the service does: that
of a router with 1,000 workers, 1.1 MB, takes its loop some 40 ms instead of 250.

Of several gateway processes on one port any answers for all: counters and histograms go on where a process that died
has stopped, gauges are those of the processes that live; `process_cpu_seconds_total`, `process_resident_memory_bytes`
and `process_open_fds` are sums over them, too. A single process shows all `process_*` and `python_*` of its client
library.

A histogram has `_bucket` with `le`, `_sum` and `_count` behind its name. A series comes with its first event: a counter
that is not there is 0. Names of requests, keys and sessions are never labels.

{sections}
## Labels

| label | values |
| --- | --- |
{labels}

## What is asked of them

| what | expression |
| --- | --- |
{derived}

Dashboards and alerts that use them: [observability](observability.md).
"""


def _section(service: str, metrics: list[Described]) -> str:
    rows = "\n".join(
        f"| `{metric.name}` | {metric.kind} | {unit(metric)} | {', '.join(f'`{it}`' for it in metric.labels)} | "
        f"{metric.doc} |"
        for metric in metrics
    )
    return f"""## {service.capitalize()}

| name | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
{rows}
"""
