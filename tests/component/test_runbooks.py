"""What the runbooks tell somebody to do can be done: names are those of the code, commands run, recipes work."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from inferway.errors import Reason
from tests.support.client import send
from tests.support.command import inferway
from tests.support.processes import ROOT, Mesh, Process
from tests.support.prometheus import declared, needs_promtool, promtool
from tests.support.tenants import bearer, tenants_file
from tests.support.valkey import Valkey
from tests.support.waiting import until, wait_until

DOCS = ROOT / "docs"
PAGES = {name: (DOCS / name).read_text() for name in ("runbooks.md", "operations.md", "observability.md")}
CHAT = "POST /v1/chat/completions"
ASK = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}]}
# Of Redis and SGLang.
THEIR_FLAGS = {"--appendonly", "--enable-lora", "--lora-paths"}
OLD, NEW = "first-password", "second-password"


def quoted(page: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", page)


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_names(page: str) -> None:
    """Metrics, flags, outcomes and events of the log that a page names are those of the code."""
    texts = quoted(page)
    metrics = {name for text in texts for name in re.findall(r"\binferway_[a-z0-9_]+", text)}
    assert metrics - declared().keys() - {name.rsplit("_", 1)[0] for name in declared()} == set()
    flags = {flag for text in texts for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", text)}
    known = set(re.findall(r"--[a-z][a-z-]+", (DOCS / "configuration.md").read_text()))
    assert flags - known - THEIR_FLAGS == set()
    words = {text for text in texts if re.fullmatch(r"(?!inferway_)[a-z]+(_[a-z]+)+", text)}
    services = ("inferway", "gateway", "router", "worker")
    source = "\n".join(path.read_text() for one in services for path in (ROOT / one).rglob("*.py"))
    known_words = set(re.findall(r"[a-z]+(?:_[a-z]+)+", source)) | {reason.label for reason in Reason}
    known_words |= {name.split("_", 2)[2] for name in declared()}
    assert words - known_words == set()


@needs_promtool
def test_queries(tmp_path: Path) -> None:
    """Every query that a page has is one that Prometheus would take."""
    blocks = [block for page in PAGES.values() for block in re.findall(r"```\n(.*?)```", page, re.S)]
    queries = [one for one in (*blocks, *(text for page in PAGES.values() for text in quoted(page))) if "rate(" in one]
    assert len(queries) >= 2
    file = tmp_path / "queries.yaml"
    recorded = [{"record": f"asked:{number}", "expr": one} for number, one in enumerate(queries)]
    file.write_text(yaml.safe_dump({"groups": [{"name": "asked", "rules": recorded}]}))
    done = promtool("check", "rules", file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def redis() -> Iterator[Valkey]:
    with Valkey("--requirepass", OLD, is_durable=True) as found:
        yield found


@pytest.fixture(scope="module")
def tenants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tenants_file(tmp_path_factory.mktemp("runbooks"), a={"quota": {"requests_per_minute": 1000}})


@pytest.fixture(scope="module")
def mesh(redis: Valkey, tenants: Path) -> Iterator[Mesh]:
    with Mesh(gateway_args=["--tenants", str(tenants), "--redis", url(redis, OLD)]) as found:
        yield found


def url(redis: Valkey, password: str) -> str:
    return f"redis://:{password}@127.0.0.1:{redis.port}"


async def ask(address: str, request_id: str = "runbook.1") -> None:
    answer = await send(address, CHAT, body=ASK, request_id=request_id, headers=bearer("a"))
    assert answer.status == 200, answer.body


@pytest.mark.slow
async def test_commands(mesh: Mesh, redis: Valkey, tmp_path: Path) -> None:
    """Each command that the runbooks name does what it is there for."""
    await ask(mesh.gateway.address)
    await until(lambda: mesh.gateway.events("request"), what="its line")
    worker = mesh.gateway.events("request")[0]["worker_id"]
    words = {"WORKER": worker, "ID": "runbook.1", "FOLDER": str(tmp_path)}
    commands = [text for text in quoted(PAGES["runbooks.md"]) if text.startswith("python -m inferway ")]
    assert len(set(commands)) >= 7
    for command in sorted(set(commands), key=lambda text: "--undo" in text):
        subject, *arguments = [words.get(word, word) for word in shlex.split(command)[3:]]
        if subject == "drain" and not arguments:
            continue  # only what it is called
        reaches = ["--redis", url(redis, OLD)] if subject == "usage" else ["--routers", mesh.routers[0].address]
        done = await inferway(subject, *arguments, *reaches)
        assert done.status == 0, (command, done.out, done.err)
        assert done.out.strip()
    await ask(mesh.gateway.address, "runbook.2")
    assert list(tmp_path.rglob("*.parquet"))


@pytest.mark.slow
async def test_rotating_the_password_of_redis(mesh: Mesh, redis: Valkey, tenants: Path) -> None:
    """Two passwords hold for a while: gateways with either serve and book, and then the old one is none."""

    def call(*words: str, password: str = OLD) -> bytes:
        return redis.call_as(password, *words)

    recipe = next(line for line in PAGES["runbooks.md"].splitlines() if line.startswith("| Redis password |"))
    add, drop = (text.replace("NEW", NEW).replace("OLD", OLD).split() for text in quoted(recipe) if "ACL" in text)
    assert call(*add) == b"+OK\r\n"
    flags = ("--routers", mesh.routers[0].address, "--listen", "127.0.0.1:0", "--tenants", str(tenants))
    with Process("gateway", *flags, "--redis", url(redis, NEW)) as rolled:
        mesh.gateways.append(rolled)
        try:
            await until(lambda: rolled.events("model_ready"), 30, "the new gateway")
            await ask(mesh.gateway.address, "old.1")
            assert call(*drop, password=NEW) == b"+OK\r\n"
            assert call("PING").startswith(b"-WRONGPASS")
            await ask(rolled.address, "new.1")
            assert call("PING", password=NEW) == b"+PONG\r\n"
        finally:
            mesh.gateways.remove(rolled)


@pytest.mark.parametrize("copy", ["appendonlydir", "dump.rdb"])
def test_restore(copy: str) -> None:
    """From either copy, by the recipe, all keys are there, also after a further start."""
    recipe = PAGES["runbooks.md"].partition("## Restore")[2]
    with Valkey(is_durable=True) as lost:
        lost.call("SET", "inferway:a", "1")
        assert lost.call("SAVE") == b"+OK\r\n"
        restored = Valkey(is_durable=True, start=False)
        source = lost.folder / copy
        if source.is_dir():
            shutil.copytree(source, restored.folder / copy)
        else:
            shutil.copy(source, restored.folder / copy)
    try:
        if copy == "dump.rdb":
            assert "`--appendonly no`" in recipe
            with restored.with_args("--appendonly", "no"):
                assert restored.call("DBSIZE") == b":1\r\n"
                assert "`CONFIG SET appendonly yes`" in recipe
                assert restored.call("CONFIG", "SET", "appendonly", "yes") == b"+OK\r\n"
                done = b"aof_rewrite_in_progress:0"
                assert f"`{done.decode()}`" in recipe
                wait_until(lambda: done in restored.call("INFO", "persistence"), what="it is written")
        restored.start()
        assert restored.call("DBSIZE") == b":1\r\n"
    finally:
        restored.close()
