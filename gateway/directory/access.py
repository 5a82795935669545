"""Everything that says who may call, built of the options: files, Redis and issuers of tokens."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable

from inferway.redis_url import RedisUrl
from inferway.settings_file import SettingsFile

from ..config import Config
from ..core.directory import FileDirectory, parse_tenants
from ..core.issuers import Issuers, parse_issuers
from ..core.tenants import TenantFields
from ..quota.redis_connection import redis_client
from .changes import Changes
from .directories import Directories, Directory
from .documents import Documents
from .redis_directory import RedisDirectory
from .tokens import Tokens

# Of the connection that waits for changes. It sees for itself whether the other side is alive.
_CHANGES_TIMEOUT_S = 5.0


def tenants_file(config: Config, key_secret: bytes) -> SettingsFile[FileDirectory]:
    """Raises CannotStart for a bad file."""
    may_have_quotas = bool(config.redis) or config.processes == 1
    parse = functools.partial(parse_tenants, secret=key_secret, may_have_quotas=may_have_quotas)
    return SettingsFile("--tenants", config.tenants, parse, FileDirectory())


class Access:
    """`run`, then `close`, always."""

    def __init__(self, config: Config, key_secret: bytes) -> None:
        """Raises CannotStart for a bad file."""
        self._tenants = tenants_file(config, key_secret)
        self._issuers = SettingsFile[Issuers]("--jwt", config.jwt, parse_issuers, {})
        self._clients = []
        # None without Redis.
        self.documents: Documents | None = None
        self.changes: Changes | None = None
        self._redis: RedisDirectory | None = None
        if config.redis:
            url = RedisUrl.parse(config.redis)
            timeout_s = config.redis_timeout_ms / 1000
            self._clients = [redis_client(url, timeout_s=one) for one in (timeout_s, _CHANGES_TIMEOUT_S)]
            self.documents = Documents(self._clients[0], config.redis_prefix, key_secret)
            self.changes = Changes(self._clients[1], self.documents.channel)
            self._redis = RedisDirectory(self.documents, self.changes, lambda: self.file.tenants, timeout_s)
        self._tokens = Tokens(lambda: self._issuers.value, self.tenant) if config.jwt else None
        has_keys = bool(config.tenants or config.redis or config.jwt)
        # None: everybody is let in.
        self.directory: Directory | None = (
            Directories(lambda: self._tenants.value, time.time, self._tokens, self._redis) if has_keys else None
        )

    @property
    def file(self) -> FileDirectory:
        """What the file of tenants says now."""
        return self._tenants.value

    async def tenant(self, tenant_id: str) -> TenantFields | None:
        """Of the file or of Redis. Raises ApiError (AUTH_UNAVAILABLE)."""
        if self._redis is not None:
            return await self._redis.tenant(tenant_id)
        return self._tenants.value.tenants.get(tenant_id)

    def is_model_blocked(self, *names: str) -> bool:
        """By any of the names that it goes by."""
        return self._redis is not None and self._redis.is_model_blocked(*names)

    async def run(self, counts: Callable[[str], Callable[[bool], None]]) -> None:
        """Follow files, changes in Redis and the keys of issuers. `counts` gives what counts versions of a file."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tenants.run(counts("tenants")))
            group.create_task(self._issuers.run(counts("jwt")))
            if self._redis is not None:
                group.create_task(self._redis.run())
            if self._tokens is not None:
                group.create_task(self._tokens.run())

    async def close(self) -> None:
        for client in self._clients:
            await client.aclose()
