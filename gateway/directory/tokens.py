"""Bearer tokens (JWT) beside keys: whose they are, by their issuers' public keys and the file of issuers.

A token that is not good for any reason is not valid, in the words that a wrong key gets. Where it cannot be judged, as
no key of its issuer has ever been read, or its tenant cannot be looked up, that is said, and it is no 401.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jwt

from inferway import logs
from inferway.errors import ApiError, Reason

from ..core.issuers import BadClaims, Bearer, Issuer, Issuers, NamedIssuer, bearer_of
from ..core.remembered import Remembered
from ..core.tenants import Caller, TenantFields, caller_of, digest_of
from .key_sets import KeySet, Source, Unread

log = logging.getLogger(__name__)

_TICK_S = 1.0
# A token comes with every request of its bearer, and to verify it costs more than all else that a request does here.
_MOST_JUDGED = 10_000
_JUDGED_S = 60.0


def looks_like_token(key: str) -> bool:
    """Three parts, the first of which is a JSON object in base64; no key of ours looks so."""
    return key.startswith("eyJ") and key.count(".") == 2


class _Refused(Exception):
    def __init__(self, reason: str, issuer_name: str = "") -> None:
        self.reason, self.issuer_name = reason, issuer_name


@dataclass(frozen=True, slots=True)
class _Judged:
    """A token that was found good, and on what that rests."""

    bearer: Bearer
    by: NamedIssuer
    # Of the set of keys.
    version: int
    # Unix seconds.
    until: float


class Tokens:
    """Judges tokens by the settings in force; `run` keeps the issuers' keys fresh."""

    def __init__(self, issuers: Callable[[], Issuers], tenant: Callable[[str], Awaitable[TenantFields | None]]) -> None:
        """`tenant` finds what a directory says of a tenant, and raises ApiError where it cannot."""
        self._issuers = issuers
        self._tenant = tenant
        self._key_sets: dict[Source, KeySet] = {}
        self._judged = Remembered[_Judged](most=_MOST_JUDGED, fresh_s=_JUDGED_S, absent_s=0, oldest_s=_JUDGED_S)

    async def run(self) -> None:
        while True:
            sources = {_source(issuer) for _, issuer in self._issuers().values()}
            self._key_sets = {source: self._key_set(source) for source in sources}
            await asyncio.gather(*(key_set.refresh() for key_set in self._key_sets.values()))
            await asyncio.sleep(_TICK_S)

    async def find(self, token: str) -> Caller | None:
        """Raises ApiError (AUTH_UNAVAILABLE)."""
        try:
            return await self._caller(token)
        except _Refused as refused:
            # For whoever finds out why; nothing of the token is said.
            logs.event(log, "token_refused", issuer=refused.issuer_name, reason=refused.reason, level=logging.DEBUG)
            return None

    async def _caller(self, token: str) -> Caller:
        """Raises _Refused and ApiError."""
        digest = digest_of(token)
        known = self._judged.get(digest, now=time.monotonic())
        judged = known.value if known is not None else None
        if judged is None or not self._holds(judged):
            judged = await self._judge(token)
            self._judged.put(digest, judged, now=time.monotonic())
        bearer = judged.bearer
        fields = await self._tenant(bearer.tenant_id)
        if fields is None and bearer.must_be_listed:
            raise _Refused("the tenant is not known", judged.by.name)
        return caller_of(bearer.tenant_id, fields or TenantFields(), bearer.key_id, bearer.fields)

    def _holds(self, judged: _Judged) -> bool:
        """Whether it would be judged the same again: by the same settings and keys, and before its end."""
        settings = judged.by.settings
        is_current = self._issuers().get(settings.issuer) is judged.by
        return is_current and self._key_set(_source(settings)).version == judged.version and time.time() < judged.until

    async def _judge(self, token: str) -> _Judged:
        """Raises _Refused and ApiError."""
        try:
            header = jwt.get_unverified_header(token)
            unverified: Any = jwt.decode(token, options={"verify_signature": False})
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _Refused("it is no token") from None
        known = self._issuers().get(str(unverified.get("iss")))
        if known is None:
            raise _Refused("the issuer is not known")
        name, issuer = known
        algorithm, key_id = header.get("alg"), header.get("kid")
        if algorithm not in issuer.algorithms:
            raise _Refused("the algorithm is not allowed", name)
        if "crit" in header:
            raise _Refused("it demands an extension", name)
        key_set = self._key_set(_source(issuer))
        try:
            keys = await key_set.keys(algorithm, key_id)
        except Unread:
            message = "Tokens of this issuer cannot be verified at the moment; try again."
            raise ApiError(Reason.AUTH_UNAVAILABLE, message, retry_after_s=1.0) from None
        version = key_set.version
        claims = _verified(token, keys, known)
        try:
            bearer = bearer_of(name, issuer, claims)
        except BadClaims as error:
            raise _Refused(str(error), name) from None
        return _Judged(bearer, known, version, float(claims["exp"]) + issuer.leeway_s)

    def _key_set(self, source: Source) -> KeySet:
        if source not in self._key_sets:
            self._key_sets[source] = KeySet(source)
        return self._key_sets[source]


def _source(issuer: Issuer) -> Source:
    if issuer.jwks_url is not None:
        return Source(issuer.jwks_url, is_url=True)
    assert issuer.jwks_file is not None, "parse_issuers refuses settings without either"
    return Source(issuer.jwks_file, is_url=False)


def _verified(token: str, keys: Sequence[jwt.PyJWK], known: NamedIssuer) -> dict[str, Any]:
    """The claims, once one of the keys has verified them. Raises _Refused."""
    name, issuer = known
    reason = "the key is not known"
    for key in keys:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=list(issuer.algorithms),
                audience=list(issuer.audience),
                issuer=issuer.issuer,
                leeway=issuer.leeway_s,
                options={"require": ["exp", "iss", "aud"], "verify_sub": False},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError) as error:
            reason = type(error).__name__
        else:
            return claims
    raise _Refused(reason, name)
