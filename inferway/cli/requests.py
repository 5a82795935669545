"""`python -m inferway requests`: what is being answered now, on all gateways, and how to end it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferway.cli.admin import Admin, AdminOptions, Misuse, Verb, run_verb, show
from inferway.cli.core import admin_tables
from inferway.config import option


@dataclass(frozen=True, slots=True)
class RequestsConfig(AdminOptions):
    """List what is being answered, or end one request by its X-Request-Id, or all that are named by the flags."""

    tenant: str = option("", "only those of this tenant")
    key: str = option("", "only those of this key of the tenant")
    model: str = option("", "only those for this model")


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    return run_verb("requests", VERBS, RequestsConfig, environ, argv)


def _list(admin: Admin, words: Sequence[str], config: RequestsConfig) -> int:
    return show(admin.ask("GET", "requests", query=_which(config)), config, admin_tables.requests)


def _kill(admin: Admin, words: Sequence[str], config: RequestsConfig) -> int:
    which = _which(config)
    if len(words) > 1 or bool(words) == any(which.values()):
        raise Misuse("kill needs the id of a request, or --tenant, --key or --model")
    segments = ("requests", *words)
    return show(admin.ask("DELETE", *segments, query=which), config, admin_tables.killed)


def _which(config: RequestsConfig) -> dict[str, str]:
    return {"tenant": config.tenant, "key": config.key, "model": config.model}


VERBS: Mapping[str, Verb] = {"list": Verb((), _list), "kill": Verb((), _kill, takes_more=True, more="ID")}
