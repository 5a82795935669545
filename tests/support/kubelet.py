"""What a kubelet makes of probes: whether, and when, a container is started anew or taken out of service.

Times are seconds since the container was started. A probe is asked every periodSeconds, and an answer that takes longer
than timeoutSeconds counts as none. Until the startup probe has succeeded the others are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

# How long the answer takes at a time, or None for one that is no success.
Answer = Callable[[str, float], float | None]


@dataclass
class Life:
    started_at: float | None = None
    killed_at: float | None = None
    # Times at which it went in and out of service, in turn.
    turns: list[float] = field(default_factory=list)


def live(container: Mapping[str, Any], answer: Answer, *, until_s: float) -> Life:
    life = Life()
    startup = container["startupProbe"]
    at, failures = float(startup.get("initialDelaySeconds", 0)), 0
    while life.started_at is None:
        if at > until_s:
            return life
        if _succeeds(startup, answer, at):
            life.started_at = at
        else:
            failures += 1
            if failures == startup["failureThreshold"]:
                life.killed_at = at
                return life
            at += startup["periodSeconds"]
    probes = {"liveness": container["livenessProbe"], "readiness": container["readinessProbe"]}
    due = {name: life.started_at + probe.get("initialDelaySeconds", 0) for name, probe in probes.items()}
    failed = dict.fromkeys(probes, 0)
    in_service = False
    while (name := min(due, key=lambda one: due[one])) and due[name] <= until_s:
        probe, now = probes[name], due[name]
        due[name] += probe["periodSeconds"]
        failed[name] = 0 if (succeeded := _succeeds(probe, answer, now)) else failed[name] + 1
        is_out = failed[name] >= probe["failureThreshold"]
        if name == "liveness" and is_out:
            life.killed_at = now
            return life
        if name == "readiness" and (in_service if is_out else succeeded and not in_service):
            in_service = not in_service
            life.turns.append(now)
    return life


def _succeeds(probe: Mapping[str, Any], answer: Answer, now: float) -> bool:
    took_s = answer(probe["httpGet"]["path"], now)
    return took_s is not None and took_s <= probe["timeoutSeconds"]
