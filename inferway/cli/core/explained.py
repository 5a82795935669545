"""Tells people why a request went where it went. Decisions are the messages of router.proto as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from inferway.cli.core.tables import cost, count, duration, share, shown, some, table

_NAME_WIDTH = 10
_WITHOUT_WORKER: Mapping[str, str] = {
    "waiting": "waits for a worker",
    "rejected": "got no worker",
    "cancelled": "was taken back by its gateway while it waited",
}


def explanation(request_id: str, router: str, decisions: Sequence[Mapping[str, Any]]) -> str:
    """All that one router knows of a request; it knows something."""
    parts = [shown(f"request {request_id} at router {router}")]
    for number, decision in enumerate(decisions, 1):
        heading = f"submission {number} of {len(decisions)}: " if len(decisions) > 1 else ""
        parts.append(heading + told(decision))
    return "\n\n".join(parts)


def told(decision: Mapping[str, Any]) -> str:
    placement = decision["placement"]
    lines = [_headline(decision), *_request(decision), _line("queue", _queue(decision))]
    if placement is not None:
        lines += [_line("choice", _choice(placement)), *_scores(placement), _line("why", why(placement))]
        lines += ["", *_outlook(decision, placement)]
    elif decision["error"] is not None:
        error = decision["error"]
        lines.append(_line("error", f"{error['reason']}: {error['message']}"))
        if error["retry_after_ms"]:
            lines.append(_line("retry", f"after {duration(error['retry_after_ms'])}"))
    return "\n".join(lines)


def why(placement: Mapping[str, Any]) -> str:
    """One sentence on the choice between the worker and the next best."""
    worker, scorers, best = placement["worker_id"], placement["scorers"], placement["best"]
    if placement["num_candidates"] == 1:
        return f"{worker} was the only worker with room"
    if len(best) == 1:
        return f"{worker} was the only worker that the filters left"
    if not scorers:
        return f"the policy {placement['policy']} does not score: its picker took {worker}"
    margin, other = placement["margin"], placement["runner_up"]
    if margin is None:
        return f"the picker took {worker}, which is not among the {len(best)} with the least costs"
    if margin == 0.0:
        return f"{worker} and {other} cost the same; the picker took {worker}"
    if margin < 0.0:
        return f"the picker took {worker}, though {other} would have cost {cost(-margin)} less"
    chosen, runner_up = _score(best, worker), _score(best, other)
    gains = [theirs - own for own, theirs in zip(chosen["terms"], runner_up["terms"], strict=True)]
    gain, name = max(zip(gains, scorers, strict=True))
    sentence = f"{worker} costs least, {cost(margin)} less than {other}; most of it is {name} ({cost(gain)})"
    more_cached = chosen["cached_tokens"] - runner_up["cached_tokens"]
    if more_cached > 0:
        sentence += f", with {some(more_cached, 'token')} more in its cache"
    return sentence


def _headline(decision: Mapping[str, Any]) -> str:
    placement, state = decision["placement"], decision["state"]
    if placement is None:
        return _WITHOUT_WORKER[state]
    worker = shown(placement["worker_id"])
    if state != "ended":
        return f"runs on {worker}"
    if placement["outcome"] == "unspecified":
        return f"ran on {worker}; how it ended nobody has said: its gateway or the worker was gone"
    return f"ran on {worker}, ended {placement['outcome']}"


def _request(decision: Mapping[str, Any]) -> list[str]:
    facts = [
        f"model {decision['model']}",
        f"tenant {decision['tenant_id'] or '(none)'}",
        f"priority {decision['priority']}",
        f"prompt {some(decision['prompt_tokens'], 'token')}",
    ]
    if decision["num_choices"] > 1:
        facts.append(some(decision["num_choices"], "choice"))
    lines = [_line("request", ", ".join(facts))]
    if decision["pinned_worker"]:
        lines.append(_line("pinned", f"to {decision['pinned_worker']}"))
    if decision["excluded_workers"]:
        names = ", ".join(decision["excluded_workers"])
        lines.append(_line("excluded", f"{names} (refused or failed it before, or excluded by its caller)"))
    return lines


def _queue(decision: Mapping[str, Any]) -> str:
    at = datetime.fromtimestamp(decision["queued_at_ms"] / 1000, UTC)
    text = f"came {at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03d} UTC"
    text += f" with {some(decision['queued_behind'], 'request')} before it"
    text += f", {'has waited' if decision['state'] == 'waiting' else 'waited'} {duration(decision['queue_ms'])}"
    if decision["position"] is not None:
        text += f"; now about {count(decision['position'])} before it"
        if decision["expected_wait_ms"] is not None:
            text += f", {duration(decision['expected_wait_ms'])} at the present rate"
    return text


def _choice(placement: Mapping[str, Any]) -> str:
    text = f"policy {placement['policy']}"
    if placement["routing_version"]:
        text += f" (routing.yaml {placement['routing_version']})"
    text += f", {some(placement['num_candidates'], 'worker')} with room"
    removed = [f"{one['filter']} took out {one['workers']}" for one in placement["removed"]]
    return ", ".join([text, *removed])


def _scores(placement: Mapping[str, Any]) -> list[str]:
    if not placement["scorers"]:
        return []
    rows = []
    for score in placement["best"]:
        mark = ">" if score["worker_id"] == placement["worker_id"] else ""
        terms = [cost(term) for term in score["terms"]]
        rows.append([mark, score["worker_id"], cost(score["cost"]), *terms, count(score["cached_tokens"])])
    header = ["", "worker", "cost", *placement["scorers"], "cached tokens"]
    return ["", table(header, rows, left=(0, 1), indent="  "), ""]


def _outlook(decision: Mapping[str, Any], placement: Mapping[str, Any]) -> list[str]:
    """What was predicted beside what came."""
    prompt, predicted, actual = decision["prompt_tokens"], placement["predicted_cached_tokens"], "-"
    if placement["cached_tokens"] is not None:
        actual = f"{count(placement['cached_tokens'])} ({share(placement['cached_tokens'], prompt)})"
    ttft = placement["ttft_ms"]
    rows = [
        ["cached tokens", f"{count(predicted)} ({share(predicted, prompt)})", actual],
        ["first token after", duration(placement["predicted_ttft_ms"]), "-" if ttft is None else duration(ttft)],
    ]
    if placement["lease_ms"] is not None:
        rows.append(["ended after", "", duration(placement["lease_ms"])])
    if placement["completion_tokens"] is not None:
        expected = decision["expected_tokens"] * decision["num_choices"]
        rows.append(["completion tokens", f"at most {count(expected)}", count(placement["completion_tokens"])])
    return [table(["", "predicted", "actual"], rows, indent="  "), f"  lease {placement['lease_id']}"]


def _score(best: Sequence[Mapping[str, Any]], worker_id: str) -> Mapping[str, Any]:
    return next(score for score in best if score["worker_id"] == worker_id)


def _line(name: str, text: str) -> str:
    return shown(f"  {name:<{_NAME_WIDTH}}{text}")
