"""`python -m inferway audit`: what admins have changed, and who."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from inferway.cli.admin import Admin, AdminOptions, Verb, run_verb, show
from inferway.cli.core import admin_tables
from inferway.config import option


@dataclass(frozen=True, slots=True)
class AuditConfig(AdminOptions):
    """Show the last changes that were made over the port for admins, the newest first."""

    limit: int = option(20, "changes to show", minimum=1, maximum=1000)
    before: str = option("", "only those older than the change with this id (see --json)")


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    return run_verb("audit", VERBS, AuditConfig, environ, argv)


def _list(admin: Admin, words: Sequence[str], config: AuditConfig) -> int:
    query = {"limit": str(config.limit), "before": config.before}
    return show(admin.ask("GET", "audit", query=query), config, admin_tables.changes)


VERBS: Mapping[str, Verb] = {"": Verb((), _list)}
