"""Shows people how a router sees its workers and its queue. A snapshot is the message of router.proto as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from inferway.cli.core.tables import count, duration, share, shown, some, table

# Of one worker, in a table.
_MOST_NAMES = 3


def standing(snapshot: Mapping[str, Any], address: str) -> str:
    version = snapshot["routing_version"]
    heading = f"router {snapshot['router_id']} ({address})" + (f", routing.yaml {version}" if version else "")
    return "\n\n".join([shown(heading), _workers(snapshot), _models(snapshot), _queues(snapshot)])


def _workers(snapshot: Mapping[str, Any]) -> str:
    if not snapshot["workers"]:
        return "no workers"
    header = (
        "worker",
        "status",
        "breaker",
        "in flight / slots",
        "running",
        "waiting",
        "KV in use",
        "blocks",
        "trust",
        "models",
    )
    rows = [_worker(worker) for worker in sorted(snapshot["workers"], key=_worker_name)]
    return table(header, rows, left=(0, 1, 2, 9))


def _worker_name(worker: Mapping[str, Any]) -> str:
    name: str = worker["worker_id"] or worker["address"]
    return name


def _worker(worker: Mapping[str, Any]) -> list[str]:
    if not worker["worker_id"]:
        return [_worker_name(worker), worker["status"], *"-" * 8]
    return [
        _worker_name(worker),
        worker["status"],
        worker["breaker"],
        f"{worker['requests_in_flight']} / {worker['slots']}",
        count(worker["num_requests_running"]),
        count(worker["num_requests_waiting"]),
        share(worker["kv_used_tokens"], worker["kv_total_tokens"]),
        count(worker["indexed_blocks"]),
        f"{worker['trust']:.2f}",
        _names(sorted(worker["models"])),
    ]


def _names(models: Sequence[str]) -> str:
    more = len(models) - _MOST_NAMES
    return ", ".join(models[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


def _models(snapshot: Mapping[str, Any]) -> str:
    used = [model for model in snapshot["models"] if model["prompt_tokens"]]
    if not used:
        return f"no prompt computed yet; {some(len(snapshot['models']), 'model')} served"
    rows = [
        [
            model["model"],
            model["policy"],
            count(model["prompt_tokens"]),
            share(model["predicted_cached_tokens"], model["prompt_tokens"]),
            share(model["actual_cached_tokens"], model["prompt_tokens"]),
        ]
        for model in sorted(used, key=lambda model: str(model["model"]))
    ]
    text = table(("model", "policy", "prompt tokens", "cached, predicted", "cached, actual"), rows, left=(0, 1))
    unused = len(snapshot["models"]) - len(used)
    return text + (f"\n{some(unused, 'more model')} without any" if unused else "")


def _queues(snapshot: Mapping[str, Any]) -> str:
    queues = [queue for queue in snapshot["queues"] if queue["requests"]]
    if not queues:
        return "nobody waits"
    bands, tenants = [], []
    for queue in sorted(queues, key=lambda queue: str(queue["model"])):
        model, oldest = queue["model"], duration(queue["oldest_ms"])
        bands.append([model, "all", count(queue["requests"]), count(queue["tokens"]), oldest])
        for band in queue["bands"]:
            bands.append([model, str(band["priority"]), count(band["requests"]), count(band["tokens"]), ""])
        for tenant in queue["tenants"]:
            name = tenant["tenant_id"] or "(none)"
            tenants.append([model, name, count(tenant["requests"]), count(tenant["expected_tokens"])])
        if queue["more_tenants"]:
            tenants.append([model, f"({count(queue['more_tenants'])} more)", "", ""])
    return "\n\n".join(
        (
            table(("waiting for", "priority", "requests", "prompt tokens", "oldest"), bands),
            table(("waiting for", "tenant", "requests", "expected tokens"), tenants, left=(0, 1)),
        )
    )
