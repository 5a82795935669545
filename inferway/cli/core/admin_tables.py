"""Shows people what the port for admins answers. Answers are its JSON as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from inferway.cli.core.tables import count, duration, shown, some, table

_Object = Mapping[str, Any]
# Said in the table's own columns.
_OF_KEYS = ("id", "tenant", "source", "created", "expires", "key")


def tenants(answer: _Object) -> str:
    rows = [[one["id"], one["source"], _settings(one, ("id", "source"))] for one in answer["tenants"]]
    return table(["tenant", "from", "settings"], rows, left=(0, 1, 2)) if rows else "there are no tenants"


def tenant(one: _Object, keys_: _Object, standings_: _Object | None) -> str:
    parts = [tenants({"tenants": [one]}), keys(keys_)]
    if standings_ is not None and standings_["standings"]:
        parts.append(standings(standings_))
    return "\n\n".join(parts)


def keys(answer: _Object) -> str:
    rows = [
        [one["id"], one["source"], one.get("created") or "-", one.get("expires") or "-", _settings(one, _OF_KEYS)]
        for one in answer["keys"]
    ]
    header = ["key", "from", "created", "expires", "settings"]
    return table(header, rows, left=(0, 1, 2, 3, 4)) if rows else "there are no keys"


def standings(answer: _Object) -> str:
    rows = [
        [" ".join(filter(None, (one["scope"], one["name"]))), one["limit"], f"{one['used']:,.10g}", count(one["most"])]
        for one in answer["standings"]
    ]
    return table(["of", "limit", "used", "at most"], rows, left=(0, 1))


def blocks(answer: _Object) -> str:
    rows = [[one["kind"], one["name"], one["since"], one["reason"]] for one in answer["blocks"]]
    return table(["kind", "name", "since", "reason"], rows, left=(0, 1, 2, 3)) if rows else "nothing is blocked"


def requests(answer: _Object) -> str:
    rows = [
        [
            one["request_id"],
            one["tenant_id"],
            one["key_id"],
            one["model"],
            one["stage"],
            duration(one["age_ms"]),
            count(one["prompt_tokens"]),
            count(one["completion_tokens"]),
            one["worker_id"],
        ]
        for one in answer["requests"]
    ]
    header = ["request", "tenant", "key", "model", "stage", "age", "prompt", "output", "worker"]
    text = table(header, rows, left=(0, 1, 2, 3, 4, 8)) if rows else "nothing is being answered"
    left_out = answer["left_out"]
    return f"{text}\nand {some(left_out, 'more request')}" if left_out else text


def changes(answer: _Object) -> str:
    rows = [[one["at"], one["by"], one["action"], one["subject"], _difference(one)] for one in answer["changes"]]
    header = ["at", "by", "action", "subject", "what"]
    return table(header, rows, left=(0, 1, 2, 3, 4)) if rows else "nothing has been changed"


def killed(answer: _Object) -> str:
    return f"ended {some(answer['killed'], 'request')}"


def warning(answer: _Object) -> str:
    """What an answer that several gateways have a part in does not hold; empty where it is whole."""
    if "silent" not in answer:
        return ""
    silent = answer["silent"]
    if silent is None:
        return "Redis does not answer: only the gateway that was asked has done its part"
    return shown(f"{some(silent, 'gateway')} did not answer in time") if silent else ""


def _settings(one: _Object, others: Sequence[str]) -> str:
    return _words({name: value for name, value in one.items() if name not in others}) or "-"


def _words(settings: _Object) -> str:
    return " ".join(f"{name}={_compact(value)}" for name, value in settings.items())


def _compact(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _difference(change: _Object) -> str:
    """The members that are not as before."""
    before, after = change["before"], change["after"]
    if not isinstance(after, Mapping):
        return ""
    before = before if isinstance(before, Mapping) else {}
    gone = [f"{name}=" for name in before if name not in after]
    fresh = {name: value for name, value in after.items() if before.get(name) != value}
    return " ".join(filter(None, (_words(fresh), *gone)))
