"""`python -m inferway tenants`: tenants of a running mesh and what they may use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from inferway.cli.admin import Admin, AdminOptions, Misuse, Problem, Verb, patch_or_misuse, run_verb, show
from inferway.cli.core import admin_tables
from inferway.cli.core.fields import without_nulls

# What one answer holds at most.
_PAGE = "1000"


@dataclass(frozen=True, slots=True)
class TenantsConfig(AdminOptions):
    """List, show, create, change and delete tenants. Fields are those of the file of tenants."""


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    return run_verb("tenants", VERBS, TenantsConfig, environ, argv)


def _list(admin: Admin, words: Sequence[str], config: TenantsConfig) -> int:
    found: list[Any] = []
    after = ""
    while True:
        page = admin.ask("GET", "tenants", query={"limit": _PAGE, "after": after})
        found += page["tenants"]
        after = page["next"]
        if not after:
            return show({"tenants": found}, config, admin_tables.tenants)


def _show(admin: Admin, words: Sequence[str], config: TenantsConfig) -> int:
    one = admin.ask("GET", "tenants", words[0])
    keys = admin.ask("GET", "tenants", words[0], "keys")
    standings = _or_none(admin, "tenants", words[0], "standings")
    if config.json:
        print(json.dumps({**one, **keys, **(standings or {})}, indent=2, ensure_ascii=False))
    else:
        print(admin_tables.tenant(one, keys, standings))
    return 0


def _create(admin: Admin, words: Sequence[str], config: TenantsConfig) -> int:
    name, *fields = words
    body = without_nulls(patch_or_misuse(fields))
    if _or_none(admin, "tenants", name) is not None:
        raise Problem(f"there is a tenant {name!r} already: change it with set")
    return show(admin.ask("PUT", "tenants", name, body=body), config, _one)


def _set(admin: Admin, words: Sequence[str], config: TenantsConfig) -> int:
    name, *fields = words
    if not fields:
        raise Misuse("what is to be set is missing: FIELD=VALUE")
    return show(admin.ask("PATCH", "tenants", name, body=patch_or_misuse(fields)), config, _one)


def _delete(admin: Admin, words: Sequence[str], config: TenantsConfig) -> int:
    answer = admin.ask("DELETE", "tenants", words[0])
    return show(answer, config, lambda _: f"{words[0]} and its keys are gone; its ledger stays")


def _one(answer: Any) -> str:
    return admin_tables.tenants({"tenants": [answer]})


def _or_none(admin: Admin, *segments: str) -> Any:
    """None where there is nothing."""
    try:
        return admin.ask("GET", *segments)
    except Problem as problem:
        if problem.status != HTTPStatus.NOT_FOUND:
            raise
        return None


VERBS: Mapping[str, Verb] = {
    "list": Verb((), _list),
    "show": Verb(("TENANT",), _show),
    "create": Verb(("TENANT",), _create, takes_more=True),
    "set": Verb(("TENANT",), _set, takes_more=True),
    "delete": Verb(("TENANT",), _delete),
}
