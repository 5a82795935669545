"""Ledgers as they are kept: streams in Redis, and files of a mesh without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferway.checked_lines import lines_of
from inferway.cli.ledger_exports import Streamed, StreamId
from inferway.ledger import LEDGER_SUFFIX, LedgerEntry, UnknownEntry, entry_of, stream_key, stream_pattern, tenant_of

_CHUNK = 2000
_SCAN = 1000


class StreamState(NamedTuple):
    # The last entry that there ever was.
    last: StreamId
    # That there ever were, trimmed ones included.
    added: int


class Streams:
    """The ledgers of a Redis. Calls raise redis.RedisError, and UnknownEntry for what is no entry of this version."""

    def __init__(self, redis: Any, prefix: str) -> None:
        """`redis` returns bytes."""
        self._redis = redis
        self._prefix = prefix

    def tenants(self) -> list[str]:
        found = self._redis.scan_iter(match=stream_pattern(self._prefix), count=_SCAN)
        names = (tenant_of(self._prefix, key.decode(errors="replace")) for key in found)
        return sorted({name for name in names if name is not None})

    def state(self, tenant: str) -> StreamState | None:
        """None: it has no stream."""
        key = stream_key(self._prefix, tenant)
        if not self._redis.exists(key):
            return None
        info = self._redis.xinfo_stream(key)
        return StreamState(StreamId.of(info["last-generated-id"].decode()), int(info["entries-added"]))

    def entries(
        self, tenant: str, *, after: StreamId | None, since_ms: int | None = None, upto: StreamId | None = None
    ) -> Iterator[Streamed]:
        """Those behind `after`, up to and with `upto`. What ended before `since_ms` may be among them.

        An entry's id is the time at which it was booked: never before its request's end.
        """
        key = stream_key(self._prefix, tenant)
        least = "-" if since_ms is None else str(max(0, since_ms))
        if after is not None and (since_ms is None or after >= StreamId(since_ms, 0)):
            least = f"({after}"
        most = "+" if upto is None else str(upto)
        while chunk := self._redis.xrange(key, least, most, count=_CHUNK):
            for raw_id, fields in chunk:
                stream_id = StreamId.of(raw_id.decode())
                least = f"({stream_id}"
                record = {name.decode(errors="replace"): text.decode(errors="replace") for name, text in fields.items()}
                try:
                    entry = entry_of(record)
                except UnknownEntry as error:
                    raise UnknownEntry(f"entry {stream_id} of {key}: {error}") from None
                yield Streamed(stream_id, entry)

    def trim(self, tenant: str, upto: StreamId) -> int:
        """Delete the entries up to and with this one; how many that were."""
        least_kept = StreamId(upto.ms, upto.sequence + 1)
        trimmed: int = self._redis.xtrim(stream_key(self._prefix, tenant), minid=str(least_kept), approximate=False)
        return trimmed


def file_entries(folder: Path) -> Iterator[LedgerEntry | None]:
    """Of all files of a folder, in order; None for a line that cannot be read. Raises OSError, UnknownEntry.

    A last line that is still being written is none.
    """
    for path in sorted(folder.glob(f"*{LEDGER_SUFFIX}")):
        with path.open("rb") as file:
            for raw in file:
                for payload, _ in lines_of(raw):
                    if payload is None:
                        yield None
                        continue
                    try:
                        yield entry_of(msgspec.json.decode(payload, type=dict[str, str]))
                    except (UnknownEntry, msgspec.DecodeError) as error:
                        raise UnknownEntry(f"{path}: {error}") from None
