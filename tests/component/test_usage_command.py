"""`python -m inferway usage` and `usage export`: sums, files, and nothing twice or too early."""

from __future__ import annotations

import csv
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
import redis

from inferway.checked_lines import checked
from inferway.cli import usage
from inferway.cli.ledger_exports import TenantExport, locked
from inferway.ledger import LedgerEntry, stream_key
from inferway.usage import day_at
from tests.support.command import inferway
from tests.support.processes import ROOT
from tests.support.valkey import Cluster, Valkey, sentinel_url, sentinels

NOW_MS = 1_796_050_000_000
DAY_MS = 86_400_000


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with Valkey() as found:
        yield found


@pytest.fixture
def valkey(server: Valkey) -> Valkey:
    server.call("FLUSHALL")
    return server


def client(valkey: Valkey) -> redis.Redis:
    return redis.Redis.from_url(valkey.url)


def entry(name: str, tenant: str = "acme", **values: Any) -> LedgerEntry:
    values = {"model": "chat", "key": "laptop", "outcome": "ok", "prompt_tokens": 100, "completion_tokens": 7} | values
    return LedgerEntry(reservation_id=name, tenant=tenant, finished_ms=values.pop("finished_ms", NOW_MS), **values)


def book(redis: Any, *entries: LedgerEntry) -> None:
    for each in entries:
        record = {**dict(each.record()), "finished_ms": str(each.finished_ms)}
        redis.xadd(stream_key("inferway", each.tenant), record)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    status = usage.main({}, arguments)
    out, err = capsys.readouterr()
    return status, out, err


def totals(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    status, out, err = run(capsys, *arguments, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)["total"]


async def test_what_a_tenant_has_used(valkey: Valkey) -> None:
    """A row for each group and one for all; another tenant's requests are not among them, nor those of other times."""
    with client(valkey) as connection:
        book(
            connection,
            entry("1", units=107_000),
            entry("2", key="server", outcome="client_closed_request", cached_tokens=64, units=10_500),
            entry("3", key="server", completion_tokens=93, reasoning_tokens=50),
            entry("4", tenant="other"),
            entry("5", finished_ms=NOW_MS - 2 * DAY_MS),
        )
    flags = ("--redis", valkey.url, "--since", day_at(NOW_MS), "--until", day_at(NOW_MS + DAY_MS))
    done = await inferway("usage", "--tenant", "acme", "--by", "key", *flags)
    assert (done.status, done.err) == (0, "")
    assert done.out.splitlines() == [
        "key     requests  prompt  cached  completion  reasoning  weighted  outcomes",
        "laptop         1     100       0           7          0     107.0  ok 1",
        "server         2     200      64         100         50      10.5  client_closed_request 1, ok 1",
        "total          3     300      64         107         50     117.5  ok 2, client_closed_request 1",
    ]
    done = await inferway("usage", "--by", "day", "--json", INFERWAY_REDIS=valkey.url)
    groups = [(each["tenant"], each["day"], each["requests"]) for each in done.json["groups"]]
    assert groups == [("acme", "2026-11-28", 1), ("acme", "2026-11-30", 3), ("other", "2026-11-30", 1)]


@pytest.mark.parametrize("file_format", ["csv", "parquet"])
def test_an_export_goes_on_where_the_last_one_ended(
    valkey: Valkey, tmp_path: Path, capsys: pytest.CaptureFixture[str], file_format: str
) -> None:
    """Files by tenant and day with every value; sums over files and streams count each entry once, trimmed or not."""
    flags = ("--redis", valkey.url, "--to", str(tmp_path), "--format", file_format)
    both = ("--redis", valkey.url, "--exported", str(tmp_path))
    first = [
        entry("1", is_stream=True, priority=3, received_ms=NOW_MS - 9, request_id='a "b",\n='),
        entry("2", finished_ms=NOW_MS - DAY_MS, is_stream=False),
        entry("3", tenant="other/../x", first_token_ms=NOW_MS),
    ]
    second = [entry("4"), entry("5", part="p")]
    with client(valkey) as connection:
        book(connection, *first)
        assert run(capsys, "export", *flags)[:2] == (0, "acme: 2 exported\nother/../x: 1 exported\n")
        assert run(capsys, "export", *flags)[:2] == (0, "acme: 0 exported\nother/../x: 0 exported\n")
        book(connection, *second)
        assert totals(capsys, *both)["requests"] == 5
        told = run(capsys, "export", *flags, "--trim")
        assert told == (0, "acme: 2 exported, 4 deleted from Redis\nother/../x: 0 exported, 1 deleted from Redis\n", "")
        assert connection.xlen(stream_key("inferway", "acme")) == 0
        book(connection, entry("6"))
    assert [*TenantExport(tmp_path, "acme").entries()] == [first[1], first[0], *second]
    assert [*TenantExport(tmp_path, "other/../x").entries()] == [first[2]]
    assert totals(capsys, *both) | {"outcomes": 0, "units": 0} == {
        "requests": 6,
        "prompt_tokens": 600,
        "cached_tokens": 0,
        "completion_tokens": 42,
        "reasoning_tokens": 0,
        "units": 0,
        "outcomes": 0,
    }
    assert totals(capsys, *both, "--tenant", "acme", "--since", "2026-11-30")["requests"] == 4
    assert totals(capsys, "--exported", str(tmp_path), "--until", "2026-11-30")["requests"] == 1
    days = sorted(path.parent.name for path in tmp_path.glob(f"tenant=acme/*/*.{file_format}"))
    assert days == ["day=2026-11-29", "day=2026-11-30", "day=2026-11-30"]
    assert (tmp_path / "tenant=other%2F..%2Fx").is_dir()


def test_files_are_what_others_read(valkey: Valkey, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain CSV with a header, and Parquet with typed columns and absent values."""
    with client(valkey) as connection:
        book(connection, entry("1", is_stream=True, priority=3))
    for file_format in ("csv", "parquet"):
        flags = ("--redis", valkey.url, "--to", str(tmp_path / file_format), "--format", file_format)
        assert run(capsys, "export", *flags)[0] == 0
    [path] = tmp_path.glob("csv/tenant=acme/day=2026-11-30/*.csv")
    with path.open(newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["reservation_id"], row["prompt_tokens"], row["is_stream"], row["received_ms"]) == ("1", "100", "1", "")
    [path] = tmp_path.glob("parquet/tenant=acme/day=2026-11-30/*.parquet")
    [typed] = pyarrow.parquet.ParquetFile(path).read().to_pylist()
    assert (typed["prompt_tokens"], typed["is_stream"], typed["received_ms"]) == (100, True, None)
    assert typed["stream_id"] == row["stream_id"]


def test_what_a_crash_has_left_is_not_counted(
    valkey: Valkey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files of a batch that was not finished are passed over, and deleted by the next export."""
    flags = ("--redis", valkey.url, "--to", str(tmp_path), "--format", "csv")
    state = tmp_path / "tenant=acme" / "_exported.json"
    with client(valkey) as connection:
        book(connection, entry("1"))
        run(capsys, "export", *flags)
        before = state.read_bytes()
        book(connection, entry("2"))
        run(capsys, "export", *flags)
        # As if it had died before it could say so; and another one in the middle of a file.
        state.write_bytes(before)
        (state.parent / "day=2026-11-30" / "1-0_2-0.csv.unfinished").write_text("half")
        assert totals(capsys, "--exported", str(tmp_path))["requests"] == 1
        assert totals(capsys, "--exported", str(tmp_path), "--redis", valkey.url)["requests"] == 2
        book(connection, entry("3"))
    assert run(capsys, "export", *flags, "--trim")[:2] == (0, "acme: 2 exported, 3 deleted from Redis\n")
    assert [each.reservation_id for each in TenantExport(tmp_path, "acme").entries()] == ["1", "2", "3"]
    assert not list(tmp_path.rglob("*.unfinished"))


def test_an_export_is_alone(valkey: Valkey, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody exports to a folder that is being read, or reads one that is being written; readers share it."""
    flags = ("--redis", valkey.url, "--to", str(tmp_path), "--format", "csv")
    reading = ("--exported", str(tmp_path))
    with client(valkey) as connection:
        book(connection, entry("1"))
    assert run(capsys, "export", *flags)[0] == 0
    refused = f"usage: {tmp_path} is in use by another export or usage\n"
    with locked(tmp_path, exclusively=False):
        assert run(capsys, "export", *flags) == (1, "", refused)
        assert totals(capsys, *reading)["requests"] == 1
    with locked(tmp_path, exclusively=True):
        assert run(capsys, *reading) == (1, "", refused)
    assert totals(capsys, *reading)["requests"] == 1


_IN_SMALL_BATCHES = "import sys\nfrom inferway.cli import usage\nusage._BATCH = 20\nusage.main({}, sys.argv[1:])"


def test_exports_that_are_killed_lose_and_double_nothing(valkey: Valkey, tmp_path: Path) -> None:
    """kill -9 at any moment of an export that trims, with requests coming in meanwhile."""
    rng = random.Random(3)
    flags = ["export", "--redis", valkey.url, "--to", str(tmp_path), "--format", "csv", "--trim"]
    booked = 0
    with client(valkey) as connection:
        for _ in range(3):
            for number in range(booked, booked + 1000):
                book(connection, entry(str(number), finished_ms=NOW_MS - rng.randrange(3) * DAY_MS))
            booked += 1000
            with subprocess.Popen([sys.executable, "-c", _IN_SMALL_BATCHES, *flags], cwd=ROOT) as export:
                while connection.xlen(stream_key("inferway", "acme")) == 1000 and export.poll() is None:
                    time.sleep(0.001)
                time.sleep(rng.random() / 20)
                export.kill()
        assert connection.xlen(stream_key("inferway", "acme")) > 0
    assert usage.main({}, flags) == 0
    found = Counter(each.reservation_id for each in TenantExport(tmp_path, "acme").entries())
    assert found == Counter(map(str, range(booked)))


def test_what_is_missing_or_another_ledger_is_told(
    valkey: Valkey, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Entries that were deleted before they were exported; a Redis that has lost what the folder has."""
    flags = ("--redis", valkey.url, "--to", str(tmp_path), "--format", "csv")
    key = stream_key("inferway", "acme")
    with client(valkey) as connection:
        book(connection, entry("1"))
        run(capsys, "export", *flags)
        book(connection, entry("2"), entry("3"))
        connection.xtrim(key, maxlen=1, approximate=False)
        status, out, err = run(capsys, "export", *flags)
        assert (status, out) == (1, "acme: 1 exported\n")
        assert err == "usage: acme: entries deleted before this folder had them: 1\n"
        connection.delete(key)
        connection.xadd(key, {**dict(entry("4").record()), "finished_ms": "1"}, id="1-1")
        status, _, err = run(capsys, "export", *flags)
        assert status == 1
        assert "the ledger of acme in Redis ends at 1-1" in err
        connection.delete(key)
        connection.xadd(key, {"v": "2"})
        for arguments in (("--redis", valkey.url), ("export", *flags, "--trim")):
            status, _, err = run(capsys, *arguments)
            assert status == 1
            assert "its version is '2', not 1" in err
        assert connection.xlen(key) == 1


def test_a_mesh_without_redis_has_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Lines that cannot be read are told; one that is still being written is none."""
    lines = [
        checked(json.dumps({**dict(each.record()), "finished_ms": str(each.finished_ms)}).encode())
        for each in (entry("1"), entry("2"), entry("3", tenant="other"))
    ]
    (tmp_path / "2026-11-30.gw.ledger").write_bytes(b"".join(lines))
    (tmp_path / "gw.000001.spool").write_bytes(b"not for usage\n")
    assert totals(capsys, "--files", str(tmp_path))["requests"] == 3
    assert totals(capsys, "--files", str(tmp_path), "--tenant", "acme")["completion_tokens"] == 14
    (tmp_path / "2026-11-30.gw.ledger").write_bytes(lines[0] + lines[1].replace(b"100", b"900") + lines[2][:-9])
    status, out, err = run(capsys, "--files", str(tmp_path), "--json")
    assert (status, json.loads(out)["total"]["requests"], json.loads(out)["damaged"]) == (1, 1, 1)
    assert err == f"usage: 1 line of {tmp_path} cannot be read\n"


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        ((), 2, "say where the ledger is: --redis, --exported or --files"),
        (("export", "--to", "x"), 2, "an export needs --redis and --to"),
        (("--redis", "redis://user:secret@127.0.0.1:1"), 1, "Redis: "),
        (("--exported", "/nowhere"), 1, "there is no folder /nowhere"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, sentence: str
) -> None:
    """Without the password of a URL."""
    found, _, err = run(capsys, *arguments)
    assert found == status
    assert sentence in err
    assert "secret" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--since", "tomorrow"), "--since: must be a day"),
        (("--redis", "http://x"), "--redis: the scheme must be one of redis"),
        (("--by", "colour"), "--by: must be one of tenant"),
    ],
)
def test_a_value_that_is_none(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str) -> None:
    """Is refused before anything is read."""
    with pytest.raises(SystemExit):
        usage.main({}, arguments)
    assert sentence in capsys.readouterr().err


@pytest.mark.slow
def test_a_cluster_has_all_tenants(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Streams of all its nodes are summed, exported and trimmed."""
    tenants = [f"t{number}" for number in range(12)]
    with Cluster() as cluster:
        nodes = {tenant: cluster.owner(stream_key("inferway", tenant)) for tenant in tenants}
        assert len(set(nodes.values())) == 3
        for tenant, node in nodes.items():
            with client(node) as connection:
                book(connection, entry("1", tenant=tenant))
        assert totals(capsys, "--redis", cluster.url)["requests"] == 12
        status, out, _ = run(capsys, "export", "--redis", cluster.url, "--to", str(tmp_path), "--trim")
        assert (status, out.count(": 1 exported, 1 deleted")) == (0, 12)
        assert totals(capsys, "--redis", cluster.url, "--exported", str(tmp_path))["requests"] == 12


@pytest.mark.slow
def test_sentinels_say_where_the_ledger_is(capsys: pytest.CaptureFixture[str]) -> None:
    """The master of their service."""
    with sentinels() as ((master, _), watchers):
        with client(master) as connection:
            book(connection, entry("1"))
        assert totals(capsys, "--redis", sentinel_url(watchers))["requests"] == 1
