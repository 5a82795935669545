"""Tenants, keys and blocks as documents in a real Valkey, alone and as a cluster, and a gateway that reads them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode

from gateway.config import Config
from gateway.core.quota.policy import Quota
from gateway.core.tenants import KeyFields, TenantFields, digest_of
from gateway.directory.access import Access
from gateway.directory.documents import (
    Block,
    Change,
    Documents,
    KeyDocument,
    NotFound,
    Taken,
    Unreadable,
    key_subject,
    tenant_subject,
)
from inferway.config import Secret
from inferway.errors import ApiError, Reason
from inferway.service import CannotStart
from tests.support.valkey import Cluster, Valkey, free_port
from tests.support.waiting import PATIENCE_S, until

KEY_FIELDS = KeyFields(project="apollo", models=("chat",), quota=Quota(parallel_requests=2))


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as server:
        yield server


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(params=["alone", "cluster"])
async def documents(request: pytest.FixtureRequest) -> AsyncIterator[Documents]:
    """Of a prefix that this test has for itself."""
    prefix = request.node.name
    if request.param == "alone":
        async with Redis(port=request.getfixturevalue("server").port) as redis:
            yield Documents(redis, prefix, b"secret")
        return
    nodes = [ClusterNode("127.0.0.1", node.port) for node in request.getfixturevalue("cluster").nodes]
    async with RedisCluster(startup_nodes=nodes) as redis_cluster:
        yield Documents(redis_cluster, prefix, b"secret")


async def test_tenants(documents: Documents) -> None:
    """What is put is read, whole; what is deleted is gone with its keys."""
    assert await documents.tenant("a") is None
    fields = TenantFields(models=("chat",), quota=Quota(tokens_per_day=5), model_quotas={"x*": Quota()}, weight=2)
    await documents.put_tenant("a", fields)
    await documents.put_tenant("b", TenantFields())
    assert await documents.tenant("a") == fields
    assert await documents.tenant_ids() == ["a", "b"]
    text = await documents.create_key("a", "k", KEY_FIELDS)
    assert await documents.delete_tenant("a")
    assert not await documents.delete_tenant("a")
    assert await documents.tenant_ids() == ["b"]
    assert await documents.find_key(text) is None
    assert await documents.keys("a") == []


async def test_a_tenant_of_many_keys(documents: Documents) -> None:
    """All are read, by name, and none is left when the tenant is taken away."""
    await documents.put_tenant("many", TenantFields())
    ids = [f"k{number:03}" for number in range(450)]
    texts = await asyncio.gather(*(documents.create_key("many", one, KEY_FIELDS) for one in ids[:16]))
    for one in ids[16:]:
        await documents.create_key("many", one, KEY_FIELDS)
    assert [document.key_id for document in await documents.keys("many")] == ids
    await documents.delete_tenant("many")
    assert await documents.keys("many") == []
    assert [await documents.find_key(text) for text in texts] == [None] * 16


async def test_keys(documents: Documents) -> None:
    """From the making of one to its end: its text finds it, an old one no longer, and its fields change in between."""
    text = await documents.create_key("t", "k", KEY_FIELDS, expires_s=4_000_000_000)
    found = await documents.find_key(text)
    assert found is not None
    assert (found.tenant, found.key_id, found.project, found.models) == ("t", "k", "apollo", ("chat",))
    assert found.is_valid(3_999_999_999)
    assert not found.is_valid(4_000_000_000)
    assert await documents.keys("t") == [found]
    assert await documents.find_key(text + "x") is None
    with pytest.raises(Taken):
        await documents.create_key("t", "k", KEY_FIELDS)
    await documents.change_key("t", "k", KeyFields(), expires_s=None)
    changed = await documents.key("t", "k")
    assert changed == KeyDocument(tenant="t", key_id="k", created_s=found.created_s)
    newer = await documents.rotate_key("t", "k")
    assert await documents.find_key(text) is None
    assert await documents.find_key(newer) == changed
    assert await documents.revoke_key("t", "k")
    assert not await documents.revoke_key("t", "k")
    assert await documents.find_key(newer) is None
    for change in (documents.change_key("t", "k", KeyFields(), expires_s=None), documents.rotate_key("t", "k")):
        with pytest.raises(NotFound):
            await change
    # The name is free again.
    assert await documents.create_key("t", "k", KEY_FIELDS) != newer


async def test_keys_are_long_random_and_found_under_a_secret(documents: Documents) -> None:
    texts = [await documents.create_key("r", f"k{number}", KeyFields()) for number in range(3)]
    assert len(set(texts)) == 3
    assert all(text.startswith("sk-") and len(text) >= 46 for text in texts)
    other = Documents(documents._redis, documents.channel.removesuffix(":dir:changed"), b"another")
    assert await other.find_key(texts[0]) is None


async def test_whatever_is_valid_is_listed(documents: Documents) -> None:
    """Keys are made, rotated and revoked at once, many times: none that works has lost its place in the list."""

    async def make() -> str | None:
        try:
            return await documents.create_key("race", "k", KEY_FIELDS)
        except (Taken, NotFound):
            return None

    async def rotate() -> str | None:
        try:
            return await documents.rotate_key("race", "k")
        except NotFound:
            return None

    async def revoke() -> None:
        await documents.revoke_key("race", "k")

    for _ in range(60):
        made = [text for text in await asyncio.gather(make(), revoke(), rotate(), make(), revoke()) if text]
        valid = [text for text in made if await documents.find_key(text) is not None]
        listed = await documents.key("race", "k")
        assert len(valid) == (listed is not None)
        await revoke()
        assert not any([await documents.find_key(text) for text in made])


async def test_blocks(documents: Documents) -> None:
    assert await documents.blocks() == {}
    first = await documents.block(tenant_subject("t"), "unpaid")
    assert first.reason == "unpaid"
    assert await documents.block(tenant_subject("t"), "again") == first
    await documents.block(key_subject("t", "k"))
    assert set(await documents.blocks()) == {"tenant:t", "key:t/k"}
    assert await documents.unblock(tenant_subject("t"))
    assert not await documents.unblock(tenant_subject("t"))
    assert set(await documents.blocks()) == {"key:t/k"}


async def test_documents_of_another_version(documents: Documents) -> None:
    """What is not understood may be a restriction: it is never read as if it were not there."""
    redis, prefix = documents._redis, documents.channel.removesuffix("changed")
    await redis.set(prefix + "tenant:t", '{"weight": 2, "only_on_sundays": true}')
    with pytest.raises(Unreadable):
        await documents.tenant("t")
    for text in ('{"tenant": "t", "key_id": "k", "created_s": 1, "only_on_sundays": true}', "{", "[]"):
        await redis.set(prefix + "key:" + documents.digest("x"), text)
        with pytest.raises(Unreadable):
            await documents.find_key("x")
    await redis.hset(prefix + "blocks", "tenant:t", "what")
    assert await documents.blocks() == {"tenant:t": Block(since_s=0)}


async def test_the_audit_log(documents: Documents) -> None:
    """Newest first, page by page."""
    changes = [Change("anna", "put", f"tenant:{name}", None, {"weight": 2}) for name in "abc"]
    for change in changes:
        await documents.record(change)
    newest, second = await documents.changes(count=2)
    assert (newest.subject, second.subject) == ("tenant:c", "tenant:b")
    assert (newest.by, newest.action, newest.before, newest.after) == ("anna", "put", None, {"weight": 2})
    assert newest.at_ms > 0
    (last,) = await documents.changes(before=second.id)
    assert last.subject == "tenant:a"


async def test_every_change_is_announced(documents: Documents) -> None:
    """And no message has a key in it."""
    redis = documents._redis
    pubsub = redis.pubsub()
    await pubsub.subscribe(documents.channel)
    await documents.put_tenant("t", TenantFields())
    text = await documents.create_key("t", "k", KEY_FIELDS)
    digest = documents.digest(text)
    await documents.block("model:m")
    await documents.revoke_key("t", "k")
    heard: list[str] = []
    async with asyncio.timeout(10):
        while len(heard) < 4:
            message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=1.0)
            if message is not None:
                heard.append(message["data"].decode())
    await pubsub.aclose()
    assert heard == ["tenant t", f"key {digest}", "blocks", f"key {digest}"]
    assert not any(text in message for message in heard)


@contextlib.asynccontextmanager
async def access(folder: Path, url: str, prefix: str) -> AsyncIterator[Access]:
    """What a gateway knows of who may call, with one key in a file beside Redis."""
    file = folder / "tenants.yaml"
    file.write_text(f"tenants: {{filed: {{keys: {{k: {{sha256: {digest_of('k-filed')}}}}}}}}}")
    config = Config(tenants=str(file), redis=Secret(url), redis_prefix=prefix, redis_timeout_ms=1000)
    access = Access(config, b"secret")
    running = asyncio.create_task(access.run(lambda _: lambda _: None))
    try:
        yield access
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await access.close()


async def test_a_gateway_that_has_never_met_redis(tmp_path: Path) -> None:
    """The file serves; a key that may be one of Redis's is neither let in nor called wrong; others are wrong."""
    async with access(tmp_path, f"redis://127.0.0.1:{free_port()}", "inferway") as gateway:
        assert gateway.directory is not None
        assert gateway.documents is not None
        filed = await gateway.directory.find("k-filed")
        assert filed is not None
        assert filed.tenant_id == "filed"
        assert await gateway.directory.find("sk-wrong") is None
        with pytest.raises(ApiError) as caught:
            await gateway.directory.find(gateway.documents._new_key())
        assert caught.value.reason is Reason.AUTH_UNAVAILABLE


@pytest.mark.parametrize(("flag", "field"), [("--tenants", "tenants"), ("--jwt", "jwt")])
def test_a_bad_file_is_told_with_its_flag(tmp_path: Path, flag: str, field: str) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text("surprise: {}")
    with pytest.raises(CannotStart, match=f"^{flag}: .*bad.yaml: .*surprise"):
        Access(Config(**{field: str(file)}), b"secret")  # type: ignore[arg-type]


async def test_changes_reach_a_gateway_through_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    """Documents lie on several nodes and word of them comes from one; at the end all of them are lost."""
    async with access(tmp_path, cluster.url, "reach") as gateway:
        assert gateway.directory is not None
        assert gateway.documents is not None
        assert gateway.changes is not None
        changes = gateway.changes
        await until(lambda: changes.is_listening)
        await gateway.documents.put_tenant("t", TenantFields())
        texts = [await gateway.documents.create_key("t", f"k{number}", KeyFields()) for number in range(10)]
        callers = [await gateway.directory.find(text) for text in texts]
        assert [caller and caller.key_id for caller in callers] == [f"k{number}" for number in range(10)]
        for number, text in enumerate(texts):
            await gateway.documents.revoke_key("t", f"k{number}")
            async with asyncio.timeout(PATIENCE_S):
                while await gateway.directory.find(text) is not None:
                    await asyncio.sleep(0.01)
        kept = await gateway.documents.create_key("t", "kept", KeyFields())
        lost = await gateway.documents.create_key("t", "lost", KeyFields())
        # Word of their making may come after they are known, and makes them be looked up once more.
        await asyncio.sleep(0.5)
        found = await gateway.directory.find(kept)
        assert found is not None
        for node in cluster.nodes:
            node.kill()
        await until(lambda: not changes.is_listening)
        assert await gateway.directory.find(kept) == found
        with pytest.raises(ApiError):
            await gateway.directory.find(lost)
