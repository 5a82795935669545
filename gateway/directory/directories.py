"""Whose key it is, wherever that stands: in the file of tenants, in a token itself, in Redis. One path for all.

The order is that of cost and of authority: the file goes before Redis. What is blocked is blocked wherever it stands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inferway.errors import ApiError, Reason

from ..core.directory import FileDirectory
from ..core.tenants import Caller
from .redis_directory import RedisDirectory
from .tokens import Tokens, looks_like_token


class Directory(Protocol):
    """Who may call."""

    async def find(self, key: str) -> Caller | None:
        """The bearer of a key or token; None for one that is unknown, expired, revoked, blocked or malformed.

        Raises ApiError: AUTH_UNAVAILABLE where that cannot be found out, TENANT_BLOCKED.
        """


class Directories:
    """Those that are configured, as one."""

    def __init__(
        self,
        file: Callable[[], FileDirectory],
        now: Callable[[], float],
        tokens: Tokens | None = None,
        redis: RedisDirectory | None = None,
    ) -> None:
        """`now` is the time in Unix seconds."""
        self._file = file
        self._now = now
        self._tokens = tokens
        self._redis = redis

    async def find(self, key: str) -> Caller | None:
        """See Directory."""
        caller = self._file().find(key, now=self._now())
        if caller is None and self._tokens is not None and looks_like_token(key):
            caller = await self._tokens.find(key)
        elif caller is None and self._redis is not None:
            caller = await self._redis.find(key)
        if caller is None or self._redis is None:
            return caller
        await self._redis.settled()
        if self._redis.is_key_blocked(caller.tenant_id, caller.key_id):
            return None
        if self._redis.is_tenant_blocked(caller.tenant_id):
            raise ApiError(Reason.TENANT_BLOCKED, "This account is blocked; ask the operator of this service.")
        return caller
