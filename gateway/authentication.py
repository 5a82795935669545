"""Who asks: from the Authorization header to the caller, by the directory or, without one, by the key alone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from inferway.errors import ApiError, Reason

from .core.tenants import Caller, digest_of, key_bytes
from .directory.directories import Directory

_ANONYMOUS = "anonymous"
# One sentence for keys that are missing, wrong, expired and revoked: it tells nobody which keys there have been.
_REFUSED = "The API key is missing or not valid. Send it as 'Authorization: Bearer KEY'."
# Tokens with their claims are the longest; nothing beyond is worth hashing.
_MOST_KEY_BYTES = 4096


def authentication(
    directory: Directory | None, *, anyone_may_choose_workers: bool = False
) -> Callable[[str], Awaitable[Caller]]:
    """What finds the caller of an Authorization header.

    It raises ApiError: HEADERS_TOO_LARGE for a key above 4 KiB, and with a directory INVALID_API_KEY for whoever is not
    in it, and what the directory raises. Without one everybody is let in: each key is a tenant of its own, named by
    digest, and callers without a key share a tenant.
    """

    async def listed(authorization: str) -> Caller:
        assert directory is not None
        key = _key(authorization)
        caller = await directory.find(key) if key else None
        if caller is None:
            raise ApiError(Reason.INVALID_API_KEY, _REFUSED)
        return caller

    async def anyone(authorization: str) -> Caller:
        key = _key(authorization)
        tenant_id = "key-" + digest_of(key)[:16] if key else _ANONYMOUS
        return Caller(tenant_id, may_choose_workers=anyone_may_choose_workers)

    return listed if directory is not None else anyone


def _key(authorization: str) -> str:
    """The bearer token; empty when there is none. Raises ApiError."""
    scheme, _, key = authorization.partition(" ")
    key = key.strip() if scheme.lower() == "bearer" else ""
    if len(key_bytes(key)) > _MOST_KEY_BYTES:
        raise ApiError(Reason.HEADERS_TOO_LARGE, f"An API key may have {_MOST_KEY_BYTES} bytes at most.")
    return key
