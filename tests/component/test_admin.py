"""The port for admins and its commands: a real Redis, two gateways, requests that run.

What is said on one gateway holds on the other.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from inferway.cli.local_file import LocalMesh, written
from inferway.cli.main import COMMANDS
from inferway.ledger import LedgerEntry, stream_key
from tests.support.client import Answer, send
from tests.support.command import inferway
from tests.support.processes import Mesh, Process, engine_load
from tests.support.raw_client import EventStream, connection
from tests.support.valkey import Valkey, wait_for_answer
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(120)

ANNA, BOB = "anna-" + "a" * 16, "bob-" + "b" * 16
SCRIPTS: dict[str, list[dict[str, Any]]] = {
    "slow": [{"text": "t ", "repeat": 3000, "gap_ms": 20}, {"finish": "stop"}],
    "silent": [{"sleep_ms": 60_000}, {"text": "x"}, {"finish": "stop"}],
}
HI = [{"role": "user", "content": "hi"}]
FILE_KEY = "k-of-the-file"
TENANTS = f"""
tenants:
  filed:
    quota: {{requests_per_minute: 1000}}
    keys:
      given: {{sha256: {hashlib.sha256(FILE_KEY.encode()).hexdigest()}}}
"""
MODELS = "aliases: {nick: m-text}\n"
# The worker's places.
PLACES = 6


@dataclass
class Admin:
    """One gateway's port for admins."""

    gateway: Process
    token: str = ANNA

    async def __call__(self, http: str, body: Any = None, **query: str) -> Answer:
        method, path = http.split(" ", 1)
        path = f"/admin/v1{path}" + (
            "?" + "&".join(f"{name}={value}" for name, value in query.items()) if query else ""
        )
        headers = {"Authorization": f"Bearer {self.token}"}
        return await send(self.gateway.admin_address, f"{method} {path}", body=body, headers=headers)

    async def good(self, http: str, body: Any = None, **query: str) -> Any:
        answer = await self(http, body, **query)
        assert answer.status in (200, 201), (http, answer.body)
        return answer.json


@dataclass
class Installation:
    mesh: Mesh
    valkey: Valkey

    @property
    def admins(self) -> list[Admin]:
        return [Admin(gateway) for gateway in self.mesh.gateways]

    async def tenant(self, name: str, **fields: Any) -> str:
        """Make one with a key, which is returned."""
        await self.admins[0].good(f"PUT /tenants/{name}", fields)
        created = await self.admins[0].good(f"POST /tenants/{name}/keys", {"id": "k"})
        return str(created["key"])

    async def ask(self, key: str, gateway: int = 0, script: str = "", **fields: Any) -> Answer:
        return await send(
            self.mesh.gateways[gateway].address,
            "POST /v1/chat/completions",
            body={"model": "m-text", "messages": HI, **fields},
            headers={"Authorization": f"Bearer {key}"},
            request_id=script or None,
        )

    async def statuses(self, key: str, **fields: Any) -> list[int]:
        """Of a request on each gateway."""
        return [(await self.ask(key, gateway, **fields)).status for gateway in range(len(self.mesh.gateways))]

    async def until_both(self, key: str, status: int, **fields: Any) -> None:
        async def is_so() -> bool:
            return await self.statuses(key, **fields) == [status, status]

        async with asyncio.timeout(10):
            while not await is_so():
                await asyncio.sleep(0.01)

    async def stream(self, key: str, gateway: int, request_id: str, **fields: Any) -> EventStream:
        """One that has begun."""
        body = {"model": "m-text", "messages": HI, "stream": True, **fields}
        headers = {"Authorization": f"Bearer {key}", "X-Request-Id": request_id}
        stream = await EventStream.open(self.mesh.gateways[gateway].address, body, headers=headers)
        await stream.wait_events(3)
        return stream


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("admin")
    (folder / "scripts.json").write_text(json.dumps(SCRIPTS))
    (folder / "tenants.yaml").write_text(TENANTS)
    (folder / "models.yaml").write_text(MODELS)
    (folder / "tokens").write_text(f"anna {ANNA}\nbob {BOB}\n")
    return folder


@pytest.fixture(scope="module")
def installation(folder: Path) -> Iterator[Installation]:
    scripts = ("--scripts", str(folder / "scripts.json"))
    flags = ["--tenants", str(folder / "tenants.yaml"), "--models", str(folder / "models.yaml")]
    flags += ["--admin-listen", "127.0.0.1:0", "--admin-token-file", str(folder / "tokens")]
    # Whatever waits in these tests waits for a kill, however busy the machine is.
    flags += ["--queue-timeout-s", "60", "--heartbeat-s", "60", "--stall-s", "60"]
    worker = ["--engine", "scripted", *scripts, "--max-running", str(PLACES), "--max-waiting", "0"]
    with (
        Valkey() as valkey,
        Mesh(workers=[worker], num_gateways=2, gateway_args=[*flags, "--redis", valkey.url]) as mesh,
    ):
        yield Installation(mesh, valkey)


def killed(stream: EventStream) -> bool:
    return [chunk["error"]["code"] for chunk in stream.chunks() if "error" in chunk] == ["request_killed"]


async def test_nobody_without_a_credential(installation: Installation) -> None:
    """401 for what is no admin token, a caller's key and a path that is not there included."""
    key = await installation.tenant("outside")
    for token in ("", "wrong" * 4, key, FILE_KEY):
        for http in ("GET /tenants", "PUT /tenants/mine", "GET /nowhere"):
            answer = await Admin(installation.mesh.gateway, token)(http, {} if "PUT" in http else None)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
    no_header = await send(installation.mesh.gateway.admin_address, "GET /admin/v1/tenants")
    assert (no_header.status, no_header.headers["WWW-Authenticate"]) == (401, "Bearer")


async def test_the_ports_are_apart(installation: Installation) -> None:
    """Nothing for admins on the port for clients, and nothing for clients on the port for admins."""
    gateway = installation.mesh.gateway
    headers = {"Authorization": f"Bearer {ANNA}"}
    for path in ("/admin/v1/tenants", "/admin", "/admin/v1/requests"):
        assert (await send(gateway.address, f"GET {path}", headers=headers)).status == 404
    for http in ("GET /health", "GET /metrics", "POST /v1/chat/completions", "GET /v1/models"):
        assert (await send(gateway.admin_address, http, headers=headers)).status == 404


async def test_tenants_are_made_changed_and_taken_away(installation: Installation) -> None:
    """With the fields of the file; a patch changes what it names."""
    one, other = installation.admins
    made = await one("PUT /tenants/made", {"weight": 2, "quota": {"tokens_per_day": 5}, "models": ["m-*"]})
    assert made.status == 201
    assert made.json == {
        "id": "made",
        "source": "redis",
        "weight": 2,
        "quota": {"tokens_per_day": 5},
        "models": ["m-*"],
    }
    assert await other.good("GET /tenants/made") == made.json
    patched = await other.good("PATCH /tenants/made", {"quota": {"requests_per_minute": 3}, "models": None})
    quota = {"requests_per_minute": 3, "tokens_per_day": 5}
    assert patched == {"id": "made", "source": "redis", "weight": 2, "quota": quota}
    assert await one.good("GET /tenants/made") == patched
    replaced = await one("PUT /tenants/made", {})
    assert (replaced.status, replaced.json) == (200, {"id": "made", "source": "redis"})
    assert (await one("DELETE /tenants/made")).status == 200
    for admin in (one, other):
        assert (await admin("GET /tenants/made")).status == 404
        assert (await admin("DELETE /tenants/made")).status == 404
        assert (await admin("PATCH /tenants/made", {})).status == 404


@pytest.mark.parametrize(
    ("http", "body", "param"),
    [
        ("PUT /tenants/t", {"weight": "two"}, "weight"),
        ("PUT /tenants/t", {"model_quotas": {"m": {"tokens_per_day": 0}}}, "model_quotas.m.tokens_per_day"),
        ("PUT /tenants/t", {"keys": {}}, None),
        ("PUT /tenants/a%20b", {}, "tenant"),
        ("PATCH /tenants/outside", {"priority": {"default": 9, "highest": 1}}, "priority"),
        ("POST /tenants/outside/keys", {}, None),
        ("POST /tenants/outside/keys", {"id": "x", "expires": "soon"}, "expires"),
        ("POST /tenants/outside/keys", {"id": "x", "expires": "9999-12-31T23:59:59-23:59"}, "expires"),
        ("POST /tenants/outside/keys", {"id": "x", "expires": "0001-01-01T00:00:00+14:00"}, "expires"),
        ("POST /tenants/outside/keys", {"id": "x/y"}, "id"),
        ("POST /tenants/outside/keys", {"id": "x\n"}, "id"),
        ("PUT /tenants/t%0A", {}, "tenant"),
        ("PUT /tenants/t", {"model_quotas": {"m" * 257: {}}}, "model_quotas"),
        ("PUT /tenants/t", {"model_quotas": {str(number): {} for number in range(101)}}, "model_quotas"),
        ("GET /audit?before=1%0A", None, "before"),
        ("GET /audit?before=99999999999999999999", None, "before"),
        ("PUT /blocks/tenants/t", {"kil": True}, None),
        ("PUT /tenants/t", [], None),
        ("GET /tenants?limit=0", None, "limit"),
        ("GET /tenants?whose=mine", None, "whose"),
        ("GET /requests?key=k", None, "key"),
        ("DELETE /requests", None, None),
    ],
)
async def test_mistakes_are_named(installation: Installation, http: str, body: Any, param: str | None) -> None:
    await installation.tenant("outside")
    answer = await installation.admins[0](http, body)
    assert (answer.status, answer.error["param"]) == (400, param), answer.body


@pytest.fixture(autouse=True)
async def _tidy(installation: Installation) -> AsyncIterator[None]:
    """Tenants and blocks of one test are not there in the next."""
    yield
    admin = installation.admins[0]
    await until(lambda: engine_load(installation.mesh.workers[0]) == 0)
    for one in (await admin.good("GET /tenants"))["tenants"]:
        if one["source"] == "redis":
            await admin.good(f"DELETE /tenants/{one['id']}")
    for block in (await admin.good("GET /blocks"))["blocks"]:
        await admin.good(f"DELETE /blocks/{block['kind']}s/{block['name']}")


async def test_a_key_works_everywhere_at_once_and_ends_everywhere(installation: Installation) -> None:
    """Made on one gateway it is served by the other; it is shown once; a new text ends the old one."""
    one, other = installation.admins
    await one.good("PUT /tenants/keyed", {})
    created = await one("POST /tenants/keyed/keys", {"id": "web", "project": "site", "expires": "2099-01-01"})
    assert (created.status, created.headers["Cache-Control"]) == (201, "no-store")
    text = created.json["key"]
    assert text.startswith("sk-")
    assert len(text) >= 46
    assert await installation.statuses(text) == [200, 200]
    again = await other("POST /tenants/keyed/keys", {"id": "web"})
    assert (again.status, again.error["code"]) == (409, "conflict")
    shown = await other.good("GET /tenants/keyed/keys")
    assert [(key["id"], key["project"], key["expires"]) for key in shown["keys"]] == [
        ("web", "site", "2099-01-01T00:00:00Z")
    ]
    patched = await other.good("PATCH /tenants/keyed/keys/web", {"models": ["m-hermes"], "project": None})
    assert patched == await one.good("GET /tenants/keyed/keys/web")
    assert (patched["models"], patched["expires"], "project" in patched) == (
        ["m-hermes"],
        "2099-01-01T00:00:00Z",
        False,
    )
    await installation.until_both(text, 403)
    rotated = (await other.good("POST /tenants/keyed/keys/web/rotate"))["key"]
    await installation.until_both(text, 401)
    assert await installation.statuses(rotated, model="m-hermes") == [200, 200]
    await one.good("DELETE /tenants/keyed/keys/web")
    await installation.until_both(rotated, 401)
    assert (await one("DELETE /tenants/keyed/keys/web")).status == 404
    for process in installation.mesh.processes():
        assert text not in process.log_text()
        assert rotated not in process.log_text()


async def test_what_stands_in_the_file_is_only_read(installation: Installation) -> None:
    """Shown beside the rest, and a sentence that says where it is set; a tenant of the file may have further keys."""
    one, other = installation.admins
    shown = {"id": "filed", "source": "file", "quota": {"requests_per_minute": 1000}}
    assert await one.good("GET /tenants/filed") == shown
    assert shown in (await one.good("GET /tenants"))["tenants"]
    for http, body in (
        ("PUT /tenants/filed", {}),
        ("PATCH /tenants/filed", {}),
        ("DELETE /tenants/filed", None),
        ("PATCH /tenants/filed/keys/given", {}),
        ("POST /tenants/filed/keys/given/rotate", None),
        ("DELETE /tenants/filed/keys/given", None),
    ):
        answer = await one(http, body)
        assert (answer.status, answer.error["code"]) == (409, "read_only"), http
        assert "--tenants" in answer.error["message"]
    assert (await one("POST /tenants/filed/keys", {"id": "given"})).status == 409
    text = (await other.good("POST /tenants/filed/keys", {"id": "further"}))["key"]
    assert await installation.statuses(text) == [200, 200]
    keys = (await one.good("GET /tenants/filed/keys"))["keys"]
    assert [(key["id"], key["source"]) for key in keys] == [("given", "file"), ("further", "redis")]
    await one.good("DELETE /tenants/filed/keys/further")


@pytest.mark.parametrize(
    ("path", "status"),
    [("tenants/victim", 403), ("keys/victim/k", 401), ("models/m-text", 403), ("models/nick", 200)],
)
async def test_blocks_hold_at_once_and_for_nobody_else(installation: Installation, path: str, status: int) -> None:
    """On both gateways; an alias can be blocked alone, and what runs is ended only where that is asked for."""
    one, other = installation.admins
    key, bystander = await installation.tenant("victim"), await installation.tenant("bystander")
    running = await installation.stream(key, 1, "slow.1")
    await one.good(f"PUT /blocks/{path}", {"reason": "a test"})
    await installation.until_both(key, status)
    if path == "models/nick":
        await installation.until_both(key, 403, model="nick")
    if "model" in path:
        assert await installation.statuses(key, model="m-hermes") == [200, 200]
    else:
        assert await installation.statuses(bystander) == [200, 200]
    (block,) = (await other.good("GET /blocks"))["blocks"]
    assert (block["kind"], block["reason"]) == (path.split("s/")[0], "a test")
    assert not running.done.done()
    answer = await other.good(f"PUT /blocks/{path}", {"kill": True})
    # It was asked for by its own name: an alias that is blocked is not what it uses.
    is_meant = path != "models/nick"
    assert (answer["killed"], answer["gateways"], answer["silent"]) == (int(is_meant), 2, 0)
    if is_meant:
        await until(lambda: running.done.done() and killed(running))
    running.close()
    await other.good(f"DELETE /blocks/{path}")
    await installation.until_both(key, 200)
    assert (await one(f"DELETE /blocks/{path}")).status == 404


async def test_the_file_and_its_keys_can_be_blocked(installation: Installation) -> None:
    """In an emergency it does not matter where somebody is written down."""
    admin = installation.admins[0]
    for path, status in (("tenants/filed", 403), ("keys/filed/given", 401)):
        await admin.good(f"PUT /blocks/{path}")
        await installation.until_both(FILE_KEY, status)
        await admin.good(f"DELETE /blocks/{path}")
    await installation.until_both(FILE_KEY, 200)


async def test_the_bearer_of_tokens_can_be_blocked(installation: Installation) -> None:
    """By the issuer's name and the subject, as the ledger and the log call it."""
    admin = installation.admins[0]
    block = await admin.good("PUT /blocks/keys/filed/corp:dept/anna")
    assert (block["kind"], block["name"]) == ("key", "filed/corp:dept/anna")
    await admin.good("DELETE /blocks/keys/filed/corp:dept/anna")
    assert (await admin.good("GET /blocks"))["blocks"] == []


async def test_requests_are_listed_and_killed_by_id_wherever_they_are(installation: Installation) -> None:
    """Two on two gateways with one id, of which both end; a third goes on."""
    one, other = installation.admins
    key = await installation.tenant("runner")
    streams = [await installation.stream(key, gateway, "slow.twin") for gateway in (0, 1)]
    third = await installation.stream(key, 0, "slow.third")
    listed = await other.good("GET /requests", tenant="runner")
    assert (listed["gateways"], listed["silent"], listed["left_out"]) == (2, 0, 0)
    seen = [(one["request_id"], one["key_id"], one["model"], one["stage"]) for one in listed["requests"]]
    twin = ("slow.twin", "k", "m-text", "generating")
    assert seen == [twin, twin, ("slow.third", "k", "m-text", "generating")]
    assert len({one["gateway_id"] for one in listed["requests"]}) == 2
    assert all(one["completion_tokens"] > 0 and one["age_ms"] > 0 and one["worker_id"] for one in listed["requests"])
    assert (await one.good("GET /requests", tenant="nobody"))["requests"] == []
    assert (await one.good("DELETE /requests/slow.twin"))["killed"] == 2
    await until(lambda: all(stream.done.done() for stream in streams))
    for stream in streams:
        assert killed(stream)
        assert stream.payloads()[-1] == b"[DONE]"
    assert (await one("DELETE /requests/slow.twin")).status == 404
    assert not third.done.done()
    third.close()
    outcomes = [event["outcome"] for gateway in installation.mesh.gateways for event in gateway.events("request")]
    assert outcomes.count("killed") >= 2


async def test_requests_are_killed_at_every_stage(installation: Installation) -> None:
    """While the body comes, in the queue, before the first token, and as a whole answer: 403, and the place is free."""
    admin = installation.admins[0]
    key = await installation.tenant("staged")
    address = installation.mesh.gateway.address
    silent = [asyncio.create_task(installation.ask(key, 0, f"silent.{number}")) for number in range(PLACES)]

    async def listed(stage: str) -> int:
        found = await admin.good("GET /requests", tenant="staged")
        return sum(one["stage"] == stage for one in found["requests"])

    await until_it_is(lambda: listed("prefilling"), PLACES)
    # It may get a place and keep it, where its own gateway hears later than the other.
    queued = asyncio.create_task(installation.ask(key, 1, "silent.queued", stream=True))
    await until_it_is(lambda: listed("waiting"), 1)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n"
    async with connection(address) as (reader, writer):
        writer.write(
            f"{head}X-Request-Id: half\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode()
        )
        await until_it_is(lambda: listed("receiving"), 1)
        assert (await admin.good("DELETE /requests", tenant="staged", key="other"))["killed"] == 0
        ended = 0
        async with asyncio.timeout(20):
            # Once is enough, unless a busy gateway has just lost its subscription for a moment.
            while ended < PLACES + 2:
                ended += (await admin.good("DELETE /requests", tenant="staged", key="k"))["killed"]
        assert ended == PLACES + 2
        for answer in [*await asyncio.gather(*silent), await queued]:
            assert (answer.status, answer.error["code"]) == (403, "request_killed")
        assert b"HTTP/1.1 403" in await reader.readline()
    await until(lambda: engine_load(installation.mesh.workers[0]) == 0)
    assert await installation.statuses(key) == [200, 200]
    # Nothing is left in any table.
    assert await listed("sending") == 0
    assert (await admin.good("GET /requests"))["requests"] == []


async def until_it_is(count: Callable[[], Any], expected: int) -> None:
    async with asyncio.timeout(20):
        while await count() != expected:
            await asyncio.sleep(0.02)


async def test_every_change_is_in_the_audit_log(installation: Installation) -> None:
    """Who, what, and what stood before and after, without keys; questions and refusals are not."""
    anna, bob = Admin(installation.mesh.gateways[0]), Admin(installation.mesh.gateways[1], BOB)
    last = (await anna.good("GET /audit", limit="1"))["changes"]
    await anna.good("PUT /tenants/audited", {"weight": 2})
    text = (await bob.good("POST /tenants/audited/keys", {"id": "k", "project": "p"}))["key"]
    await bob.good("PATCH /tenants/audited", {"weight": 3})
    await anna.good("GET /tenants/audited")
    await anna("PUT /tenants/audited", {"weight": -1})
    await anna.good("POST /tenants/audited/keys/k/rotate")
    await anna.good("PUT /blocks/models/org/model", {"reason": "r"})
    await bob.good("DELETE /tenants/audited/keys/k")
    answer = await bob("GET /audit")
    assert text not in answer.body.decode()
    changes = answer.json["changes"]
    fresh = changes[: [one["id"] for one in changes].index(last[0]["id"])] if last else changes
    assert [(one["by"], one["action"], one["subject"], one["before"], one["after"]) for one in reversed(fresh)] == [
        ("anna", "put", "tenant:audited", None, {"weight": 2}),
        ("bob", "create", "key:audited/k", None, {"project": "p"}),
        ("bob", "put", "tenant:audited", {"weight": 2}, {"weight": 3}),
        ("anna", "rotate", "key:audited/k", None, None),
        ("anna", "block", "model:org/model", None, {"reason": "r", "kill": False}),
        ("bob", "revoke", "key:audited/k", {"project": "p"}, None),
    ]
    older = (await bob.good("GET /audit", limit="2", before=fresh[0]["id"]))["changes"]
    assert older == changes[1:3]


async def test_a_ledger_is_summed(installation: Installation) -> None:
    """In all and by what is asked for, also of a tenant that is gone."""
    admin = installation.admins[0]
    for number, (key, outcome) in enumerate([("a", "ok"), ("a", "killed"), ("b", "ok")]):
        entry = LedgerEntry(
            reservation_id=f"r{number}", tenant="gone", key=key, outcome=outcome, prompt_tokens=10, completion_tokens=3
        )
        record = [*entry.record(), ("finished_ms", str(1_800_000_000_000 + number))]
        words = [word for pair in record for word in pair]
        installation.valkey.call("XADD", stream_key("inferway", "gone"), f"1800000000000-{number + 1}", *words)
    usage = await admin.good("GET /tenants/gone/usage", by="key,outcome")
    assert usage["is_whole"] is True
    total = usage["total"]
    assert (total["requests"], total["prompt_tokens"], total["completion_tokens"]) == (3, 30, 9)
    assert total["outcomes"] == {"killed": 1, "ok": 2}
    groups = [(one["key"], one["outcome"], one["requests"]) for one in usage["groups"]]
    assert groups == [("a", "killed", 1), ("a", "ok", 1), ("b", "ok", 1)]
    assert (await admin.good("GET /tenants/gone/usage", since="2099-01-01"))["total"]["requests"] == 0
    for query in ({"by": "colour"}, {"since": "soon"}, {"until": "10000000000d"}):
        assert (await admin("GET /tenants/gone/usage", **query)).status == 400


async def test_lists_of_tenants_go_on(installation: Installation) -> None:
    admin = installation.admins[0]
    for name in ("p1", "p2", "p3"):
        await admin.good(f"PUT /tenants/{name}", {})
    names: list[str] = []
    after = ""
    while after is not None:
        page = await admin.good("GET /tenants", limit="2", after=after)
        names += [one["id"] for one in page["tenants"]]
        after = page["next"]
    assert names == ["filed", "p1", "p2", "p3"]


async def test_a_tenant_whose_deletion_broke_off(installation: Installation) -> None:
    """It is listed, with what is the matter, and its keys end when it is deleted again."""
    admin, redis = installation.admins[0], installation.valkey
    await installation.tenant("half")
    redis.call("DEL", "inferway:dir:tenant:half")
    (shown,) = [one for one in (await admin.good("GET /tenants"))["tenants"] if one["id"] == "half"]
    assert "delete it again" in shown["unreadable"]
    await admin.good("DELETE /tenants/half")
    assert redis.call("EXISTS", "inferway:dir:keys:half") == b":0\r\n", (
        "no key would come back with a tenant of this name"
    )
    assert (await admin("DELETE /tenants/half")).status == 404


async def test_while_redis_is_away(installation: Installation) -> None:
    """What needs it is a 503 that can be asked again; this process's own requests are still listed and killed."""
    one = installation.admins[0]
    key = await installation.tenant("cut-off")
    stream = await installation.stream(key, 0, "slow.cut-off")
    installation.valkey.pause()
    try:
        listing, put = await asyncio.gather(one("GET /requests"), one("PUT /tenants/new", {}))
        assert (listing.json["silent"], len(listing.json["requests"])) == (None, 1)
        assert (put.status, put.error["code"]) == (503, "auth_unavailable")
        assert "Retry-After" in put.headers
    finally:
        installation.valkey.resume()
        wait_for_answer(installation.valkey)
    await installation.until_both(key, 200)
    assert (await one.good("DELETE /requests/slow.cut-off"))["killed"] == 1
    await until(stream.done.done)
    await one("DELETE /tenants/new")


async def test_processes_share_the_port(folder: Path) -> None:
    """Without Redis each answers for itself: requests can be listed, tenants only read."""
    (folder / "one-token").write_text(f"{ANNA}\n")
    flags = ["--admin-listen", "127.0.0.1:0", "--admin-token-file", str(folder / "one-token"), "--processes", "2"]
    with Process("gateway", "--listen", "127.0.0.1:0", *flags) as gateway:
        admin = Admin(gateway)
        answers = await asyncio.gather(*(admin.good("GET /requests") for _ in range(10)))
        assert answers == [{"requests": [], "left_out": 0, "gateways": 1, "silent": 0}] * 10
        put = await admin("PUT /tenants/new", {})
        assert (put.status, put.error["code"]) == (409, "read_only")
        assert "--redis" in put.error["message"]
        assert (await admin.good("GET /blocks"))["blocks"] == []
        assert (await admin("DELETE /requests/none")).status == 404
        assert len({event["by"] for event in gateway.events("admin_request")}) == 1
        assert ANNA not in gateway.log_text()


# Commands.


@dataclass
class Ran:
    status: int
    out: str
    err: str


@pytest.fixture
def run(installation: Installation, folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """A command against the first gateway, run in this process."""

    async def command(*words: str) -> Ran:
        name, *rest = words
        environ = {
            "INFERWAY_ADMIN": installation.mesh.gateway.admin_address,
            "INFERWAY_ADMIN_TOKEN_FILE": str(folder / "tokens"),
        }
        try:
            status = await asyncio.to_thread(COMMANDS[name].run, environ, rest)
        except SystemExit as stop:
            status = int(stop.code or 0)
        captured = capsys.readouterr()
        return Ran(status, captured.out, captured.err)

    return command


async def test_tenants_and_keys_by_command(installation: Installation, run: Callable[..., Any]) -> None:
    """Made, shown, changed and revoked; a new key is alone on standard output."""
    made = await run("tenants", "create", "shop", "quota.requests_per_minute=60", "models=m-text,m-hermes")
    assert made.status == 0
    assert (await run("tenants", "create", "shop")).status == 1
    assert (await run("tenants", "set", "shop", "weight=2", "models=")).status == 0
    listed = await run("tenants", "list")
    (line,) = [line for line in listed.out.splitlines() if line.startswith("shop")]
    assert line.split() == ["shop", "redis", "weight=2.0", 'quota={"requests_per_minute":60}']
    created = await run("keys", "create", "shop", "till", "project=pos")
    assert created.out.startswith("sk-")
    assert len(created.out.splitlines()) == 1
    assert created.out.strip() not in created.err
    assert await installation.statuses(created.out.strip()) == [200, 200]
    rotated = json.loads((await run("keys", "rotate", "shop", "till", "--json")).out)
    assert rotated["key"] != created.out.strip()
    assert (await run("keys", "set", "shop", "till", "expires=2099-01-01T12:00:00+02:00")).status == 0
    (key,) = json.loads((await run("keys", "list", "shop", "--json")).out)["keys"]
    assert (key["id"], key["project"], key["expires"], "key" in key) == ("till", "pos", "2099-01-01T10:00:00Z", False)
    shown = await run("tenants", "show", "shop")
    assert "till" in shown.out
    assert (await run("keys", "revoke", "shop", "till")).status == 0
    await installation.until_both(rotated["key"], 401)
    assert (await run("keys", "revoke", "shop", "till")).err == "keys: There is no key 'till' of the tenant 'shop'.\n"
    assert (await run("tenants", "delete", "shop")).status == 0
    audit = await run("audit", "--limit", "1")
    assert [word for word in audit.out.splitlines()[1].split() if word in ("anna", "delete", "tenant:shop")] == [
        "anna",
        "delete",
        "tenant:shop",
    ]


async def test_blocks_and_requests_by_command(installation: Installation, run: Callable[..., Any]) -> None:
    key = await installation.tenant("busy")
    streams = [await installation.stream(key, gateway, f"slow.{gateway}") for gateway in (0, 1)]
    listed = await run("requests", "list", "--tenant", "busy")
    assert [line.split()[:5] for line in listed.out.splitlines()[1:]] == [
        [f"slow.{gateway}", "busy", "k", "m-text", "generating"] for gateway in (0, 1)
    ]
    ended = await run("requests", "kill", "slow.0")
    assert (ended.status, ended.out) == (0, "ended 1 request\n")
    blocked = await run("block", "tenant", "busy", "--reason", "a test", "--kill")
    assert (blocked.status, blocked.out) == (0, "tenant busy is blocked; ended 1 request\n")
    await until(lambda: all(stream.done.done() and killed(stream) for stream in streams))
    assert "a test" in (await run("block", "list")).out
    assert (await run("unblock", "tenant", "busy")).status == 0
    assert (await run("unblock", "tenant", "busy")).status == 1
    assert (await run("block", "model", "org/name")).status == 0
    assert (await run("unblock", "model", "org/name")).out == "model org/name is no longer blocked\n"
    assert await installation.statuses(key) == [200, 200]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["keys"], "before all flags"),
        (["keys", "make"], "there is no 'make'"),
        (["keys", "list"], "needs TENANT"),
        (["keys", "create", "a", "b", "project"], "must be FIELD=VALUE"),
        (["tenants", "set", "a"], "FIELD=VALUE"),
        (["requests", "kill"], "needs the id of a request"),
        (["requests", "kill", "x", "--tenant", "y"], "needs the id of a request"),
        (["unblock", "tenant"], "needs TENANT"),
        (["audit", "yesterday"], "needs no words"),
    ],
)
async def test_a_wrong_command_line(run: Callable[..., Any], words: Sequence[str], sentence: str) -> None:
    """Status 2, what is wrong, and how it goes."""
    ran = await run(*words)
    assert ran.status == 2
    assert sentence in ran.err
    assert f"usage: python -m inferway {words[0]}" in ran.err


async def test_commands_find_the_mesh_of_this_machine(
    installation: Installation, run: Callable[..., Any], tmp_path: Path
) -> None:
    """With its token; another port that is no port for admins, and a wrong token, are told in a sentence."""
    gateway = installation.mesh.gateway
    environ = {"XDG_RUNTIME_DIR": str(tmp_path)}
    with written(environ, LocalMesh("127.0.0.1:1", "", gateway.admin_address, BOB)):
        found = await inferway("tenants", "list", "--json", **environ)
    elsewhere = await run("tenants", "list", "--admin", gateway.address)
    wrong = await run("tenants", "list", "--admin-token", "x" * 16)
    nobody = await run("tenants", "list", "--admin", "127.0.0.1:1")
    assert (found.status, [one["id"] for one in found.json["tenants"]]) == (0, ["filed"])
    assert (elsewhere.status, wrong.status, nobody.status) == (1, 1, 1)
    assert "There is nothing at GET /admin/v1/tenants" in elsewhere.err
    assert wrong.err.startswith("tenants: The admin token is missing or not valid.")
    assert nobody.err.startswith("tenants: http://127.0.0.1:1: ")


async def test_tokens_are_rotated(installation: Installation, folder: Path) -> None:
    """Without a restart: the old one ends with the file that does not have it."""
    path, fresh = folder / "tokens", "f" * 20
    before = path.read_text()
    gateway = installation.mesh.gateway
    try:
        path.write_text(f"{before}carol {fresh}\n")
        os.utime(path, (1, 1))
        await Admin(gateway, fresh).good("GET /tenants")
        path.write_text(f"carol {fresh}\n")
        os.utime(path, (2, 2))
        assert (await Admin(gateway, ANNA)("GET /tenants")).status == 401
        await Admin(gateway, fresh).good("GET /tenants")
    finally:
        path.write_text(before)
        os.utime(path, (3, 3))
