"""Quotas over a real Valkey: what callers see, and what happens as the store goes and comes back."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

from tests.support.client import Answer, send
from tests.support.probes import http_json, metric
from tests.support.processes import ROOT, Mesh
from tests.support.raw_client import EventStream
from tests.support.tenants import Account, bearer, tenants_file
from tests.support.valkey import Valkey
from tests.support.waiting import until

CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
SCRIPTS = {
    "long": [{"text": "t ", "repeat": 400, "gap_ms": 50}, {"finish": "stop"}],
    "ten": [{"text": "t ", "repeat": 10}, {"finish": "stop", "usage": {"prompt": 30, "completion": 10, "cached": 20}}],
}


def worker(folder: Path) -> list[str]:
    scripts = folder / "scripts.json"
    scripts.write_text(json.dumps(SCRIPTS))
    return ["--engine", "scripted", "--scripts", str(scripts)]


async def ask(mesh: Mesh, key: str, script: str = "x", **fields: object) -> Answer:
    headers = bearer(key)
    return await send(mesh.gateway.address, CHAT, body={**ASK, **fields}, request_id=f"{script}.1", headers=headers)


async def test_what_callers_see(tmp_path: Path) -> None:
    """Headers of the tightest limit; budgets that are not to be tried again; shadow mode that refuses nothing."""
    tenants = tenants_file(
        tmp_path,
        both={
            "quota": {"requests_per_minute": 100, "tokens_per_minute": 5000},
            "keys": {"k": {"quota": {"requests_per_minute": 3}}, "other": {}},
        },
        budget={"quota": {"tokens_per_month": 30}, "token_weights": {"input": 0, "cached": 0, "output": 4}},
        shadow={"quota": {"requests_per_minute": 1}, "quota_mode": "shadow"},
        models={"model_quotas": {"m-t*": {"requests_per_minute": 1}}},
        free={},
        base={"model_quotas": {"m-text": {"requests_per_minute": 1}}},
    )
    with Mesh(workers=[worker(tmp_path)], gateway_args=["--tenants", str(tenants)]) as mesh:
        first = await ask(mesh, "both", max_tokens=100)
        assert first.headers["x-ratelimit-limit-requests"] == "3", "the key's is tighter than the tenant's"
        assert first.headers["x-ratelimit-remaining-requests"] == "2"
        assert first.headers["x-ratelimit-limit-tokens"] == "5000"
        assert 4800 < int(first.headers["x-ratelimit-remaining-tokens"]) < 4900, "prompt and max_tokens are held"
        assert first.headers["x-ratelimit-reset-requests"] in ("1m0s", "59.999s")
        for _ in range(2):
            assert (await ask(mesh, "both")).status == 200
        refused = await ask(mesh, "both")
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        assert "both" not in refused.error["message"], "nobody is named"
        assert (await ask(mesh, "both-other")).status == 200, "another key of the tenant has its own"

        assert (await ask(mesh, "budget", "ten")).status == 200
        spent = await ask(mesh, "budget", "ten")
        assert (spent.status, spent.error["type"], spent.error["code"]) == (
            429,
            "insufficient_quota",
            "insufficient_quota",
        )
        assert spent.headers["x-should-retry"] == "false"

        assert [(await ask(mesh, "shadow")).status for _ in range(3)] == [200] * 3
        page = mesh.url("/metrics")
        refusals = 'inferway_gateway_quota_refusals_total{bound="requests_per_minute",mode="shadow"}'
        assert metric(page, refusals) == 2

        assert (await ask(mesh, "models")).status == 200
        assert (await ask(mesh, "models")).status == 429
        assert (await ask(mesh, "models", model="m-hermes")).status == 200, "a model that no pattern matches"

        load = ["--worker", mesh.workers[0].address, "--model", "m-text", "--load", "fr=/adapters/fr"]
        subprocess.run([sys.executable, "-m", "inferway", "adapters", *load], cwd=ROOT, check=True, timeout=60)
        async with asyncio.timeout(10):
            while (await ask(mesh, "base", model="m-text:fr")).status == 404:
                await asyncio.sleep(0.05)
        assert (await ask(mesh, "base", model="m-text:fr")).status == 429, "an adapter is its model's use, too"

        assert "x-ratelimit-limit-requests" not in (await ask(mesh, "free")).headers

        asked = [
            ("free", "alice@example"),
            ("free", "alice@example"),
            ("free", "bob@example"),
            ("shadow", "alice@example"),
        ]
        for number, (tenant, user) in enumerate(asked):
            assert (await ask(mesh, tenant, f"user{number}", user=user)).status == 200
        log = [line for line in mesh.gateway.events("request") if line["request_id"].startswith("user")]
        alice, again, bob, elsewhere = (line["user_hash"] for line in log)
        assert alice == again
        assert len({alice, bob, elsewhere, ""}) == 4, "users are told apart, and are others in another tenant"
        assert "@example" not in mesh.gateway.log_text()
        assert http_json(mesh.url("/health/ready"))[1]["quota_store"] == "memory"


async def test_what_was_granted_without_the_store_is_held_when_it_is_back(tmp_path: Path) -> None:
    """Three streams that began during an outage count when Redis returns, and are given back to it when they end."""
    with Valkey() as valkey:
        flags = ["--tenants", str(tenants_file(tmp_path, t={"quota": {"parallel_requests": 4}})), "--redis", valkey.url]
        with Mesh(workers=[worker(tmp_path)], gateway_args=flags) as mesh:
            account = Account(valkey, "t")
            assert (await ask(mesh, "t")).status == 200
            valkey.stop()
            headers = {**bearer("t"), "X-Request-Id": "long.1"}
            streams = [
                await EventStream.open(mesh.gateway.address, {**ASK, "stream": True}, headers=headers) for _ in "123"
            ]
            for stream in streams:
                await stream.wait_events(2)
            valkey.start()
            await until(lambda: account.leases() == 3, 5, "Redis knows of them")
            at_once = await asyncio.gather(*(ask(mesh, "t", "long", max_tokens=20) for _ in "1234"))
            assert sorted(answer.status for answer in at_once) == [200, 429, 429, 429]
            for stream in streams:
                stream.close()
            await until(lambda: account.leases() == 0, 5, "all is settled")
            # The store forgot what it held before: it keeps nothing in this test.
            await until(lambda: len(account.entries()) == 4, 5, "and booked")


async def test_usage_is_kept_in_files_without_a_store(tmp_path: Path) -> None:
    """Each request that ended is an entry, to the token; embeddings and cached tokens too."""
    flags = [
        "--tenants",
        str(tenants_file(tmp_path, t={"token_weights": {"cached": 0.5}})),
        "--spool-dir",
        str(tmp_path / "spool"),
    ]
    with Mesh(workers=[worker(tmp_path)], gateway_args=flags) as mesh:
        assert (await ask(mesh, "t", "ten", n=2)).status == 200
        assert (await ask(mesh, "t", max_tokens=10**9)).status == 400
        mesh.gateway.stop()
    (path,) = (tmp_path / "spool").glob("*.ledger")
    (line,) = path.read_text().splitlines()
    entry = json.loads(line[line.index("{") :])
    assert (entry["tenant"], entry["key"], entry["model"], entry["outcome"]) == ("t", "k", "m-text", "ok")
    assert (entry["prompt_tokens"], entry["cached_tokens"], entry["completion_tokens"]) == ("30", "20", "20")
    assert entry["units"] == str(1000 * (10 + 10 + 20))


def test_several_processes_do_not_start_with_quotas_of_their_own(tmp_path: Path) -> None:
    tenants = tenants_file(tmp_path, t={"quota": {"requests_per_minute": 5}})
    flags = ["--listen", "127.0.0.1:0", "--processes", "2", "--tenants", str(tenants)]
    done = subprocess.run(
        [sys.executable, "-m", "gateway", *flags], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "tenants.t: has quotas, which several processes can only share with --redis" in done.stderr
