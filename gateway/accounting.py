"""Everything that holds places and books what requests come to, put together for one gateway process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inferway.metrics import Registry
from inferway.redis_url import RedisUrl
from inferway.service import CannotStart

from .config import Config
from .core.quota.calls import Standing
from .core.quota.policy import Bound
from .core.quota.slices import Slices
from .metrics import Metrics
from .quota.file_ledger import FiledBooks, FileLedger
from .quota.ledger_watch import LedgerMetrics, LedgerWatch
from .quota.memory_books import MemoryBooks
from .quota.orphans import OrphanBooking
from .quota.quotas import Quotas
from .quota.redis_books import RedisBooks
from .quota.redis_connection import redis_client
from .quota.settling import Settling, SettlingMetrics
from .quota.spool import Spool
from .worker_messages import Orphan
from .worker_sessions import WorkerSession

# At the end of the process, for what has not been booked yet.
_CLOSE_S = 5.0
# For books of this process alone, which settles each request once.
_REMEMBER_MS = 60_000


class Accounting:
    """`quotas` is for the journey. `run` it as a task; `close` it while that runs, when the last request has ended."""

    def __init__(self, config: Config, gateway_id: str, registry: Registry, metrics: Metrics) -> None:
        """Raises CannotStart."""
        self._metrics = metrics
        self._shared: _Shared | None = None
        folder = Path(config.spool_dir) if config.spool_dir else None
        counts = SettlingMetrics(registry)
        lease_s = config.reservation_lease_s
        try:
            if config.redis:
                self._shared = _Shared(config, folder, gateway_id, registry, counts)
                self._settling = self._shared.settling
                self._books: RedisBooks | MemoryBooks = self._shared.books
            elif folder is not None:
                ledger = FileLedger(folder, gateway_id)
                self._books = MemoryBooks(write=ledger.write, remember_ms=_REMEMBER_MS)
                self._settling = Settling(FiledBooks(self._books, ledger), None, counts)
            else:
                self._books = MemoryBooks(remember_ms=_REMEMBER_MS)
                self._settling = Settling(self._books, None, counts)
        except OSError as error:
            raise CannotStart(f"--spool-dir: {config.spool_dir} cannot be used: {error.strerror}") from error
        slices = Slices() if self._shared is not None else None
        has_ledger = self._shared is not None or folder is not None
        self.quotas = Quotas(self._books, self._settling, slices, metrics, lease_s=lease_s, has_ledger=has_ledger)

    @property
    def store(self) -> str:
        """ "ok", "away", or "memory" where this process keeps its books itself."""
        if self._shared is None:
            return "memory"
        return "away" if self._shared.books.away else "ok"

    def offered(self, session: WorkerSession, orphans: Sequence[Orphan]) -> None:
        """What a worker has produced for gateways that are gone."""
        if self._shared is not None:
            self._shared.orphans.offered(session, orphans)
        else:
            # Nobody could tell whether their gateway has booked them.
            session.orphans_booked([orphan.orphan_id for orphan in orphans])

    @property
    def gateways(self) -> int | None:
        """How many share the books, as far as is known."""
        return self._books.gateways

    async def standings(self, tenant_id: str, bounds: Sequence[Bound]) -> Sequence[Standing]:
        """How bounds of a tenant stand. Raises StoreAway."""
        return await self._books.standings(tenant_id, bounds)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._settling.run())
            group.create_task(self.quotas.run())
            if self._shared is not None:
                group.create_task(self._shared.run())

    def flush_metrics(self) -> None:
        self._metrics.quota_store_up.set(self.store != "away")

    async def close(self) -> None:
        """Everything is booked, or on disk, as far as that can be."""
        self.quotas.close_all()
        await self._settling.close(_CLOSE_S)
        if self._shared is not None:
            await self._shared.close()


class _Shared:
    """What there is with Redis alone."""

    def __init__(
        self, config: Config, folder: Path | None, gateway_id: str, registry: Registry, counts: SettlingMetrics
    ) -> None:
        self.books = RedisBooks(
            str(config.redis),
            gateway_id=gateway_id,
            prefix=config.redis_prefix,
            timeout_ms=config.redis_timeout_ms,
            gateways=config.gateways or None,
        )
        spool = Spool(folder, gateway_id, config.spool_max_bytes) if folder is not None else None
        self.settling = Settling(self.books, spool, counts)
        self.orphans = OrphanBooking(gateway_id, self.books, self.settling)
        self._client: Any = redis_client(RedisUrl.parse(config.redis))
        self._watch = LedgerWatch(
            self._client, config.redis_prefix, gateway_id, config.ledger_alarm_entries, LedgerMetrics(registry)
        )

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for part in (self.books.run(), self.orphans.run(), self._watch.run()):
                group.create_task(part)

    async def close(self) -> None:
        await self._client.aclose()
