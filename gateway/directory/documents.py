"""Tenants, keys and blocks as documents in Redis: the only module that knows where they lie and how they are written.

    PREFIX:dir:tenant:T    the tenant's fields, JSON
    PREFIX:dir:key:DIGEST  a KeyDocument, JSON; DIGEST is HMAC-SHA256(key secret, key) in hex
    PREFIX:dir:keys:T      hash, name of a key -> DIGEST
    PREFIX:dir:tenants     set of names
    PREFIX:dir:blocks      hash, subject -> Block, JSON
    PREFIX:dir:audit       stream of changes
    PREFIX:dir:changed     channel: "tenant T", "key DIGEST", "blocks", "kill ..."

No key is held anywhere: it is returned once, when it is made. It ends in a mark, made with the key secret, by which any
gateway knows it for one that was once given out. On a cluster the documents lie on several nodes, so
nothing here is one transaction. Instead, each change is an order of single commands of which every beginning is safe:
what is taken away stops working with the first, and what is given works only once it is listed. Every change is
announced on the channel after it is made, and gateways that hear nothing ask again within a minute.

All methods raise one of AWAY_ERRORS when Redis is away.
"""

from __future__ import annotations

import asyncio
import base64
import hmac
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.cluster import RedisCluster
from redis.exceptions import RedisClusterException, RedisError

from inferway.settings import SettingsError, shaped

from ..core.tenants import KeyFields, Name, TenantFields, key_bytes, shaped_tenant

# A key is "sk-", so many random bytes, and its mark, both in base64 for URLs.
_KEY_BYTES = 32
_MARK_BYTES = 6
_MARK_CHARS = 8
# Changes that the audit log holds, about.
_AUDIT_LENGTH = 100_000

# Documents of keys that are read together, and keys that are revoked at one time, each over its own connection.
_AT_ONCE = 200
_REVOKED_AT_ONCE = 16

Client = Redis | RedisCluster

# What the client raises when Redis is away. A cluster's own exception is no RedisError, and a LookupError is raised for
# a part of a cluster that no node has.
AWAY_ERRORS = (RedisError, RedisClusterException, OSError, TimeoutError, LookupError)

# Take a name out of the list, or give it another digest (ARGV[3]), if it still has the digest that was read.
_REPLACE = """
if redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
if ARGV[3] == '' then return redis.call('HDEL', KEYS[1], ARGV[1]) end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
return 1
"""


class Taken(Exception):
    """There is one of that name already."""


class NotFound(Exception):
    """There is none of that name."""


class Unreadable(Exception):
    """A document says what this version does not understand: it may be a restriction, so nothing of it holds."""


class KeyDocument(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key, without itself."""

    tenant: Name
    key_id: Name
    # Unix seconds.
    created_s: int
    # From then on it is refused; None: never.
    expires_s: int | None = None

    def is_valid(self, now: float) -> bool:
        return self.expires_s is None or now < self.expires_s


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """Why a tenant, a key or a model is refused, for operators: callers are not told."""

    since_s: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Change:
    """An entry of the audit log. `before` and `after` are documents, which hold no key; None where there is none."""

    by: str
    # For example "put", "create", "revoke", "block".
    action: str
    # For example "tenant:research", "key:research/anna".
    subject: str
    before: Any = None
    after: Any = None
    # Set where it was read from the log.
    at_ms: int = 0
    id: str = ""


def tenant_subject(tenant_id: str) -> str:
    """The name of a block."""
    return f"tenant:{tenant_id}"


def key_subject(tenant_id: str, key_id: str) -> str:
    return f"key:{tenant_id}/{key_id}"


def model_subject(model: str) -> str:
    return f"model:{model}"


class Documents:
    """Reads and writes them. Holds no state and no task; the client is the caller's to close."""

    def __init__(self, redis: Client, prefix: str, key_secret: bytes) -> None:
        self._redis: Any = redis
        self._prefix = f"{prefix}:dir:"
        self._secret = key_secret
        self.channel = self._prefix + "changed"

    # Tenants

    async def tenant_ids(self) -> list[str]:
        return sorted(_text(name) for name in await self._redis.smembers(self._prefix + "tenants"))

    async def tenant(self, tenant_id: str) -> TenantFields | None:
        """Raises Unreadable."""
        raw = await self._redis.get(self._tenant(tenant_id))
        return None if raw is None else _read_tenant(raw, tenant_id)

    async def put_tenant(self, tenant_id: str, fields: TenantFields) -> None:
        """Make it, or put these fields in the place of all that it had."""
        await self._redis.sadd(self._prefix + "tenants", tenant_id)
        await self._redis.set(self._tenant(tenant_id), msgspec.json.encode(fields))
        await self.announce(f"tenant {tenant_id}")

    async def is_listed(self, tenant_id: str) -> bool:
        """Also of one that is half made or half deleted, and has no document."""
        return bool(await self._redis.sismember(self._prefix + "tenants", tenant_id))

    async def delete_tenant(self, tenant_id: str) -> bool:
        """With all its keys; says whether there was one. What it has used and its ledger stay."""
        was_there = bool(await self._redis.delete(self._tenant(tenant_id)))
        key_ids = list(await self._index(tenant_id))
        for start in range(0, len(key_ids), _REVOKED_AT_ONCE):
            some = key_ids[start : start + _REVOKED_AT_ONCE]
            await asyncio.gather(*(self.revoke_key(tenant_id, key_id) for key_id in some))
        await self._redis.srem(self._prefix + "tenants", tenant_id)
        await self.announce(f"tenant {tenant_id}")
        return was_there

    # Keys

    async def find_key(self, key: str) -> KeyDocument | None:
        """The document of a key by its text, expired or not. Raises Unreadable."""
        return await self.key_by_digest(self.digest(key))

    async def key_by_digest(self, digest: str) -> KeyDocument | None:
        """Raises Unreadable."""
        raw = await self._redis.get(self._key(digest))
        return None if raw is None else _read_key(raw)

    def digest(self, key: str) -> str:
        """The name under which a key is found."""
        return hmac.new(self._secret, key_bytes(key), "sha256").hexdigest()

    def is_marked(self, key: str) -> bool:
        """Whether it was made with the key secret, valid or not: no other need ever be looked up."""
        mark = self._mark(key[:-_MARK_CHARS])
        return hmac.compare_digest(mark.encode(), key_bytes(key[-_MARK_CHARS:]))

    async def keys(self, tenant_id: str) -> list[KeyDocument]:
        """All of a tenant, by name. Raises Unreadable."""
        names = [self._key(digest) for _, digest in sorted((await self._index(tenant_id)).items())]
        found: list[KeyDocument] = []
        for start in range(0, len(names), _AT_ONCE):
            async with self._redis.pipeline(transaction=False) as pipe:
                for name in names[start : start + _AT_ONCE]:
                    pipe.get(name)
                found += [_read_key(raw) for raw in await pipe.execute() if raw is not None]
        return found

    async def key(self, tenant_id: str, key_id: str) -> KeyDocument | None:
        """Raises Unreadable."""
        digest = await self._listed(tenant_id, key_id)
        return None if digest is None else await self.key_by_digest(digest)

    async def create_key(self, tenant_id: str, key_id: str, fields: KeyFields, *, expires_s: int | None = None) -> str:
        """A new key of the tenant, which need not have a document (it may stand in the file of tenants).

        The text is returned here and can never be had again. Raises Taken, also for a name that is left of a call that
        broke off: to revoke it frees the name. Raises NotFound where it was revoked before it was whole.
        """
        text = self._new_key()
        digest = self.digest(text)
        if not await self._redis.hsetnx(self._keys(tenant_id), key_id, digest):
            raise Taken
        document = _document(fields, tenant_id, key_id, int(time.time()), expires_s)
        await self._put_key(digest, document)
        return text

    async def change_key(self, tenant_id: str, key_id: str, fields: KeyFields, *, expires_s: int | None) -> None:
        """Put these in the place of all that it had but its text. Raises NotFound."""
        digest = await self._listed(tenant_id, key_id)
        old = None if digest is None else await self.key_by_digest(digest)
        if digest is None or old is None:
            raise NotFound
        # Only where it is still there: a key that is revoked meanwhile stays so.
        document = _document(fields, tenant_id, key_id, old.created_s, expires_s)
        if not await self._redis.set(self._key(digest), msgspec.json.encode(document), xx=True):
            raise NotFound
        await self.announce(f"key {digest}")

    async def rotate_key(self, tenant_id: str, key_id: str) -> str:
        """A new text for a key; the old one is refused from now on. Raises NotFound.

        To change without a gap, create a second key and revoke the first when nobody uses it any more.
        """
        digest = await self._listed(tenant_id, key_id)
        old = None if digest is None else await self.key_by_digest(digest)
        if digest is None or old is None:
            raise NotFound
        text = self._new_key()
        await self._redis.delete(self._key(digest))
        await self.announce(f"key {digest}")
        if not await self._replace(tenant_id, key_id, digest, self.digest(text)):
            raise NotFound
        await self._put_key(self.digest(text), old)
        return text

    async def revoke_key(self, tenant_id: str, key_id: str) -> bool:
        """Says whether there was one."""
        was_there = False
        while (digest := await self._listed(tenant_id, key_id)) is not None:
            was_there |= bool(await self._redis.delete(self._key(digest)))
            await self._replace(tenant_id, key_id, digest, "")
            # Once more: it may have been written between the two, by a call that then found it listed.
            was_there |= bool(await self._redis.delete(self._key(digest)))
            await self.announce(f"key {digest}")
        return was_there

    # Blocks

    async def blocks(self) -> dict[str, Block]:
        """By subject (see `tenant_subject` and its siblings). One that cannot be read blocks as well."""
        entries = await self._redis.hgetall(self._prefix + "blocks")
        return {_text(subject): _read_block(raw) for subject, raw in entries.items()}

    async def block(self, subject: str, reason: str = "") -> Block:
        """Refuse every further request of a subject, on all gateways. One that is blocked already keeps its time."""
        block = Block(since_s=int(time.time()), reason=reason)
        await self._redis.hsetnx(self._prefix + "blocks", subject, msgspec.json.encode(block))
        await self.announce("blocks")
        return _read_block(await self._redis.hget(self._prefix + "blocks", subject) or msgspec.json.encode(block))

    async def unblock(self, subject: str) -> bool:
        """Says whether it was blocked."""
        was_there = bool(await self._redis.hdel(self._prefix + "blocks", subject))
        await self.announce("blocks")
        return was_there

    # The audit log, and the channel

    async def record(self, change: Change) -> None:
        """Before the change itself: one that is logged and was not made is better than one that nobody knows of."""
        fields = {
            "at_ms": str(time.time_ns() // 1_000_000),
            "by": change.by,
            "action": change.action,
            "subject": change.subject,
            "before": msgspec.json.encode(change.before),
            "after": msgspec.json.encode(change.after),
        }
        await self._redis.xadd(self._prefix + "audit", fields, maxlen=_AUDIT_LENGTH, approximate=True)

    async def changes(self, *, count: int = 100, before: str = "") -> list[Change]:
        """The newest first; those older than the change whose `id` is `before`."""
        newest = f"({before}" if before else "+"
        entries = await self._redis.xrevrange(self._prefix + "audit", newest, "-", count=count)
        return [_read_change(_text(entry_id), fields) for entry_id, fields in entries]

    async def announce(self, message: str) -> None:
        """Tell all gateways. What they do with it: changes.py."""
        await self._redis.publish(self.channel, message)

    def _new_key(self) -> str:
        text = "sk-" + secrets.token_urlsafe(_KEY_BYTES)
        return text + self._mark(text)

    def _mark(self, text: str) -> str:
        mark = hmac.digest(self._secret, b"mark " + key_bytes(text), "sha256")[:_MARK_BYTES]
        return base64.urlsafe_b64encode(mark).decode()

    def _tenant(self, tenant_id: str) -> str:
        return f"{self._prefix}tenant:{tenant_id}"

    def _key(self, digest: str) -> str:
        return f"{self._prefix}key:{digest}"

    def _keys(self, tenant_id: str) -> str:
        return f"{self._prefix}keys:{tenant_id}"

    async def _index(self, tenant_id: str) -> dict[str, str]:
        entries = await self._redis.hgetall(self._keys(tenant_id))
        return {_text(key_id): _text(digest) for key_id, digest in entries.items()}

    async def _listed(self, tenant_id: str, key_id: str) -> str | None:
        """The digest of one key."""
        digest = await self._redis.hget(self._keys(tenant_id), key_id)
        return None if digest is None else _text(digest)

    async def _replace(self, tenant_id: str, key_id: str, old: str, new: str) -> bool:
        return bool(await self._redis.eval(_REPLACE, 1, self._keys(tenant_id), key_id, old, new))

    async def _put_key(self, digest: str, document: KeyDocument) -> None:
        await self._redis.set(self._key(digest), msgspec.json.encode(document))
        if await self._listed(document.tenant, document.key_id) != digest:
            # Revoked, alone or with its tenant, between the two writes: what is not listed could never be revoked.
            await self._redis.delete(self._key(digest))
            raise NotFound
        await self.announce(f"key {digest}")


def _document(fields: KeyFields, tenant_id: str, key_id: str, created_s: int, expires_s: int | None) -> KeyDocument:
    given = {name: getattr(fields, name) for name in KeyFields.__struct_fields__}
    return KeyDocument(**given, tenant=tenant_id, key_id=key_id, created_s=created_s, expires_s=expires_s)


def _read_tenant(raw: bytes | str, tenant_id: str) -> TenantFields:
    try:
        return shaped_tenant(msgspec.json.decode(raw))
    except (SettingsError, msgspec.DecodeError) as error:
        raise Unreadable(f"tenant {tenant_id}: {error}") from error


def _read_key(raw: bytes | str) -> KeyDocument:
    try:
        return shaped(msgspec.json.decode(raw), KeyDocument)
    except (SettingsError, msgspec.DecodeError) as error:
        raise Unreadable(f"a key: {error}") from error


def _read_block(raw: bytes | str) -> Block:
    try:
        return msgspec.json.decode(raw, type=Block)
    except msgspec.DecodeError:
        return Block(since_s=0)


def _read_change(entry_id: str, raw: Mapping[bytes | str, bytes | str] | Sequence[Any]) -> Change:
    fields = {_text(name): _text(value) for name, value in dict(raw).items()}
    return Change(
        fields.get("by", ""),
        fields.get("action", ""),
        fields.get("subject", ""),
        msgspec.json.decode(fields.get("before", "null")),
        msgspec.json.decode(fields.get("after", "null")),
        int(fields.get("at_ms", "0")),
        entry_id,
    )


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
