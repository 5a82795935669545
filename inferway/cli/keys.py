"""`python -m inferway keys`: keys of a tenant, made, changed and revoked on a running mesh."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.cli.admin import Admin, AdminOptions, Verb, patch_or_misuse, run_verb, show
from inferway.cli.core import admin_tables
from inferway.cli.core.fields import without_nulls


@dataclass(frozen=True, slots=True)
class KeysConfig(AdminOptions):
    """List, create, change, rotate and revoke keys. Fields are those of the file of tenants, and `expires`."""


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    return run_verb("keys", VERBS, KeysConfig, environ, argv)


def _list(admin: Admin, words: Sequence[str], config: KeysConfig) -> int:
    return show(admin.ask("GET", "tenants", words[0], "keys"), config, admin_tables.keys)


def _create(admin: Admin, words: Sequence[str], config: KeysConfig) -> int:
    tenant, name, *fields = words
    body = {"id": name, **without_nulls(patch_or_misuse(fields))}
    return _show_new(admin.ask("POST", "tenants", tenant, "keys", body=body), config)


def _set(admin: Admin, words: Sequence[str], config: KeysConfig) -> int:
    tenant, name, *fields = words
    answer = admin.ask("PATCH", "tenants", tenant, "keys", name, body=patch_or_misuse(fields))
    return show(answer, config, _one)


def _rotate(admin: Admin, words: Sequence[str], config: KeysConfig) -> int:
    tenant, name = words
    return _show_new(admin.ask("POST", "tenants", tenant, "keys", name, "rotate"), config)


def _revoke(admin: Admin, words: Sequence[str], config: KeysConfig) -> int:
    tenant, name = words
    answer = admin.ask("DELETE", "tenants", tenant, "keys", name)
    return show(answer, config, lambda _: f"{tenant}/{name} is revoked")


def _show_new(answer: Any, config: KeysConfig) -> int:
    """The key alone on standard output, so that a script can take it; the rest beside it."""
    status = show(answer, config, lambda one: str(one["key"]))
    if not config.json:
        print(f"{_one(answer)}\n\nThe key cannot be shown again.", file=sys.stderr)
    return status


def _one(answer: Any) -> str:
    return admin_tables.keys({"keys": [answer]})


VERBS: Mapping[str, Verb] = {
    "list": Verb(("TENANT",), _list),
    "create": Verb(("TENANT", "NAME"), _create, takes_more=True),
    "set": Verb(("TENANT", "NAME"), _set, takes_more=True),
    "rotate": Verb(("TENANT", "NAME"), _rotate),
    "revoke": Verb(("TENANT", "NAME"), _revoke),
}
