"""`python -m inferway usage`: what tenants have used, by the ledger; `usage export` keeps the ledger in files."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from inferway.cli.core.tables import shown, some
from inferway.cli.core.usage_table import usage_table
from inferway.cli.ledger_exports import ExportError, TenantExport, locked, tenants_in
from inferway.cli.ledger_streams import Streams, file_entries
from inferway.cli.redis_client import redis_client
from inferway.config import Secret, load_or_exit, option
from inferway.ledger import LedgerEntry, UnknownEntry
from inferway.redis_url import RedisUrl, redis_url
from inferway.usage import GROUPS, Sums, unix_ms

_PROG = "python -m inferway usage"
_BATCH = 50_000


def _time(text: str) -> int | None:
    return unix_ms(text, now_ms=round(time.time() * 1000)) if text else None


@dataclass(frozen=True, slots=True)
class LedgerOptions:
    """Where the ledger is, for every command on it."""

    redis: Secret = option(
        Secret(""),
        "Redis of the mesh: redis://, rediss://, redis+sentinel://HOST,HOST/SERVICE or redis+cluster://HOST,HOST",
        env="INFERWAY_REDIS",
        check=redis_url,
    )
    redis_prefix: str = option("inferway", "what the names of all keys begin with", env="INFERWAY_REDIS_PREFIX")
    tenant: str = option("", "this tenant only", default_text="all")


@dataclass(frozen=True, slots=True)
class UsageConfig(LedgerOptions):
    """Sum up what tenants have used: requests, tokens and outcomes, from Redis, files or both."""

    exported: str = option("", "folder of `usage export`; what is in it and in Redis counts once")
    files: str = option("", "folder of a mesh without Redis, its --spool-dir")
    since: str = option(
        "", "requests that ended at this time or later: 2026-11-30, 2026-11-30T12:00 (UTC), or 24h ago", check=_time
    )
    until: str = option("", "requests that ended before this time", check=_time)
    by: tuple[str, ...] = option((), "a row for each of these, comma-separated", choices=GROUPS)
    json: bool = option(False, "print JSON instead of text")


@dataclass(frozen=True, slots=True)
class ExportConfig(LedgerOptions):
    """Keep everything that is in Redis's ledgers, and not in the folder yet, in files by tenant and day."""

    to: str = option("", "the folder; it remembers how far it goes")
    format: str = option("parquet", "of the files", choices=("parquet", "csv"))
    trim: bool = option(False, "then delete from Redis what the folder has")


def main(environ: Mapping[str, str], argv: Sequence[str]) -> int:
    """Returns 0, 1 when the ledger could not be read or written as a whole, 2 for a wrong command line."""
    is_export = bool(argv) and argv[0] == "export"
    try:
        if is_export:
            return _export(load_or_exit(ExportConfig, "usage", environ, argv[1:], prog=f"{_PROG} export"))
        return _usage(load_or_exit(UsageConfig, "usage", environ, argv, prog=_PROG))
    except _Wrong as mistake:
        print(f"usage: {mistake}", file=sys.stderr)
        return 2
    except (ExportError, UnknownEntry, OSError) as error:
        print(f"usage: {shown(str(error))}", file=sys.stderr)
        return 1


class _Wrong(Exception):
    """What is wrong with a command line."""


# Sums.


def _usage(config: UsageConfig) -> int:
    if not (config.redis or config.exported or config.files):
        raise _Wrong("say where the ledger is: --redis, --exported or --files")
    by = config.by if config.tenant or "tenant" in config.by else ("tenant", *config.by)
    sums = Sums(by, _time(config.since), _time(config.until))
    damaged = 0
    with ExitStack() as stack:
        streams = stack.enter_context(_Opened(config)) if config.redis else None
        exported = Path(config.exported) if config.exported else None
        if exported is not None:
            if not exported.is_dir():
                raise ExportError(f"there is no folder {exported}")
            stack.enter_context(locked(exported, exclusively=False))
        for entry in _entries(config, streams, exported, sums):
            if entry is None:
                damaged += 1
            elif config.tenant in ("", entry.tenant):
                sums.add(entry)
    if config.json:
        print(json.dumps({**sums.as_json(), "damaged": damaged}, indent=2))
    else:
        print(usage_table(sums))
    if damaged:
        print(f"usage: {some(damaged, 'line')} of {config.files} cannot be read", file=sys.stderr)
    return 1 if damaged else 0


def _entries(
    config: UsageConfig, streams: Streams | None, exported: Path | None, sums: Sums
) -> Iterator[LedgerEntry | None]:
    """All that may count, each once; None for what cannot be read."""
    if config.files:
        yield from file_entries(Path(config.files))
    named = {config.tenant} if config.tenant else set()
    tenants = named or {
        *(tenants_in(exported) if exported is not None else ()),
        *(streams.tenants() if streams is not None else ()),
    }
    for tenant in sorted(tenants):
        last = None
        if exported is not None:
            kept = TenantExport(exported, tenant)
            last = kept.state().last
            yield from kept.entries(sums.since_ms, sums.until_ms)
        if streams is not None:
            for streamed in streams.entries(tenant, after=last, since_ms=sums.since_ms):
                yield streamed.entry


# Exports.


class _Exported(NamedTuple):
    entries: int
    trimmed: int
    # Were deleted before this folder had them.
    missing: int


def _export(config: ExportConfig) -> int:
    if not config.redis or not config.to:
        raise _Wrong("an export needs --redis and --to")
    folder = Path(config.to)
    folder.mkdir(parents=True, exist_ok=True)
    missing = 0
    with _Opened(config) as streams, locked(folder, exclusively=True):
        for tenant in [config.tenant] if config.tenant else streams.tenants():
            done = _export_tenant(config, streams, TenantExport(folder, tenant), tenant)
            trimmed = f", {done.trimmed:,} deleted from Redis" if config.trim else ""
            print(shown(f"{tenant}: {done.entries:,} exported{trimmed}"))
            if done.missing:
                missing += done.missing
                gone = f"entries deleted before this folder had them: {done.missing:,}"
                print(shown(f"usage: {tenant}: {gone}"), file=sys.stderr)
    return 1 if missing else 0


def _export_tenant(config: ExportConfig, streams: Streams, kept: TenantExport, tenant: str) -> _Exported:
    stream = streams.state(tenant)
    kept.clean()
    state = kept.state()
    if stream is None:
        return _Exported(0, 0, 0)
    if state.last is not None and stream.last < state.last:
        raise ExportError(
            f"the ledger of {tenant} in Redis ends at {stream.last}, and {config.to} goes up to {state.last}: "
            "it is another ledger, or an older copy; export it to another folder"
        )
    entries = trimmed = 0
    waiting = streams.entries(tenant, after=state.last, upto=stream.last)
    while batch := list(islice(waiting, _BATCH)):
        state = kept.write(batch, config.format)  # type: ignore[arg-type]
        entries += len(batch)
        if config.trim:
            trimmed += streams.trim(tenant, batch[-1].id)
    if config.trim and state.last is not None and not entries:
        # What an export before this one has kept and not deleted.
        trimmed += streams.trim(tenant, state.last)
    return _Exported(entries, trimmed, max(0, stream.added - state.entries))


class _Opened:
    """The streams of a Redis; what goes wrong there is told in a sentence, without its URL."""

    def __init__(self, config: LedgerOptions) -> None:
        self._config = config
        self._redis: Any = None

    def __enter__(self) -> Streams:
        try:
            import redis  # noqa: F401
        except ImportError:
            raise ExportError("the package redis is needed (the extra `gateway`)") from None
        try:
            self._redis = redis_client(RedisUrl.parse(self._config.redis))
        except Exception as error:
            self._tell(error)
            raise
        return Streams(self._redis, self._config.redis_prefix)

    def __exit__(self, _type: object, error: BaseException | None, _trace: object) -> None:
        self._redis.close()
        self._tell(error)

    def _tell(self, error: BaseException | None) -> None:
        from redis import RedisError

        if isinstance(error, RedisError):
            raise ExportError(f"Redis: {error}") from error
