"""Services beside peers of a version that says more than they know: fields, and values of enums."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from inferway.api.v1 import router_pb2, worker_pb2
from tests.support.client import Answer, send
from tests.support.probes import http_json
from tests.support.processes import Process, start_worker
from tests.support.slow_worker import Relay
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ASK: dict[str, Any] = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}], "stream": True}
SERVICES = [
    module.DESCRIPTOR.services_by_name[name] for module, name in ((router_pb2, "Router"), (worker_pb2, "Worker"))
]
METHODS = {f"/{service.full_name}/{method.name}": method for service in SERVICES for method in service.methods}
# A number, a text and eight bytes: fields 5000 to 5002.
UNKNOWN = bytes.fromhex("c0b80207 cab80203") + b"new" + bytes.fromhex("d1b802") + b"8" * 8


class Newer:
    """Changes messages on their way; `seen` counts what has been changed, by type."""

    def __init__(self, change: Callable[[Message], bool]) -> None:
        self._change = change
        self.seen: Counter[str] = Counter()

    def __call__(self, name: str, side: str, raw: bytes) -> bytes:
        method = METHODS.get(name)
        if method is None:
            return raw
        message = GetMessageClass(method.input_type if side == "asked" else method.output_type)()
        message.ParseFromString(raw)
        self._walk(message)
        return message.SerializeToString()

    def _walk(self, message: Message) -> None:
        for field, value in message.ListFields():
            if field.type != FieldDescriptor.TYPE_MESSAGE or field.message_type.GetOptions().map_entry:
                continue
            for one in value if field.is_repeated else [value]:
                self._walk(one)
        self.seen[message.DESCRIPTOR.name] += self._change(message)


def say_more(message: Message) -> bool:
    message.MergeFromString(UNKNOWN)
    return True


def say_another_value(message: Message) -> bool:
    """Of every enum that is said at all."""
    changed = False
    for field, _ in message.ListFields():
        if field.type == FieldDescriptor.TYPE_ENUM and not field.is_repeated:
            setattr(message, field.name, 99)
            changed = True
    return changed


class Services(NamedTuple):
    gateway: Process
    router: Process
    worker: Process

    async def ask(self, **fields: Any) -> Answer:
        return await send(self.gateway.address, "POST /v1/chat/completions", body={**ASK, **fields})


@asynccontextmanager
async def mesh(newer: Newer) -> AsyncIterator[Services]:
    """Worker, router and gateway, each of which believes that the others are newer."""
    with await asyncio.to_thread(start_worker, "--engine", "scripted") as worker:
        async with Relay(worker.address, change=newer) as to_worker:
            flags = ("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--workers", to_worker.address)
            with await asyncio.to_thread(Process, "router", *flags) as router:
                async with Relay(router.address, change=newer) as to_router:
                    flags = ("--listen", "127.0.0.1:0", "--routers", to_router.address)
                    with await asyncio.to_thread(Process, "gateway", *flags) as gateway:
                        pages = [f"http://{address}/health/ready" for address in (gateway.address, router.ops_address)]

                        async def is_ready() -> bool:
                            return all([(await asyncio.to_thread(http_json, page))[0] == 200 for page in pages])

                        async with asyncio.timeout(60):
                            while not await is_ready():
                                await asyncio.sleep(0.05)
                        yield Services(gateway, router, worker)


def _is_well(services: Services) -> bool:
    return all(
        process.popen.poll() is None and "Traceback" not in process.log_text() and "exception" not in process.log_text()
        for process in services
    )


async def test_fields() -> None:
    """Fields that nobody knows, in every message and every part of one, change nothing."""
    newer = Newer(say_more)
    async with mesh(newer) as services:
        for fields in ({}, {"stream": False}, {"n": 2}, {"stop": ["x"]}):
            assert (await services.ask(**fields)).status == 200
        embedded = {"model": "m-embed", "input": "hi"}
        assert (await send(services.gateway.address, "POST /v1/embeddings", body=embedded)).status == 200
        page = await send(services.gateway.address, "GET /metrics")
        assert b"inferway_gateway_fallback_dispatches_total 0.0" in page.body
        assert _is_well(services)
    to_router = {"Submit", "Release", "DispatchReply", "Lease", "SnapshotResponse"}
    to_worker = {"SessionRequest", "Generate", "StepBatch", "Delta", "WorkerReport", "Model", "EmbedRequest"}
    assert to_router | to_worker <= newer.seen.keys()


async def test_values() -> None:
    """A reason, an outcome or a kind that nobody knows ends the request that has it, and nothing else."""
    newer = Newer(say_another_value)
    async with mesh(newer) as services:
        answer = await services.ask(stream=False)
        assert (answer.status, answer.error["code"]) == (500, "worker_failed"), "a finish that means something new"
        constrained = {"response_format": {"type": "json_object"}, "stream": False}
        answer = await services.ask(**constrained)
        assert 400 <= answer.status <= 500
        assert answer.error["message"]
        await until(lambda: newer.seen["Release"] >= 1, what="the router was told of an outcome")
        assert (await send(services.gateway.address, "GET /health/ready")).status == 200
        assert _is_well(services)
    assert {"Delta", "Release", "WorkerState"} <= {name for name, count in newer.seen.items() if count}
