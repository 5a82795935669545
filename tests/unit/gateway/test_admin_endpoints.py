"""The table of the port for admins, and the pure parts of its endpoints."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.admin.app import admin_front
from gateway.admin.calls import Call, fields_of, in_shape, merged, read_time, shown_time
from gateway.admin.credentials import AdminCredentials
from gateway.admin.endpoints import ENDPOINTS, KeySettings, Match, NewKey, NoMatch, match
from gateway.admin.running import Running
from gateway.admin.sources import Sources
from gateway.admin.standings import StandingEndpoints, all_bounds
from gateway.core.directory import FileDirectory, parse_tenants
from gateway.core.quota.calls import Reserve
from gateway.core.quota.policy import Quota
from gateway.core.tenants import KeyFields, TenantFields, digest_of, shaped_tenant
from gateway.in_flight import InFlight
from gateway.quota.memory_books import MemoryBooks
from inferway.config import Secret
from inferway.errors import ApiError


def test_every_endpoint_has_a_handler() -> None:
    """And none is there twice, by name or by what it is asked by."""
    running = Running("g", InFlight(), None, "", "")
    admin_front(AdminCredentials(Secret("t" * 16), ""), file=FileDirectory, documents=None, running=running)
    assert len({endpoint.id for endpoint in ENDPOINTS}) == len(ENDPOINTS)
    assert len({(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}) == len(ENDPOINTS)


@pytest.mark.parametrize(
    ("method", "path", "endpoint", "places"),
    [
        ("GET", "/tenants", "list_tenants", {}),
        ("PATCH", "/tenants/a", "patch_tenant", {"tenant": "a"}),
        ("GET", "/tenants/a/keys", "list_keys", {"tenant": "a"}),
        ("GET", "/tenants/a/keys/k", "get_key", {"tenant": "a", "key": "k"}),
        ("POST", "/tenants/a/keys/k/rotate", "rotate_key", {"tenant": "a", "key": "k"}),
        ("PUT", "/blocks/models/org/model", "block_model", {"model": "org/model"}),
        ("DELETE", "/blocks/keys/a/k", "unblock_key", {"tenant": "a", "key": "k"}),
        ("PUT", "/blocks/keys/a/corp:x/y", "block_key", {"tenant": "a", "key": "corp:x/y"}),
        ("DELETE", "/requests", "kill_requests", {}),
        ("DELETE", "/requests/r-1", "kill_request", {"request_id": "r-1"}),
    ],
)
def test_paths(method: str, path: str, endpoint: str, places: dict[str, str]) -> None:
    found = match(method, f"/admin/v1{path}")
    assert isinstance(found, Match)
    assert (found.endpoint.id, found.places) == (endpoint, places)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("POST", "/admin/v1/tenants/a", ("DELETE", "GET", "PATCH", "PUT")),
        ("GET", "/admin/v1/tenants/a/keys/k/rotate", ("POST",)),
        ("GET", "/admin/v1/tenants/", ()),
        ("GET", "/admin/v1/tenants/a/keys/k/x", ()),
        ("GET", "/admin/v1", ()),
        ("GET", "/tenants", ()),
        ("PUT", "/admin/v1/blocks/models/", ()),
    ],
)
def test_what_is_not_there(method: str, path: str, allowed: tuple[str, ...]) -> None:
    assert match(method, path) == NoMatch(allowed)


@pytest.mark.parametrize(
    ("document", "patch", "expected"),
    [
        ({"a": 1, "b": {"c": 1, "d": 2}}, {"b": {"c": None}}, {"a": 1, "b": {"d": 2}}),
        ({"a": 1}, {"a": None, "b": None}, {}),
        ({"a": 1}, {"a": {"b": 1, "c": None}}, {"a": {"b": 1}}),
        ({"a": [1, 2]}, {"a": [3]}, {"a": [3]}),
        ({}, {}, {}),
    ],
)
def test_patches_are_merged(document: Any, patch: Any, expected: Any) -> None:
    """As RFC 7396 says, and neither is changed."""
    assert merged(document, patch) == expected


@pytest.mark.parametrize(
    ("text", "unix"),
    [
        (None, None),
        ("1970-01-02", 86400),
        ("1970-01-01T00:01:00Z", 60),
        ("1970-01-01T00:01:00", 60),
        ("1970-01-01T01:01:00+01:00", 60),
    ],
)
def test_times(text: str | None, unix: int | None) -> None:
    assert read_time(text, "expires") == unix
    assert read_time(shown_time(unix), "expires") == unix


@pytest.mark.parametrize("text", ["", "tomorrow", "2027-13-01", "2027-06-30 noon"])
def test_no_times(text: str) -> None:
    with pytest.raises(ApiError) as raised:
        read_time(text, "expires")
    assert raised.value.param == "expires"


@pytest.mark.parametrize(
    ("raw", "shape", "param"),
    [
        ({"id": "a b"}, NewKey, "id"),
        ({}, NewKey, None),
        ({"id": "a", "sha256": "0"}, NewKey, None),
        ({"id": "a"}, KeySettings, None),
        ({"quota": {"requests_per_minute": 0}}, KeySettings, "quota.requests_per_minute"),
    ],
)
def test_bodies_are_refused_by_place(raw: Any, shape: type, param: str | None) -> None:
    """Also what a key is in the file of tenants, its digest: here it is made."""
    with pytest.raises(ApiError) as raised:
        in_shape(raw, shape)
    assert (raised.value.status, raised.value.param) == (400, param)


def test_a_document_survives_its_way_to_the_admin_and_back() -> None:
    raw = {
        "models": ["chat"],
        "priority": {"default": 3, "highest": 9},
        "quota": {"tokens_per_day": 5},
        "model_quotas": {"big*": {"parallel_requests": 1}},
        "cache_domain": "platform",
    }
    fields = shaped_tenant(raw)
    assert fields_of(fields, TenantFields) == raw
    assert fields_of(TenantFields(), TenantFields) == {}
    assert fields_of(NewKey(id="a", project="p"), KeyFields) == {"project": "p"}


def test_all_bounds_of_a_tenant() -> None:
    """Named as requests name them, so that the books know them."""
    one = Quota(requests_per_minute=5, tokens_per_day=7)
    bounds = all_bounds(one, {"big*": Quota(tokens_per_minute=2)}, {"b": Quota(parallel_requests=3), "a": Quota()})
    assert [(bound.name, bound.most) for bound in bounds] == [
        ("t|rpm", 5),
        ("t|tpd", 7000),
        ("k:b|par", 3),
        ("m:big*|tpm", 2000),
    ]


async def test_what_is_used_of_each_bound() -> None:
    """In requests and weighted tokens, of the tenant, its keys and its models; what was reserved counts at once."""
    quota = {"requests_per_minute": 5, "tokens_per_day": 100}
    tenant = {"quota": quota, "keys": {"k": {"sha256": digest_of("key"), "quota": {"parallel_requests": 2}}}}
    directory = parse_tenants({"tenants": {"t": {**tenant, "model_quotas": {"m*": {"tokens_per_minute": 50}}}}})
    caller = directory.find("key", now=0.0)
    assert caller is not None
    books = MemoryBooks(clock=lambda: 1_800_000_000_000)
    bounds = caller.quota.bounds("k", "m1")
    await books.reserve("t", Reserve(reservation_id="r", bounds=bounds, units=12_345, lease_ms=1000))
    handlers = StandingEndpoints(Sources(lambda: directory, None), books.standings).handlers()
    answer = await handlers["standings"](Call("anna", {"tenant": "t"}))
    assert [
        (one["scope"], one["name"], one["limit"], one["used"], one["most"]) for one in answer.body["standings"]
    ] == [
        ("tenant", "", "requests_per_minute", 1, 5),
        ("tenant", "", "tokens_per_day", 12.345, 100),
        ("key", "k", "parallel_requests", 1, 2),
        ("model", "m*", "tokens_per_minute", 12.345, 50),
    ]
    with pytest.raises(ApiError, match="no tenant"):
        await handlers["standings"](Call("anna", {"tenant": "other"}))
