"""Puts together what a gateway has for admins: its port, and its part in what is asked of all gateways."""

from __future__ import annotations

from collections.abc import Callable

from inferway.redis_url import RedisUrl

from ..config import Config
from ..core.directory import FileDirectory
from ..directory.changes import Changes
from ..directory.documents import Documents
from ..in_flight import InFlight
from ..quota.redis_connection import redis_client
from .audit import AuditLog
from .blocks import BlockEndpoints
from .credentials import AdminCredentials, admin_credentials
from .keys import KeyEndpoints
from .requests import RequestEndpoints
from .running import WORD, Running
from .server import AdminFront
from .sources import Sources
from .standings import Books, StandingEndpoints
from .tenants import TenantEndpoints
from .usage import UsageEndpoints

# Of a call to Redis: no request of a caller waits for it, and a change that is cut short has to be looked at again.
_REDIS_TIMEOUT_S = 2.0


class Admin:
    """`run`, then `close`, always. Without a port for admins a gateway still answers what others are asked."""

    def __init__(
        self,
        config: Config,
        key_secret: bytes,
        gateway_id: str,
        *,
        in_flight: InFlight,
        file: Callable[[], FileDirectory],
        changes: Changes | None,
        books: Books | None = None,
        living: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`changes` None: there is no Redis. `living` says how many gateways there are, where that is known.

        Raises CannotStart for a port without a credential.
        """
        credentials = admin_credentials(config)
        documents = self._client = None
        if changes is not None:
            # Connects with its first call.
            self._client = redis_client(RedisUrl.parse(config.redis), timeout_s=_REDIS_TIMEOUT_S)
            documents = Documents(self._client, config.redis_prefix, key_secret)
        channel = documents.channel if documents is not None else ""
        self._running = Running(gateway_id, in_flight, self._client, config.redis_prefix, channel, living)
        if changes is not None:
            changes.on(WORD, self._running.on_message)
        # What the HTTP server calls; None: there is no such port.
        self.front = (
            admin_front(credentials, file=file, documents=documents, running=self._running, books=books)
            if credentials is not None
            else None
        )

    async def run(self) -> None:
        await self._running.run()

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


def admin_front(
    credentials: AdminCredentials,
    *,
    file: Callable[[], FileDirectory],
    documents: Documents | None,
    running: Running,
    books: Books | None = None,
) -> AdminFront:
    """Without `documents` tenants, keys and blocks can be read only."""
    sources = Sources(file, documents)
    audit = AuditLog(documents)
    handlers = {
        **TenantEndpoints(sources, audit).handlers(),
        **KeyEndpoints(sources, audit).handlers(),
        **BlockEndpoints(sources, running, audit).handlers(),
        **RequestEndpoints(running, audit).handlers(),
        **StandingEndpoints(sources, books).handlers(),
        **UsageEndpoints(running.redis, running.prefix).handlers(),
    }
    return AdminFront(credentials, handlers)
