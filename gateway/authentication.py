"""Who asks: from the Authorization header to the caller, by the file of tenants or, without one, by the key alone."""

from __future__ import annotations

import time
from collections.abc import Callable

from inferway.errors import ApiError, Reason

from .core.directory import FileDirectory
from .core.tenants import Caller, digest_of

_ANONYMOUS = "anonymous"
# One sentence for keys that are missing, wrong, expired and revoked: it tells nobody which keys there have been.
_REFUSED = "The API key is missing or not valid. Send it as 'Authorization: Bearer KEY'."


def authentication(
    directory: Callable[[], FileDirectory] | None, *, anyone_may_choose_workers: bool = False
) -> Callable[[str], Caller]:
    """What finds the caller of an Authorization header.

    With a directory it raises ApiError (INVALID_API_KEY) for whoever is not in it. Without one everybody is let in:
    each key is a tenant of its own, named by digest, and callers without a key share a tenant.
    """

    def listed(authorization: str) -> Caller:
        assert directory is not None
        caller = directory().find(_key(authorization), now=time.time())
        if caller is None:
            raise ApiError(Reason.INVALID_API_KEY, _REFUSED)
        return caller

    def anyone(authorization: str) -> Caller:
        key = _key(authorization)
        tenant_id = "key-" + digest_of(key)[:16] if key else _ANONYMOUS
        return Caller(tenant_id, may_choose_workers=anyone_may_choose_workers)

    return listed if directory is not None else anyone


def _key(authorization: str) -> str:
    """The bearer token; empty when there is none."""
    scheme, _, key = authorization.partition(" ")
    return key.strip() if scheme.lower() == "bearer" else ""
