"""Which worker a caller insists on, and which ones it will not have: two headers, for those who may send them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from inferway.errors import ApiError, Reason, invalid

from .tenants import Caller

ONLY_HEADER = "x-inferway-worker"
EXCLUDED_HEADER = "x-inferway-exclude-workers"
# Routers take 64, with those that have refused or failed the request.
MAX_EXCLUDED = 32
_MAX_NAME_CHARS = 256


@dataclass(frozen=True, slots=True)
class WorkerChoice:
    """By worker id. Empty: any."""

    only: str = ""
    excluded: frozenset[str] = frozenset()


ANY_WORKER = WorkerChoice()


def worker_choice(headers: Mapping[str, str], caller: Caller) -> WorkerChoice:
    """What the headers ask for; empty ones ask for nothing. Raises ApiError (WORKER_CHOICE_NOT_ALLOWED)."""
    only = headers.get(ONLY_HEADER, "").strip()
    names = (name.strip() for name in headers.get(EXCLUDED_HEADER, "").split(","))
    excluded = frozenset(name for name in names if name)
    if not only and not excluded:
        return ANY_WORKER
    header = ONLY_HEADER if only else EXCLUDED_HEADER
    if not caller.may_choose_workers:
        message = f"This key may not choose workers; leave out the header '{header}'."
        raise ApiError(Reason.WORKER_CHOICE_NOT_ALLOWED, message, header)
    if len(excluded) > MAX_EXCLUDED:
        message = f"'{EXCLUDED_HEADER}' may name {MAX_EXCLUDED} workers at most, got {len(excluded)}."
        raise invalid(EXCLUDED_HEADER, message)
    longest = max(len(name) for name in (only, *excluded))
    if longest > _MAX_NAME_CHARS:
        raise invalid(header, f"The name of a worker may have {_MAX_NAME_CHARS} characters at most, got {longest}.")
    if only in excluded:
        raise invalid(EXCLUDED_HEADER, f"'{EXCLUDED_HEADER}' names the worker that '{ONLY_HEADER}' asks for.")
    return WorkerChoice(only, excluded)
