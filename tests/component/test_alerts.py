"""Each alert fires where it should, stays silent where it should, and tells which runbook to open."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from inferway.errors import Reason
from tests.support.prometheus import RULES, alerts, needs_promtool, promtool, rules, runbook_section

GATEWAY, ROUTER, WORKER = "inferway_gateway", "inferway_router", "inferway_worker"
REQUESTS = f"{GATEWAY}_requests_total"
FIRST_TOKENS = f"{GATEWAY}_time_to_first_token_seconds"
LAG = f"{GATEWAY}_event_loop_lag_seconds_bucket"


class Fires(NamedTuple):
    """Series in promtool's notation, a sample a minute, and with which labels the alert fires after so many minutes."""

    minutes: int
    series: Mapping[str, str]
    labels: Mapping[str, str] = {}


FIRING: Mapping[str, Fires] = {
    # One request in 50 fails: 20 times what the objective allows.
    "InferwayAvailabilityBurnsFast": Fires(
        10, {f'{REQUESTS}{{outcome="ok"}}': "0+49x10", f'{REQUESTS}{{outcome="worker_failed"}}': "0+1x10"}
    ),
    # One in 125: 8 times.
    "InferwayAvailabilityBurnsSlowly": Fires(
        40, {f'{REQUESTS}{{outcome="ok"}}': "0+124x40", f'{REQUESTS}{{outcome="overloaded"}}': "0+1x40"}
    ),
    "InferwayFirstTokenBurnsFast": Fires(
        10, {f'{FIRST_TOKENS}_bucket{{le="5.0"}}': "0+40x10", f"{FIRST_TOKENS}_count": "0+50x10"}
    ),
    "InferwayFirstTokenBurnsSlowly": Fires(
        40, {f'{FIRST_TOKENS}_bucket{{le="5.0"}}': "0+46x40", f"{FIRST_TOKENS}_count": "0+50x40"}
    ),
    "InferwayModelWithoutWorkers": Fires(
        3,
        {f'{ROUTER}_model_workers_ready{{model="a"}}': "0x5", f'{ROUTER}_model_workers_ready{{model="b"}}': "1x5"},
        {"model": "a"},
    ),
    "InferwayWorkerLost": Fires(
        4,
        {
            f'{ROUTER}_worker_status{{worker="a", status="lost", instance="1"}}': "1x5",
            f'{ROUTER}_worker_status{{worker="a", status="lost", instance="2"}}': "1x5",
            f'{ROUTER}_worker_status{{worker="b", status="lost"}}': "0x5",
        },
        {"worker": "a"},
    ),
    "InferwayWorkerStuck": Fires(
        10,
        {
            f'{WORKER}_num_requests_running{{instance="stuck"}}': "1x10",
            f'{WORKER}_step_seconds_count{{instance="stuck"}}': "0+100x3 300x7",
            f'{WORKER}_num_requests_running{{instance="busy"}}': "9x10",
            f'{WORKER}_step_seconds_count{{instance="busy"}}': "0+100x10",
            f'{WORKER}_num_requests_running{{instance="idle"}}': "0x10",
            f'{WORKER}_step_seconds_count{{instance="idle"}}': "7x10",
        },
        {"instance": "stuck"},
    ),
    # Open, for a moment on trial, and open again.
    "InferwayBreakerOpen": Fires(
        8,
        {
            f'{ROUTER}_worker_breaker{{worker="a", state="open"}}': "1 1 0 1 1 0 1 1 1 1",
            f'{ROUTER}_worker_breaker{{worker="b", state="open"}}': "0x10",
        },
        {"worker": "a"},
    ),
    "InferwayPromptsQuarantined": Fires(1, {f"{ROUTER}_quarantined_prompts": "0 1"}),
    "InferwayIndexLying": Fires(
        25,
        {
            f'{ROUTER}_worker_index_trust_ratio{{worker="a"}}': "0.2x25",
            f'{ROUTER}_worker_index_trust_ratio{{worker="b"}}': "0.95x25",
            f'{ROUTER}_predicted_cached_tokens_total{{model="m"}}': "0+1000x25",
        },
        {"worker": "a"},
    ),
    "InferwayQueueGrowing": Fires(
        15,
        {
            f'{ROUTER}_queue_requests{{model="a"}}': "0+3x15",
            f'{ROUTER}_queue_oldest_seconds{{model="a"}}': "6+1x15",
            # It waits, and becomes less.
            f'{ROUTER}_queue_requests{{model="b"}}': "60-3x15",
            f'{ROUTER}_queue_oldest_seconds{{model="b"}}': "60-1x15",
        },
        {"model": "a"},
    ),
    "InferwayHeadroomLow": Fires(
        40,
        {
            f'{ROUTER}_model_headroom_ratio{{model="a"}}': "0.02x40",
            f'{ROUTER}_model_headroom_ratio{{model="b"}}': "0.5x40",
        },
        {"model": "a"},
    ),
    "InferwayEventLoopLate": Fires(
        20, {f'{LAG}{{le="0.1"}}': "0+90x20", f'{LAG}{{le="0.2"}}': "0+100x20", f'{LAG}{{le="+Inf"}}': "0+100x20"}
    ),
    "InferwayWithoutRouter": Fires(6, {f"{GATEWAY}_fallback_dispatches_total": "0+5x6"}),
    "InferwayRouterLost": Fires(
        12,
        {
            f'{GATEWAY}_routers_connected{{instance="a"}}': "2 2 1x10",
            f'{GATEWAY}_routers_connected{{instance="b"}}': "2x12",
        },
        {"instance": "a"},
    ),
    "InferwaySettingsRefused": Fires(
        3,
        {
            f'{GATEWAY}_settings_versions_total{{file="tenants", outcome="refused"}}': "0 0 1 1",
            f'{ROUTER}_settings_versions_total{{file="routing", outcome="refused"}}': "0x3",
        },
        {"file": "tenants"},
    ),
    "InferwayQuotaStoreAway": Fires(
        3, {f'{GATEWAY}_quota_store_up{{instance="a"}}': "1 0 0 0", f'{GATEWAY}_quota_store_up{{instance="b"}}': "1x3"}
    ),
    "InferwaySpoolFailing": Fires(3, {f"{GATEWAY}_spool_failed": "0 1 1 1"}),
    "InferwaySettlementsLost": Fires(
        3,
        {
            f'{GATEWAY}_settlements_total{{event="lost"}}': "0 0 4 4",
            f'{GATEWAY}_settlements_total{{event="x"}}': "0+9x3",
        },
    ),
    "InferwayRedisNearFull": Fires(8, {f"{GATEWAY}_redis_memory_used_ratio": "0.9x8"}),
    "InferwayLedgerNearFull": Fires(12, {f"{GATEWAY}_ledger_tenants_over_alarm": "1x12"}),
}

# Just short of each: a little less than its threshold, or the whole of it and not for long enough.
QUIET: Mapping[str, Fires] = {
    # One in 70, where 14.4 in 1,000 are the threshold.
    "InferwayAvailabilityBurnsFast": Fires(
        60, {f'{REQUESTS}{{outcome="ok"}}': "0+69x60", f'{REQUESTS}{{outcome="worker_failed"}}': "0+1x60"}
    ),
    # One in 167, where 6 in 1,000 are.
    "InferwayAvailabilityBurnsSlowly": Fires(
        60, {f'{REQUESTS}{{outcome="ok"}}': "0+166x60", f'{REQUESTS}{{outcome="overloaded"}}': "0+1x60"}
    ),
    # 14 in 100, where 14.4 are.
    "InferwayFirstTokenBurnsFast": Fires(
        60, {f'{FIRST_TOKENS}_bucket{{le="5.0"}}': "0+86x60", f"{FIRST_TOKENS}_count": "0+100x60"}
    ),
    "InferwayFirstTokenBurnsSlowly": Fires(
        60, {f'{FIRST_TOKENS}_bucket{{le="5.0"}}': "0+945x60", f"{FIRST_TOKENS}_count": "0+1000x60"}
    ),
    # One router sees a worker, another none; and none for less than a minute.
    "InferwayModelWithoutWorkers": Fires(
        10,
        {
            f'{ROUTER}_model_workers_ready{{model="a", instance="1"}}': "0x10",
            f'{ROUTER}_model_workers_ready{{model="a", instance="2"}}': "1x10",
            f'{ROUTER}_model_workers_ready{{model="b"}}': "1x9 0",
        },
    ),
    "InferwayWorkerLost": Fires(2, {f'{ROUTER}_worker_status{{worker="a", status="lost"}}': "0 1 1"}),
    # A step in every three minutes.
    "InferwayWorkerStuck": Fires(
        20, {f"{WORKER}_num_requests_running": "1x20", f"{WORKER}_step_seconds_count": "0 0 1 1 2 2 3 3 4 4 5+1x10"}
    ),
    "InferwayBreakerOpen": Fires(10, {f'{ROUTER}_worker_breaker{{worker="a", state="open"}}': "1x3 0x7"}),
    "InferwayPromptsQuarantined": Fires(2, {f"{ROUTER}_quarantined_prompts": "1 1 0"}),
    "InferwayIndexLying": Fires(
        25,
        {
            f'{ROUTER}_worker_index_trust_ratio{{worker="a"}}': "0.5x25",
            f'{ROUTER}_predicted_cached_tokens_total{{model="m"}}': "0+1000x25",
        },
    ),
    "InferwayQueueGrowing": Fires(
        15,
        {
            f'{ROUTER}_queue_requests{{model="a"}}': "0+3x15",
            f'{ROUTER}_queue_oldest_seconds{{model="a"}}': "5x15",
            f'{ROUTER}_queue_requests{{model="b"}}': "9x15",
            f'{ROUTER}_queue_oldest_seconds{{model="b"}}': "60x15",
        },
    ),
    "InferwayHeadroomLow": Fires(60, {f'{ROUTER}_model_headroom_ratio{{model="a"}}': "0.1x60"}),
    "InferwayEventLoopLate": Fires(
        20, {f'{LAG}{{le="0.1"}}': "0+99x20", f'{LAG}{{le="0.2"}}': "0+100x20", f'{LAG}{{le="+Inf"}}': "0+100x20"}
    ),
    "InferwayWithoutRouter": Fires(10, {f"{GATEWAY}_fallback_dispatches_total": "5x10"}),
    "InferwayRouterLost": Fires(6, {f"{GATEWAY}_routers_connected": "2 2 1 1 1 1 1"}),
    "InferwaySettingsRefused": Fires(
        20, {f'{GATEWAY}_settings_versions_total{{file="tenants", outcome="refused"}}': "0 1x19"}
    ),
    "InferwayQuotaStoreAway": Fires(3, {f"{GATEWAY}_quota_store_up": "1 1 1 0"}),
    "InferwaySpoolFailing": Fires(3, {f"{GATEWAY}_spool_failed": "0 0 0 1"}),
    "InferwaySettlementsLost": Fires(20, {f'{GATEWAY}_settlements_total{{event="lost"}}': "0 4x19"}),
    "InferwayRedisNearFull": Fires(10, {f"{GATEWAY}_redis_memory_used_ratio": "0.85x10"}),
    "InferwayLedgerNearFull": Fires(9, {f"{GATEWAY}_ledger_tenants_over_alarm": "1x9"}),
}

# A mesh that does its work: some fail, few are late, a queue that comes and goes, one store that is there.
HEALTHY: Mapping[str, str] = {
    f'{REQUESTS}{{outcome="ok"}}': "0+10000x60",
    f'{REQUESTS}{{outcome="worker_failed"}}': "0+1x60",
    f'{REQUESTS}{{outcome="client_closed_request"}}': "0+3000x60",
    f'{FIRST_TOKENS}_bucket{{le="5.0"}}': "0+999x60",
    f"{FIRST_TOKENS}_count": "0+1000x60",
    f'{ROUTER}_model_workers_ready{{model="a"}}': "1x60",
    f'{ROUTER}_worker_status{{worker="a", status="lost"}}': "0x60",
    f'{ROUTER}_worker_breaker{{worker="a", state="open"}}': "0 1 0x58",
    f"{ROUTER}_quarantined_prompts": "0x60",
    f'{ROUTER}_worker_index_trust_ratio{{worker="a"}}': "0.97x60",
    f'{ROUTER}_predicted_cached_tokens_total{{model="m"}}': "0+1000x60",
    f'{ROUTER}_queue_requests{{model="a"}}': "0 4 0 9 0x56",
    f'{ROUTER}_queue_oldest_seconds{{model="a"}}': "0 1 0 2 0x56",
    f'{ROUTER}_model_headroom_ratio{{model="a"}}': "0.6x60",
    f"{GATEWAY}_routers_connected": "2x60",
    f"{GATEWAY}_fallback_dispatches_total": "3x60",
    f"{GATEWAY}_quota_store_up": "1x60",
    f"{GATEWAY}_spool_failed": "0x60",
    f'{GATEWAY}_settlements_total{{event="lost"}}': "0x60",
    f"{GATEWAY}_ledger_tenants_over_alarm": "0x60",
    f"{GATEWAY}_redis_memory_used_ratio": "0.5x60",
    f'{WORKER}_num_requests_running{{instance="busy"}}': "9x60",
    f'{WORKER}_step_seconds_count{{instance="busy"}}': "0+100x60",
}


def group(name: str, series: Mapping[str, str], minutes: int, expr: str, expected: list[str]) -> dict[str, object]:
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": one, "values": values} for one, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expr,
                "eval_time": f"{minutes}m",
                "exp_samples": [{"labels": labels, "value": 1} for labels in expected],
            }
        ],
    }


@needs_promtool
def test_alerts_fire(tmp_path: Path) -> None:
    """Each fires for what it names and nothing else, not just short of it, and none fires in a mesh that is well."""
    groups = [group("healthy", HEALTHY, 60, "ALERTS", [])]
    for name, quiet in QUIET.items():
        expr = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
        groups.append(group(f"{name}: not yet", quiet.series, quiet.minutes, expr, []))
    for name, fires in FIRING.items():
        labels = {
            "alertname": name,
            "alertstate": "firing",
            "severity": alerts()[name]["labels"]["severity"],
            **fires.labels,
        }
        shown = ", ".join(f'{label}="{value}"' for label, value in labels.items())
        expr = f'ALERTS{{alertname="{name}", alertstate="firing"}}'
        groups.append(group(name, fires.series, fires.minutes, expr, [f"ALERTS{{{shown}}}"]))
    file = tmp_path / "test.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": groups}))
    done = promtool("test", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_rules_are_valid() -> None:
    """Expressions, durations and the templates of annotations."""
    done = promtool("check", "rules", RULES)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_test() -> None:
    """No alert without one that fires it, and one that does not yet."""
    assert FIRING.keys() == QUIET.keys() == alerts().keys()


@pytest.mark.parametrize("name", alerts())
def test_each_alert_has_a_runbook(name: str) -> None:
    """Its annotation names a heading that is there, and that names it."""
    assert f"`{name}`" in runbook_section(alerts()[name]["annotations"]["runbook"])


def test_failures_are_ours() -> None:
    """What counts against the objective is every outcome with a status of 500 and above, and none below."""
    (expr,) = (rule["expr"] for rule in rules() if rule.get("record") == "inferway:request_failures:ratio_rate5m")
    match = re.search(r'outcome=~"([^"]+)"', expr)
    assert match is not None
    counted = set(match[1].split("|"))
    status = {reason.label: reason.value.status for reason in Reason}
    assert {label for label in status if status[label] >= 500} <= counted
    assert not {label for label in counted if status.get(label, 503) < 500}
