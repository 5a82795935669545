"""`python -m inferway block` and `unblock`: tenants, keys and models that are refused at once, on all gateways."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inferway.cli.admin import Admin, AdminOptions, Verb, run_verb, show
from inferway.cli.core import admin_tables
from inferway.config import option

_KINDS: Mapping[str, tuple[str, ...]] = {"tenant": ("TENANT",), "key": ("TENANT", "NAME"), "model": ("MODEL",)}


@dataclass(frozen=True, slots=True)
class BlockConfig(AdminOptions):
    """Refuse the requests of a tenant or a key, or those for a model, until that is undone; or list who is refused."""

    reason: str = option("", "why, for other admins: callers are not told")
    kill: bool = option(False, "end what is being answered as well")


@dataclass(frozen=True, slots=True)
class UnblockConfig(AdminOptions):
    """Take a block away."""


def block(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    verbs = {"list": Verb((), _list), **{kind: Verb(words, _block(kind)) for kind, words in _KINDS.items()}}
    return run_verb("block", verbs, BlockConfig, environ, argv)


def unblock(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    verbs = {kind: Verb(words, _unblock(kind)) for kind, words in _KINDS.items()}
    return run_verb("unblock", verbs, UnblockConfig, environ, argv)


def _list(admin: Admin, words: Sequence[str], config: AdminOptions) -> int:
    return show(admin.ask("GET", "blocks"), config, admin_tables.blocks)


def _block(kind: str) -> Callable[[Admin, Sequence[str], BlockConfig], int]:
    def run(admin: Admin, words: Sequence[str], config: BlockConfig) -> int:
        body = {"reason": config.reason, "kill": config.kill}
        return show(admin.ask("PUT", "blocks", f"{kind}s", *words, body=body), config, _blocked)

    return run


def _unblock(kind: str) -> Callable[[Admin, Sequence[str], UnblockConfig], int]:
    def run(admin: Admin, words: Sequence[str], config: UnblockConfig) -> int:
        answer = admin.ask("DELETE", "blocks", f"{kind}s", *words)
        return show(answer, config, lambda one: f"{one['kind']} {one['name']} is no longer blocked")

    return run


def _blocked(answer: Any) -> str:
    text = f"{answer['kind']} {answer['name']} is blocked"
    return f"{text}; {admin_tables.killed(answer)}" if "killed" in answer else text
