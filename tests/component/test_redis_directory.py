"""Keys and tenants of a real Valkey on two real gateways: changes, blocks, floods, and a store that is away."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.core.quota.policy import Quota
from gateway.core.tenants import KeyFields, TenantFields
from gateway.directory.documents import Documents, key_subject, model_subject, tenant_subject
from tests.support.client import Answer, send
from tests.support.processes import Mesh
from tests.support.raw_client import connection
from tests.support.valkey import Valkey
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.timeout(120)

CHAT, MODELS = "POST /v1/chat/completions", "GET /v1/models"
HI = [{"role": "user", "content": "hi"}]
SECRET = "the secret of these tests"


@pytest.fixture(scope="module")
def valkey() -> Iterator[Valkey]:
    with Valkey(is_durable=True) as valkey:
        yield valkey


@pytest.fixture(scope="module")
def mesh(valkey: Valkey, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    file = tmp_path_factory.mktemp("tenants") / "tenants.yaml"
    file.write_text(f"tenants: {{filed: {{keys: {{k: {{sha256: {hashlib.sha256(b'k-filed').hexdigest()}}}}}}}}}")
    flags = ["--redis", valkey.url, "--key-secret", SECRET, "--tenants", str(file)]
    worker = ["--engine", "scripted", "--model-name", "m1,m2"]
    with Mesh(workers=[worker], with_router=False, num_gateways=2, gateway_args=flags) as mesh:
        yield mesh


@pytest.fixture
async def documents(valkey: Valkey) -> AsyncIterator[Documents]:
    """With one tenant, `t`."""
    async with Redis(port=valkey.port) as redis:
        documents = Documents(redis, "inferway", SECRET.encode())
        await documents.put_tenant("t", TenantFields())
        yield documents
        for subject in await documents.blocks():
            await documents.unblock(subject)
        await documents.delete_tenant("t")


async def ask(mesh: Mesh, key: str, gateway: int = 0, http: str = CHAT, **body: Any) -> Answer:
    given = {"model": "m1", "messages": HI, **body} if http == CHAT else None
    return await send(mesh.gateways[gateway].address, http, body=given, headers={"Authorization": f"Bearer {key}"})


async def becomes(mesh: Mesh, key: str, status: int, **body: Any) -> list[Answer]:
    """The answers of all gateways, once they have this status."""
    answers = []
    for gateway in range(len(mesh.gateways)):
        async with asyncio.timeout(PATIENCE_S):
            while (answer := await ask(mesh, key, gateway, **body)).status != status:
                await asyncio.sleep(0.01)
        answers.append(answer)
    return answers


async def test_a_key_serves_at_once_and_until_it_is_revoked(mesh: Mesh, documents: Documents) -> None:
    """On every gateway, also where it was known to be good; a revoked key looks like a wrong one."""
    key = await documents.create_key("t", "k", KeyFields())
    for gateway in (0, 1):
        assert (await ask(mesh, key, gateway)).status == 200
    await documents.revoke_key("t", "k")
    wrong = await ask(mesh, "sk-wrong")
    for answer in await becomes(mesh, key, 401):
        assert answer.json == wrong.json
        assert answer.headers["WWW-Authenticate"] == "Bearer"
    second = await documents.create_key("t", "k", KeyFields())
    assert (await ask(mesh, second, 1)).status == 200
    newer = await documents.rotate_key("t", "k")
    await becomes(mesh, second, 401)
    assert (await ask(mesh, newer)).status == 200
    await documents.change_key("t", "k", KeyFields(), expires_s=1)
    await becomes(mesh, newer, 401)


async def test_changes_of_keys_and_tenants_are_in_force_at_once(mesh: Mesh, documents: Documents) -> None:
    key = await documents.create_key("t", "k", KeyFields())
    await becomes(mesh, key, 200)
    await documents.change_key("t", "k", KeyFields(models=("m2",)), expires_s=None)
    await becomes(mesh, key, 403)
    await documents.change_key("t", "k", KeyFields(), expires_s=None)
    await becomes(mesh, key, 200)
    await documents.put_tenant("t", TenantFields(models=("m2",), quota=Quota(tokens_per_day=10**9)))
    await becomes(mesh, key, 403)
    await documents.delete_tenant("t")
    await becomes(mesh, key, 401)


async def test_a_key_in_redis_may_belong_to_a_tenant_of_the_file(mesh: Mesh, documents: Documents) -> None:
    key = await documents.create_key("filed", "more", KeyFields())
    assert (await ask(mesh, key)).status == 200
    await documents.revoke_key("filed", "more")
    await becomes(mesh, key, 401)
    assert (await ask(mesh, "k-filed")).status == 200


async def test_blocks_are_in_force_at_once(mesh: Mesh, documents: Documents) -> None:
    """For what stands in the file as well. A blocked key looks like a revoked one; the reason is for operators."""
    key = await documents.create_key("t", "k", KeyFields())
    other = await documents.create_key("t", "other", KeyFields())
    for one in (key, other, "k-filed"):
        await becomes(mesh, one, 200)
    wrong = await ask(mesh, "sk-wrong")
    await documents.block(key_subject("t", "k"), "leaked on a forum")
    assert [answer.json for answer in await becomes(mesh, key, 401)] == [wrong.json] * 2
    assert (await ask(mesh, other)).status == 200
    await documents.unblock(key_subject("t", "k"))
    await becomes(mesh, key, 200)
    for tenant_id, one in (("t", other), ("filed", "k-filed")):
        await documents.block(tenant_subject(tenant_id), "unpaid")
        for answer in await becomes(mesh, one, 403):
            assert answer.error["code"] == "tenant_blocked"
            assert b"unpaid" not in answer.body
        await documents.unblock(tenant_subject(tenant_id))
        await becomes(mesh, one, 200)
    await documents.block(model_subject("m1"))
    for answer in await becomes(mesh, key, 403):
        assert (answer.error["code"], answer.error["param"]) == ("model_blocked", "model")
    assert (await ask(mesh, key, model="m2")).status == 200
    assert [entry["id"] for entry in (await ask(mesh, key, http=MODELS)).json["data"]] == ["m2"]
    await documents.unblock(model_subject("m1"))
    await becomes(mesh, key, 200)


def lookups(valkey: Valkey) -> int:
    """GET commands that Valkey has got so far."""
    lines = valkey.call("INFO", "commandstats").decode().splitlines()
    counts = [line.partition("calls=")[2].partition(",")[0] for line in lines if line.startswith("cmdstat_get:")]
    return int(counts[0]) if counts else 0


async def test_wrong_keys_do_not_reach_redis(mesh: Mesh, documents: Documents, valkey: Valkey) -> None:
    """Ones that look right neither; one that was once given out is asked for once in a while, not each time."""
    revoked = await documents.create_key("t", "k", KeyFields())
    await documents.revoke_key("t", "k")
    await asyncio.gather(*(ask(mesh, revoked, http=MODELS) for _ in range(20)))
    before = lookups(valkey)
    wrong = [f"sk-{'x' * number}" for number in range(50)] + [revoked[:-1] + "!", revoked[:5] + "x" + revoked[6:]]
    for key in [*wrong, *[revoked] * 50]:
        assert (await ask(mesh, key, http=MODELS)).status == 401
    # An absent name is believed for some seconds; a slow machine may need more of them than one.
    assert lookups(valkey) - before < 20


@pytest.mark.parametrize(
    ("key", "status"),
    [
        ("", 401),
        ("k y", 401),
        ("kéy-日本", 401),
        ("k\udcff\udcfe", 401),
        ("eyJhbGciOiJub25lIn0.e30.", 401),
        ("x" * 4096, 401),
        ("x" * 4097, 431),
        ("é" * 2049, 431),
        ("x" * 17_000, 431),
    ],
    ids=["none", "blank", "not ASCII", "not text", "a token", "4 KiB", "above", "above in bytes", "above the header"],
)
async def test_malformed_keys(mesh: Mesh, key: str, status: int) -> None:
    """A 401 with the words that every wrong key gets, a 431 above 4 KiB, and never a fault."""
    head = f"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n\r\n"
    async with connection(mesh.gateway.address) as (reader, writer):
        writer.write(head.encode("utf-8", "surrogateescape"))
        answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    # What the parser refuses has no version yet, and is answered as HTTP/1.0.
    assert int(answer.split(maxsplit=2)[1]) == status
    assert (b"invalid_api_key" if status == 401 else b"headers_too_large") in answer


async def test_redis_that_hangs_or_is_gone(mesh: Mesh, documents: Documents, valkey: Valkey) -> None:
    """What is known goes on, what is not known is a 503 that may be repeated, and what changed meanwhile holds."""
    known = await documents.create_key("t", "known", KeyFields())
    unknown = await documents.create_key("t", "unknown", KeyFields())
    await becomes(mesh, known, 200)
    valkey.pause()
    for _ in range(3):
        assert (await ask(mesh, known)).status == 200
        assert (await ask(mesh, "k-filed")).status == 200
        assert (await ask(mesh, "sk-wrong")).status == 401
        answer = await ask(mesh, unknown)
        assert (answer.status, answer.error["code"]) == (503, "auth_unavailable")
        assert int(answer.headers["Retry-After"]) >= 1
    valkey.resume()
    await becomes(mesh, unknown, 200)
    # Revoked by another while the gateways hear nothing: the list and the document are gone when Redis is back.
    valkey.kill()
    assert (await ask(mesh, known)).status == 200
    valkey.start()
    documents_key = f"inferway:dir:key:{documents.digest(known)}"
    assert valkey.call("DEL", documents_key) == b":1\r\n"
    await becomes(mesh, known, 401)
    assert (await ask(mesh, unknown)).status == 200
    for gateway in mesh.gateways:
        assert {event["event"] for event in gateway.events()} >= {"changes_lost", "changes_not_heard", "changes_heard"}
