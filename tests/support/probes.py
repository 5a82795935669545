"""What a process says of itself over HTTP: health and metrics. These block; the servers are other processes."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any


def http_text(url: str, timeout_s: float = 20.0) -> str:
    """The body of a GET that succeeds."""
    with urllib.request.urlopen(url, timeout=timeout_s) as response:
        text: str = response.read().decode()
    return text


def http_json(url: str, timeout_s: float = 20.0) -> tuple[int, Any]:
    """Status and parsed body of a GET, error statuses included."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def metric(url: str, name: str) -> float:
    """The sum over the series of one metric on a page of metrics, which must have at least one."""
    text = http_text(url)
    values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith((name + " ", name + "{"))]
    assert values, f"{url} has no {name}:\n{text}"
    return sum(map(float, values))
