"""What it costs to find out who calls: CPU time of one lookup in the gateway, by where the key stands.

    python -m benchmarks.lookups [--lookups 5000]

A key of the file, one of a real Valkey, a token (ES256), and a wrong key, each known already; and the two that are
asked for or verified for the first time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import write_report
from gateway.config import Config
from gateway.core.tenants import KeyFields, TenantFields, digest_of
from gateway.directory.access import Access
from inferway.config import Secret
from tests.support.issuer import ISSUER, Issuer
from tests.support.valkey import Valkey
from tests.support.waiting import until

_FIRST = 200


async def cost_us(access: Access, keys: Sequence[str]) -> float:
    """Of a lookup, all threads of this process counted."""
    assert access.directory is not None
    before = time.process_time_ns()
    for key in keys:
        await access.directory.find(key)
    return round((time.process_time_ns() - before) / 1000 / len(keys), 1)


async def measure(folder: Path, url: str, lookups: int) -> list[dict[str, object]]:
    issuer = Issuer()
    issuer.add("k")
    (folder / "keys.json").write_bytes(issuer.published)
    entry = {"issuer": ISSUER, "audience": ["inferway"], "jwks_file": str(folder / "keys.json"), "tenant": "t"}
    (folder / "issuers.yaml").write_text(json.dumps({"issuers": {"corp": entry}}))
    tenants = {"t": {"models": ["chat", "llama-*"], "keys": {"k": {"sha256": digest_of("k-filed")}}}}
    (folder / "tenants.yaml").write_text(json.dumps({"tenants": tenants}))
    files = {"tenants": str(folder / "tenants.yaml"), "jwt": str(folder / "issuers.yaml")}
    access = Access(Config(**files, redis=Secret(url)), b"secret")
    running = asyncio.create_task(access.run(lambda _: lambda _: None))
    documents, changes = access.documents, access.changes
    assert documents is not None
    assert changes is not None
    await until(lambda: changes.is_listening)
    await documents.put_tenant("r", TenantFields(models=("chat", "llama-*")))
    stored = [await documents.create_key("r", f"k{number}", KeyFields(models=("chat",))) for number in range(_FIRST)]
    tokens = [issuer.token("k", sub=f"user-{number}") for number in range(_FIRST)]
    rows: list[dict[str, object]] = [
        {"key": "of Redis, for the first time", "cpu us": await cost_us(access, stored)},
        {"key": "a token, for the first time", "cpu us": await cost_us(access, tokens)},
    ]
    known = {"of the file": "k-filed", "of Redis": stored[0], "a token": tokens[0], "wrong": "sk-" + 51 * "x"}
    for name, key in known.items():
        rows.append({"key": name, "cpu us": await cost_us(access, [key] * lookups)})
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await access.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lookups", type=int, default=5000)
    lookups = parser.parse_args().lookups
    with Valkey() as valkey, tempfile.TemporaryDirectory() as folder:
        write_report("lookups", asyncio.run(measure(Path(folder), valkey.url, lookups)))


if __name__ == "__main__":
    main()
