"""`python -m router` as a process: start, refusals, signals."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest

from inferway.api.v1 import router_pb2, router_pb2_grpc

_PATIENCE_S = 30.0
# Where no worker listens.
_NOBODY = "127.0.0.1:1"


@asynccontextmanager
async def started(*arguments: str) -> AsyncIterator[Process]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("INFERWAY_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "router", *arguments, stdout=PIPE, stderr=PIPE, env=environ
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def event(process: Process, name: str) -> dict[str, Any]:
    """The first log line with this event."""
    assert process.stderr is not None
    async with asyncio.timeout(_PATIENCE_S):
        async for line in process.stderr:
            fields: dict[str, Any] = json.loads(line)
            if fields["event"] == name:
                return fields
    raise AssertionError(f"the process ended without {name}")


async def test_it_says_where_it_listens_and_ends_cleanly_on_sigterm() -> None:
    """Started on port 0 it logs both addresses, serves, and exits with 0 after SIGTERM."""
    arguments = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--workers", _NOBODY]
    async with started(*arguments) as process:
        listening = await event(process, "listening")
        assert listening["ops_address"].startswith("127.0.0.1:")
        async with grpc.aio.insecure_channel(listening["address"]) as channel:
            call = router_pb2_grpc.RouterStub(channel).Snapshot(router_pb2.SnapshotRequest())
            snapshot = await call.read()
            assert [worker.address for worker in snapshot.workers] == [_NOBODY]
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_PATIENCE_S):
                assert await process.wait() == 0


async def test_a_second_signal_ends_at_once() -> None:
    """While it drains for a waiting request, another SIGTERM ends the process without more ado; the status is 0."""
    arguments = [
        "--listen",
        "127.0.0.1:0",
        "--ops-listen",
        "127.0.0.1:0",
        "--workers",
        _NOBODY,
        "--drain-limit-s",
        "60",
    ]
    async with started(*arguments) as process:
        listening = await event(process, "listening")
        async with grpc.aio.insecure_channel(listening["address"]) as channel:
            stub = router_pb2_grpc.RouterStub(channel)
            submit = router_pb2.Submit(
                ticket=1,
                request_id="r",
                model="m",
                prompt_tokens=1,
                expected_tokens=1,
                queue_timeout_ms=60_000,
                num_choices=1,
            )
            call = stub.Dispatch()
            await call.write(router_pb2.DispatchRequest(submits=[submit]))
            snapshots = stub.Snapshot(router_pb2.SnapshotRequest(interval_ms=100))
            async with asyncio.timeout(_PATIENCE_S):
                while not (await snapshots.read()).queues:
                    pass
            process.send_signal(signal.SIGINT)
            await event(process, "draining")
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(_PATIENCE_S):
                assert await process.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--listen", "0.0.0.0:0"], "refusing to listen on 0.0.0.0:0 without authentication"),
        (["--ops-listen", "0.0.0.0:0"], "refusing to listen on 0.0.0.0:0 without authentication"),
        (["--workers", "nowhere"], "--workers: must be host:port with a port from 1 to 65535, got 'nowhere'"),
        (["--workers", "k8s:nowhere"], "--workers: must be k8s:NAMESPACE/SERVICE or "),
        (
            ["--kubernetes-api", "http://10.0.0.1"],
            "--kubernetes-api: must be https://HOST[:PORT], or http://",
        ),
        (["--workers", ""], "--workers: at least one address is needed, got none"),
        (["--listen", "127.0.0.1:99999"], "--listen: must be host:port with a port from 0 to 65535"),
        (["--internal-token-file", "does-not-exist"], "the internal token file is missing"),
        (["--queue-limit-requests", "0"], "--queue-limit-requests: must be at least 1, got '0'"),
    ],
)
async def test_a_wrong_configuration_is_refused_in_a_sentence(arguments: list[str], sentence: str) -> None:
    """The process says what is wrong in a line, without a traceback, and ends with status 2."""
    await refused(arguments, sentence)


@pytest.mark.parametrize("option", ["--listen", "--ops-listen"])
async def test_an_address_that_is_taken_is_refused_in_a_sentence(option: str) -> None:
    """Both listeners say which address they could not have."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        free = ["--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0"]
        await refused([*free, option, address], f"cannot listen on {address}")


async def refused(arguments: list[str], sentence: str) -> None:
    async with started(*arguments) as process:
        async with asyncio.timeout(_PATIENCE_S):
            _, errors = await process.communicate()
        assert process.returncode == 2
        assert sentence in errors.decode().splitlines()[-1]
        assert "Traceback" not in errors.decode()
