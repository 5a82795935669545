"""What routers say of a worker that is taken out or back, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inferway.cli.core.tables import shown, some

_AWAY = {"connecting": "has not answered yet", "lost": "is lost", "unspecified": "is not here"}


def progress(response: Mapping[str, Any]) -> str:
    """One router's answer in a line; fields are those of DrainResponse."""
    name, status = response["worker_id"], response["status"]
    if response["drained"]:
        requests = response["requests_in_flight" if status == "lost" else "requests"]
        text = f"{name} gets nothing new; " + (
            f"{some(requests, 'request')} left" if requests else "nothing runs there"
        )
    elif status == "ready":
        text = f"{name} gets requests"
    elif status == "draining":
        text = f"{name} gets requests again when it stops draining by itself"
    else:
        text = f"{name} gets requests when it is back"
    away = f" ({_AWAY[status]})" if status in _AWAY else ""
    return shown(f"{response['router_id']}: {text}{away}")
