"""Grafana's dashboards, helm/inferway/files/dashboards/*.json, from one line a panel.

Prometheus is chosen by the variable `datasource`, so that the files can be put into any Grafana as they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from scripts.metrics_page import per_second, quantile

_WIDTH, _HEIGHT = 8, 7
_COLUMNS = 24 // _WIDTH
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
# A counter comes with its first event.
_OR_ZERO = " or vector(0)"


class Query(NamedTuple):
    expr: str
    legend: str


class Panel(NamedTuple):
    """`unit` is one of Grafana's."""

    title: str
    unit: str
    queries: Sequence[Query]


class Dashboard(NamedTuple):
    """`variables` are labels that one can narrow it by, each with a metric that has all of its values."""

    name: str
    title: str
    variables: Mapping[str, str]
    rows: Mapping[str, Sequence[Panel]]


def _panel(title: str, unit: str, *queries: tuple[str, str]) -> Panel:
    return Panel(title, unit, [Query(expr, legend) for expr, legend in queries])


def _quantiles(title: str, histogram: str, *by: str, where: str = "") -> Panel:
    shown = "".join(f" {{{{{label}}}}}" for label in by)
    return _panel(
        title,
        "s",
        (quantile(0.5, histogram, *by, where=where), f"p50{shown}"),
        (quantile(0.99, histogram, *by, where=where), f"p99{shown}"),
    )


_MODEL, _WORKER, _TENANT = 'model=~"$model"', 'worker=~"$worker"', 'tenant=~"$tenant"'


def _per_model(metric: str) -> str:
    """Of several routers the one that a model's requests go to knows the most."""
    return f"max by (model) (inferway_router_{metric}{{{_MODEL}}})"


def _per_worker(metric: str) -> str:
    return f"max by (worker) (inferway_router_worker_{metric}{{{_WORKER}}})"


def _kinds(metric: str, where: str, by: str, numerator: str, denominator: str) -> str:
    """The share of one kind of tokens in another."""
    over, under = (per_second(metric, by, where=f'{where}, kind="{kind}"') for kind in (numerator, denominator))
    return f"{over} / {under}"


PLATFORM = Dashboard(
    "platform",
    "Inferway: platform",
    {"model": "inferway_gateway_e2e_request_latency_seconds_count"},
    {
        "What callers get": [
            _panel(
                "Requests by outcome",
                "reqps",
                (per_second("gateway_requests_total", "outcome", where=_MODEL), "{{outcome}}"),
            ),
            _panel(
                "Failures of ours, and late first tokens",
                "percentunit",
                (f"inferway:request_failures:ratio_rate5m{_OR_ZERO}", "failures"),
                ("inferway:late_first_tokens:ratio_rate5m", "first tokens later than 5 s"),
            ),
            _panel(
                "HTTP responses",
                "reqps",
                (per_second("gateway_http_responses_total", "route", "status"), "{{route}} {{status}}"),
            ),
            _quantiles("Time to first token", "gateway_time_to_first_token_seconds", "model", where=_MODEL),
            _quantiles("Between tokens", "gateway_inter_token_latency_seconds"),
            _quantiles("Time per output token", "gateway_time_per_output_token_seconds", "model", where=_MODEL),
            _quantiles("From request to end", "gateway_e2e_request_latency_seconds", "model", where=_MODEL),
            _panel(
                "Tokens",
                "short",
                (per_second("gateway_tokens_total", "model", "kind", where=_MODEL), "{{model}} {{kind}}"),
            ),
            _panel(
                "Prompt tokens that were cached",
                "percentunit",
                (_kinds("gateway_tokens_total", _MODEL, "model", "cached", "prompt"), "{{model}}"),
            ),
        ],
        "Capacity": [
            _panel("Headroom", "percentunit", (_per_model("model_headroom_ratio"), "{{model}}")),
            _panel("Workers that take requests", "short", (_per_model("model_workers_ready"), "{{model}}")),
            _panel(
                "Requests",
                "short",
                ("sum(inferway_gateway_requests_in_flight)", "being answered"),
                ("max(sum by (instance) (inferway_router_queue_requests))", "waiting"),
            ),
        ],
        "The parts": [
            _panel(
                "Versions",
                "short",
                *(
                    (f"count by (version) (inferway_{service}_build_info)", f"{service} {{{{version}}}}")
                    for service in ("gateway", "router", "worker")
                ),
            ),
            _panel(
                "Connections of gateways",
                "short",
                ("min(inferway_gateway_worker_sessions)", "workers, fewest"),
                ("min(inferway_gateway_routers_connected)", "routers, fewest"),
            ),
            _panel(
                "Sent again, and without a router",
                "reqps",
                (per_second("gateway_retries_total", "reason") + _OR_ZERO, "again: {{reason}}"),
                (per_second("gateway_fallback_dispatches_total"), "without a router"),
            ),
            _quantiles("How late the gateways' loops are", "gateway_event_loop_lag_seconds"),
            _panel(
                "Redis",
                "short",
                ("min(inferway_gateway_quota_store_up)", "answers"),
                ("sum(inferway_gateway_settlements_pending)", "settlements only in memory"),
                ("max(inferway_gateway_ledger_entries)", "entries of the ledger"),
            ),
            _panel("Spool", "bytes", ("sum(inferway_gateway_spool_bytes)", "on disk")),
        ],
    },
)

TENANT = Dashboard(
    "tenant",
    "Inferway: tenants",
    {"tenant": "inferway_gateway_tenant_requests_total"},
    {
        "Use": [
            _panel(
                "Requests",
                "reqps",
                (f"topk(20, {per_second('gateway_tenant_requests_total', 'tenant', where=_TENANT)})", "{{tenant}}"),
            ),
            _panel(
                "Requests by outcome",
                "reqps",
                (per_second("gateway_tenant_requests_total", "outcome", where=_TENANT), "{{outcome}}"),
            ),
            _panel(
                "Tokens",
                "short",
                (
                    f"topk(20, {per_second('gateway_tenant_tokens_total', 'tenant', 'kind', where=_TENANT)})",
                    "{{tenant}} {{kind}}",
                ),
            ),
            _panel(
                "Prompt tokens that were cached",
                "percentunit",
                (_kinds("gateway_tenant_tokens_total", _TENANT, "tenant", "cached", "prompt"), "{{tenant}}"),
            ),
            _panel(
                "Tokens of a day",
                "short",
                (
                    f"sum by (tenant, kind) (increase(inferway_gateway_tenant_tokens_total{{{_TENANT}}}[1d]))",
                    "{{tenant}} {{kind}}",
                ),
            ),
        ],
        "Quotas": [
            _panel(
                "Refused, by the limit that did",
                "reqps",
                (per_second("gateway_quota_refusals_total", "bound", "mode"), "{{bound}} {{mode}}"),
            ),
            _panel(
                "Who decided, and how",
                "reqps",
                (per_second("gateway_quota_decisions_total", "decision"), "{{decision}}"),
            ),
            _panel("Settlements", "ops", (per_second("gateway_settlements_total", "event"), "{{event}}")),
        ],
    },
)

ROUTING = Dashboard(
    "routing",
    "Inferway: routing",
    {"model": "inferway_router_model_slots", "worker": "inferway_router_worker_slots"},
    {
        "The queue": [
            _panel("Requests that wait", "short", (_per_model("queue_requests"), "{{model}}")),
            _panel("The longest wait", "s", (_per_model("queue_oldest_seconds"), "{{model}}")),
            _quantiles("Queue time by priority", "router_queue_time_seconds", "priority", where=_MODEL),
            _panel(
                "How requests leave it",
                "reqps",
                (per_second("router_decisions_total", "model", "outcome", where=_MODEL), "{{model}} {{outcome}}"),
            ),
            _panel(
                "Slots",
                "short",
                (_per_model("model_slots_free"), "free {{model}}"),
                (_per_model("model_slots"), "all {{model}}"),
            ),
            _panel("Prompts to compute", "s", (_per_model("model_prefill_backlog_seconds"), "{{model}}")),
        ],
        "Workers": [
            _panel(
                "Not in service",
                "short",
                (
                    f'max by (worker, status) (inferway_router_worker_status{{{_WORKER}, status!="ready"}})',
                    "{{worker}} {{status}}",
                ),
            ),
            _panel(
                "Breakers",
                "short",
                (
                    f'max by (worker, state) (inferway_router_worker_breaker{{{_WORKER}, state!="closed"}})',
                    "{{worker}} {{state}}",
                ),
            ),
            _panel("Requests at the workers", "short", (_per_worker("requests_in_flight"), "{{worker}}")),
            _panel(
                "KV cache in use",
                "percentunit",
                (f"{_per_worker('kv_used_tokens')} / {_per_worker('kv_total_tokens')}", "{{worker}}"),
            ),
            _panel(
                "Leases given back",
                "reqps",
                (per_second("router_releases_total", "worker", "outcome", where=_WORKER), "{{worker}} {{outcome}}"),
            ),
            _panel("Waiting at the workers", "short", (_per_worker("num_requests_waiting"), "{{worker}}")),
            _quantiles("Steps of the engines", "worker_step_seconds"),
            _panel(
                "Tokens of the engines", "short", (per_second("worker_completion_tokens_total", "model"), "{{model}}")
            ),
            _panel("Prompts in quarantine", "short", ("max(inferway_router_quarantined_prompts)", "prompts")),
        ],
        "The index": [
            _panel(
                "Cached tokens: predicted and found",
                "short",
                (per_second("router_predicted_cached_tokens_total", "model", where=_MODEL), "predicted {{model}}"),
                (per_second("router_actual_cached_tokens_total", "model", where=_MODEL), "found {{model}}"),
            ),
            _panel("Trust", "percentunit", (_per_worker("index_trust_ratio"), "{{worker}}")),
            _panel("Blocks", "short", (_per_worker("indexed_blocks"), "{{worker}}")),
        ],
    },
)

DASHBOARDS = (PLATFORM, TENANT, ROUTING)


def pages() -> dict[str, str]:
    """The text of each file, by its path in the checkout."""
    return {
        f"helm/inferway/files/dashboards/{one.name}.json": json.dumps(_json(one), indent=1) + "\n" for one in DASHBOARDS
    }


def _json(dashboard: Dashboard) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows.items():
        place = {"x": 0, "y": y, "w": 24, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        y += 1
        for at, panel in enumerate(row):
            place = {"x": at % _COLUMNS * _WIDTH, "y": y + at // _COLUMNS * _HEIGHT, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_timeseries(panel, len(panels) + 1, place))
        y += -(-len(row) // _COLUMNS) * _HEIGHT
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    variables = [_variable(label, metric) for label, metric in dashboard.variables.items()]
    return {
        "uid": f"inferway-{dashboard.name}",
        "title": dashboard.title,
        "tags": ["inferway"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [source, *variables]},
        "panels": panels,
    }


def _timeseries(panel: Panel, number: int, place: Mapping[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "gridPos": dict(place),
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": _DATASOURCE, "expr": query.expr, "legendFormat": query.legend}
            for at, query in enumerate(panel.queries)
        ],
    }


def _variable(label: str, metric: str) -> dict[str, Any]:
    return {
        "name": label,
        "label": label.capitalize(),
        "type": "query",
        "datasource": _DATASOURCE,
        "query": {"query": f"label_values({metric}, {label})", "refId": label},
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }
