"""Handed case AUT-04: a key appears in nothing that a process writes, answers, counts or stores."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.core.tenants import KeyFields
from gateway.directory.documents import Documents, key_subject
from tests.cases.handed import case
from tests.cases.installation import CASES_FILE, Installation
from tests.cases.support import ASK, CHAT, STREAM
from tests.cases.test_models import KEY, bearer, tenants
from tests.support.client import Answer
from tests.support.issuer import ISSUER, Issuer
from tests.support.probes import http_text
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream
from tests.support.valkey import Valkey
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(180)

SECRET = "CANARY-of-digests"
WRONG = "sk-CANARY-wrong"


class Monitor:
    """Everything that clients send to a Valkey, as it says itself."""

    def __init__(self, valkey: Valkey) -> None:
        self._connection = socket.create_connection(("127.0.0.1", valkey.port))
        self._connection.sendall(b"MONITOR\r\n")
        assert self._connection.recv(5) == b"+OK\r\n"
        self.text = b""
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while data := self._connection.recv(1 << 16):
            self.text += data

    def close(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._connection.close()


def issuers(folder: Path, issuer: Issuer) -> list[str]:
    keys, file = folder / "keys.json", folder / "issuers.yaml"
    keys.write_bytes(issuer.published)
    entry = {"issuer": ISSUER, "audience": ["inferway"], "jwks_file": str(keys), "tenant": "research"}
    file.write_text(json.dumps({"issuers": {"corp": entry}}))
    return ["--jwt", str(file)]


@case("AUT-04")
async def test_a_key_is_nowhere_but_in_its_request(case: Any, tmp_path: Path) -> None:
    """Not of the file, of Redis, or signed; nor one that is wrong, cut off, too long, or met by a fault or by outage.

    What is logged in its place is the key's name. There are no spans yet.
    """
    assert KEY in case["input"]["scenario"]
    issuer = Issuer()
    issuer.add("k")
    token = issuer.token("k", sub="auth0|anna")
    debug = ["--log-level", "debug"]
    worker = ["--engine", "scripted", "--scripts", str(CASES_FILE), *debug]
    with Valkey(is_durable=True) as valkey:
        flags = [*tenants(tmp_path, KEY), *issuers(tmp_path, issuer), "--redis", valkey.url, "--key-secret", SECRET]
        with Mesh(workers=[worker], router_args=debug, gateway_args=[*flags, *debug]) as mesh:
            monitor = Monitor(valkey)
            installation = Installation(mesh)
            async with Redis(port=valkey.port) as redis:
                documents = Documents(redis, "inferway", SECRET.encode())
                stored = await documents.create_key("research", "stored", KeyFields())
                revoked = await documents.create_key("research", "revoked", KeyFields())
                blocked = await documents.create_key("research", "blocked", KeyFields())
                await documents.revoke_key("research", "revoked")
                await documents.block(key_subject("research", "blocked"))
            malformed = [KEY + "\xe9", token[:-5], token + "." + KEY, "CANARY" * 800, "CANARY" * 4000]
            answers: list[Answer] = []
            for key in (KEY, stored, token, WRONG, revoked, blocked, *malformed):
                answers += await every_kind_of_request(installation, bearer(key))
            large = {**ASK, "messages": [{"role": "user", "content": "x" * (17 << 20)}]}
            answers.append(await installation.send(CHAT, body=large, headers=bearer(KEY)))
            statuses = {answer.status for answer in answers}
            assert statuses >= {200, 400, 401, 404, 405, 413, 431, 500}, statuses
            valkey.pause()
            away = await installation.send(CHAT, body=ASK, headers=bearer(blocked))
            assert away.status in (401, 503)
            valkey.resume()
            streams = [await leave(installation, bearer(key)) for key in (KEY, stored, token)]
            pages = [http_text(f"http://{address}/metrics") for address in addresses(mesh)]
            lines = installation.request_lines()
            monitor.close()
            written = {f"log of {process.module}": process.log_text().encode() for process in mesh.processes()}
        written |= {f"Redis: {file}": file.read_bytes() for file in valkey.folder.rglob("*") if file.is_file()}
    written |= {
        "answers": b"".join(answer.body + str(answer.headers).encode() for answer in [*answers, away]),
        "streams": b"".join(streams),
        "metrics": "".join(pages).encode(),
        "commands of Redis": monitor.text,
    }
    assert len(written["commands of Redis"]) > 1000
    for place, text in written.items():
        assert text, place
        for secret in ("CANARY", stored[3:], revoked[3:], blocked[3:], *token.split(".")[1:], token[:40]):
            assert secret.encode() not in text, place
    names = {line["key_id"] for line in lines}
    assert names == {"", "anna", "stored", "corp:auth0|anna"}


def addresses(mesh: Mesh) -> list[str]:
    """Where the processes are asked for metrics."""
    return [process.ops_address for process in (mesh.gateway, *mesh.routers, *mesh.workers)]


async def every_kind_of_request(installation: Installation, headers: dict[str, str]) -> list[Answer]:
    """Good ones on each route, and ones that fail in each way that there is."""
    answers = [
        await installation.send(http, body=body, request_id=f"{script}.1", headers=headers)
        for http, body, script in (
            (CHAT, ASK, "plain"),
            (CHAT, STREAM, "plain"),
            ("POST /v1/completions", {"model": "m-text", "prompt": "hi"}, "plain"),
            ("POST /v1/embeddings", {"model": "m-embed", "input": "hi"}, "plain"),
            ("POST /v1/tokenize", {"model": "m-text", "prompt": "hi"}, "plain"),
            ("GET /v1/models", None, "plain"),
            # The engine fails: before the first token, and after.
            (CHAT, ASK, "ERR-06"),
            (CHAT, STREAM, "SSE-06"),
            (CHAT, {**ASK, "model": "m-nowhere"}, "plain"),
            (CHAT, {**ASK, "max_tokens": -1}, "plain"),
            ("GET /v1/chat/completions", None, "plain"),
            ("GET /nothing", None, "plain"),
        )
    ]
    return [*answers, await installation.send(CHAT, raw=b"{", headers=headers)]


async def leave(installation: Installation, headers: dict[str, str]) -> bytes:
    """A client that goes before its answer has ended; what it got."""
    stream = await EventStream.open(installation.address, STREAM, headers=headers)
    await until(lambda: stream.head, what="the head of a stream")
    stream.close()
    await asyncio.sleep(0)
    return stream.head
