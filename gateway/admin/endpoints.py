"""What the port for admins offers: one table, from which requests are matched and docs/admin.md is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from ..core.tenants import KeyFields, Name, TenantFields

PREFIX = "/admin/v1"

_Count = Annotated[int, Meta(ge=1, le=1000)]


class NewKey(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is said of a key when it is made."""

    id: Name
    # A day or a time, in UTC unless it says otherwise, from which the key is refused.
    expires: str | None = None


class KeySettings(KeyFields, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What can be changed of a key."""

    expires: str | None = None


class NewBlock(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # For operators: callers are not told.
    reason: Annotated[str, Meta(max_length=500)] = ""
    # End what is being answered as well.
    kill: bool = False


class Page(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: _Count = 100
    # The last name of the page before.
    after: str = ""


class AuditPage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    limit: _Count = 100
    # The id of the last change of the page before: two numbers of 64 bits at most.
    before: Annotated[str, Meta(pattern=r"^([0-9]{1,19}(-[0-9]{1,19})?)?\Z")] = ""


class Period(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    # Days, times, or so long ago: 2026-11-30, 2026-11-30T12:00Z, 24h.
    since: str = ""
    until: str = ""
    # Names of inferway.usage.GROUPS, separated by commas.
    by: str = ""


class Which(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    tenant: str = ""
    key: str = ""
    model: str = ""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A last segment that ends in "..." takes the rest of the path: models and subjects of tokens have slashes."""

    id: str
    method: str
    path: str
    does: str
    answer: str
    # Of an object: a body that is left out counts as {}.
    body: type[msgspec.Struct] | None = None
    # A JSON merge patch (RFC 7396): what it leaves out stays, and null takes away. The handler knows the shape.
    is_patch: bool = False
    query: type[msgspec.Struct] | None = None


_TENANT, _KEY = "/tenants/{tenant}", "/tenants/{tenant}/keys/{key}"
_FIELDS = "as in the file of tenants"

ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("list_tenants", "GET", "/tenants", "All tenants, by name", "`tenants`, `next`", query=Page),
    Endpoint("get_tenant", "GET", _TENANT, "One tenant", "the tenant"),
    Endpoint(
        "put_tenant", "PUT", _TENANT, f"Make a tenant, or replace all its fields, {_FIELDS}", "the tenant", TenantFields
    ),
    Endpoint("patch_tenant", "PATCH", _TENANT, "Change some fields, such as its quota", "the tenant", is_patch=True),
    Endpoint(
        "delete_tenant", "DELETE", _TENANT, "Take a tenant away with all its keys; its ledger stays", "the tenant"
    ),
    Endpoint("standings", "GET", f"{_TENANT}/standings", "What is used of each bound now", "`standings`"),
    Endpoint(
        "usage",
        "GET",
        f"{_TENANT}/usage",
        "Sums of its ledger in Redis, in all and by what is asked for",
        "`groups`, `total`, `is_whole`",
        query=Period,
    ),
    Endpoint("list_keys", "GET", f"{_TENANT}/keys", "The keys of a tenant, by name", "`keys`"),
    Endpoint(
        "create_key",
        "POST",
        f"{_TENANT}/keys",
        f"Make a key; fields {_FIELDS}, `id` and `expires`",
        "the key, and once its text as `key`",
        NewKey,
    ),
    Endpoint("get_key", "GET", _KEY, "One key", "the key"),
    Endpoint("patch_key", "PATCH", _KEY, "Change some fields", "the key", is_patch=True),
    Endpoint(
        "rotate_key", "POST", f"{_KEY}/rotate", "A new text for a key; the old one ends at once", "as for a new key"
    ),
    Endpoint("revoke_key", "DELETE", _KEY, "Revoke a key at once and for good", "the key"),
    Endpoint("list_blocks", "GET", "/blocks", "Who and what is blocked", "`blocks`"),
    Endpoint(
        "block_tenant", "PUT", "/blocks/tenants/{tenant}", "Refuse a tenant's requests at once", "the block", NewBlock
    ),
    Endpoint(
        "block_key", "PUT", "/blocks/keys/{tenant}/{key...}", "Refuse a key's requests at once", "the block", NewBlock
    ),
    Endpoint(
        "block_model", "PUT", "/blocks/models/{model...}", "Refuse requests for a model at once", "the block", NewBlock
    ),
    Endpoint("unblock_tenant", "DELETE", "/blocks/tenants/{tenant}", "Take the block away", "the block"),
    Endpoint("unblock_key", "DELETE", "/blocks/keys/{tenant}/{key...}", "Take the block away", "the block"),
    Endpoint("unblock_model", "DELETE", "/blocks/models/{model...}", "Take the block away", "the block"),
    Endpoint(
        "list_requests",
        "GET",
        "/requests",
        "What is being answered, on all gateways, the oldest first",
        "`requests`, `gateways`, `silent`, `left_out`",
        query=Which,
    ),
    Endpoint(
        "kill_request",
        "DELETE",
        "/requests/{request_id}",
        "End the requests with this `X-Request-Id`, wherever they are answered",
        "`killed`, `gateways`, `silent`",
    ),
    Endpoint(
        "kill_requests",
        "DELETE",
        "/requests",
        "End all requests of a tenant, of a key of it, or for a model",
        "`killed`, `gateways`, `silent`",
        query=Which,
    ),
    Endpoint(
        "audit", "GET", "/audit", "Every change that was made here, the newest first", "`changes`", query=AuditPage
    ),
)


class Match(NamedTuple):
    endpoint: Endpoint
    # What stands in the place of the names in braces.
    places: Mapping[str, str]


class NoMatch(NamedTuple):
    # Methods that the path takes; none: there is no such path.
    allowed: tuple[str, ...] = ()


def match(method: str, path: str) -> Match | NoMatch:
    """`path` without its percent-encoding."""
    allowed = []
    for endpoint in ENDPOINTS:
        places = _places(endpoint.path, path.removeprefix(PREFIX)) if path.startswith(PREFIX) else None
        if places is not None:
            if endpoint.method == method:
                return Match(endpoint, places)
            allowed.append(endpoint.method)
    return NoMatch(tuple(sorted(set(allowed))))


def _places(pattern: str, path: str) -> dict[str, str] | None:
    wanted, given = pattern.split("/"), path.split("/")
    if wanted[-1].endswith("...}"):
        cut = len(wanted) - 1
        given = [*given[:cut], "/".join(given[cut:])]
    if len(wanted) != len(given):
        return None
    places = {}
    for name, text in zip(wanted, given, strict=True):
        if name.startswith("{"):
            if not text:
                return None
            places[name.strip("{.}")] = text
        elif name != text:
            return None
    return places
