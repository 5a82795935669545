"""The ledger's entries: what became of each request, as text in a Redis stream, in files, and in exports.

An entry is a list of names and values, always all of them in one order: a stream stores the names of neighbours once.
A value that is not known is "". Readers ignore names that they do not know; VERSION changes only when a name that
there was comes to mean something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import astuple

VERSION = 1
# Of files with an entry a line, where there is no store (inferway/checked_lines.py).
LEDGER_SUFFIX = ".ledger"


class UnknownEntry(ValueError):
    """Not an entry, or one that a later version has written with other meanings."""


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, or, with a `part`, one of several parts that were booked apart from each other.

    Times are Unix milliseconds: those up to the first token by the gateway's clock, the end by the store's.
    """

    reservation_id: str
    part: str = ""
    request_id: str = ""
    tenant: str
    project: str = ""
    # Its name, never the key.
    key: str = ""
    model: str = ""
    # Path, as "/v1/chat/completions".
    endpoint: str = ""
    # "ok" or the reason of an error.
    outcome: str
    prompt_tokens: int = 0
    # Of those, found in the cache.
    cached_tokens: int = 0
    completion_tokens: int = 0
    # Of those, the ones that the model thought with.
    reasoning_tokens: int = 0
    # Thousandths of weighted tokens: what counts against limits.
    units: int = 0
    priority: int | None = None
    is_stream: bool | None = None
    worker: str = ""
    received_ms: int | None = None
    first_token_ms: int | None = None
    finished_ms: int = 0

    @property
    def entry_id(self) -> str:
        """Unique among all entries."""
        return f"{self.reservation_id}/{self.part}" if self.part else self.reservation_id

    def record(self) -> tuple[tuple[str, str], ...]:
        """Names and values, all but the time of the end: who books the entry adds that, as `finished_ms`."""
        values = map(_text, astuple(self))
        return (_VERSIONED, *zip(_RECORDED, values))  # noqa: B905, the end is left out


COLUMNS: Sequence[str] = LedgerEntry.__struct_fields__
FINISHED = "finished_ms"
# FINISHED is the last one.
_RECORDED = COLUMNS[:-1]
_VERSIONED = ("v", str(VERSION))
_REQUIRED = ("reservation_id", "tenant", "outcome", FINISHED)
TEXTS = frozenset("reservation_id part request_id tenant project key model endpoint outcome worker".split())
FLAGS = frozenset(["is_stream"])


def entry_of(record: Mapping[str, str]) -> LedgerEntry:
    """The entry of a record with its `finished_ms`. Raises UnknownEntry."""
    if record.get("v") != str(VERSION):
        raise UnknownEntry(f"its version is {record.get('v')!r}, not {VERSION}")
    if missing := [name for name in _REQUIRED if not record.get(name)]:
        raise UnknownEntry(f"it has no {missing[0]}")
    values: dict[str, object] = {}
    for name in COLUMNS:
        text = record.get(name, "")
        if name in TEXTS:
            values[name] = text
        elif text:
            values[name] = text == "1" if name in FLAGS else _number(name, text)
    return LedgerEntry(**values)  # type: ignore[arg-type]


def _text(value: str | int | None) -> str:
    if type(value) is str:
        return value
    return "" if value is None else str(int(value))


def _number(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UnknownEntry(f"its {name} is no number") from None


def stream_key(prefix: str, tenant: str) -> str:
    """The Redis stream of a tenant's entries."""
    return f"{prefix}:{{{tenant}}}:ledger"


def tenant_of(prefix: str, key: str) -> str | None:
    """The tenant whose stream this key is."""
    before, after = f"{prefix}:{{", "}:ledger"
    return key[len(before) : -len(after)] if key.startswith(before) and key.endswith(after) else None


def stream_pattern(prefix: str) -> str:
    """What the keys of all streams match."""
    escaped = "".join(f"\\{character}" if character in "*?[]\\^" else character for character in prefix)
    return f"{escaped}:{{*}}:ledger"
