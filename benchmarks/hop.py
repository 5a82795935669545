"""From a gateway's submission to its lease: how long it takes beside a bare echo, and how many one router can decide.

    python -m benchmarks.hop [--rounds 9] [--requests 300] [--seconds 5] [--blocks 32] [--reports 20]

A router process and 32 workers that are nothing but their side of the contract: they describe themselves and report so
many times a second. The echo is a process like the router's, with the same gRPC server, which answers each submission
with as many bytes as a lease has, and each release with nothing. Prompts are turns of 200 conversations, the last
eighth of their blocks new.

First one request after another: `stream` is from bytes written to bytes read, on both sides; `gateway` is the router
asked by the gateway's own client, from the ticket to its grant, over the same bare echo. Each round measures all of
them; a ratio is the median of the rounds'. CPU time is that of the process that answers, for the request and its end;
the router's has the reports of its workers in it.

Then a steady load through the gateway's client, which keeps each lease for 50 ms: the rate that came of it, and the CPU
time of the router for each decision with its first token and release. Rate 0 is as many as come through when 256 are
always on their way.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import grpc
import uvloop

from benchmarks.report import process_cpu_s, write_report
from gateway.router_client import Ask, Grant, ReleaseOutcome, RouterClient, Ticket
from inferway import grpc_util
from inferway.api.v1 import router_pb2, worker_pb2, worker_pb2_grpc
from inferway.errors import ApiError
from tests.support.processes import Process
from tests.support.waiting import until

MODEL = "m"
BLOCK = 64
WORKERS = 32
SLOTS = 256
CONVERSATIONS = 200
KV_TOKENS = 400_000
HELD_S = 0.05
ON_THEIR_WAY = 256
TICK_S = 0.002
ECHO = "/bench.Echo/Echo"
DISPATCH = "/inferway.api.v1.Router/Dispatch"
Row = dict[str, Any]
TOKEN = grpc_util.InternalToken()


class StubWorker(worker_pb2_grpc.WorkerServicer):
    def __init__(self, number: int, reports: float) -> None:
        self._id, self._pause_s = f"w{number}", 1 / reports
        self._step = 0

    async def Describe(self, request: worker_pb2.DescribeRequest, context: Any) -> worker_pb2.DescribeResponse:
        return worker_pb2.DescribeResponse(
            worker_id=self._id,
            instance_id="1",
            engine="none",
            models=[worker_pb2.Model(name=MODEL, block_size=BLOCK)],
            max_running=SLOTS,
            kv_total_tokens=KV_TOKENS,
            prefill_tokens_per_s=20_000,
        )

    async def Watch(self, request: worker_pb2.WatchRequest, context: Any) -> AsyncIterator[worker_pb2.WorkerReport]:
        while True:
            self._step += 1
            yield worker_pb2.WorkerReport(worker_id=self._id, instance_id="1", step=self._step)
            await asyncio.sleep(self._pause_s)


async def serve_workers(reports: float) -> None:
    addresses = []
    for number in range(WORKERS):
        target = grpc_util.server(TOKEN)
        worker_pb2_grpc.add_WorkerServicer_to_server(StubWorker(number, reports), target)
        addresses.append(grpc_util.bind(target, "127.0.0.1:0"))
        await target.start()
    await _listening(",".join(addresses))


async def serve_echo(answer_bytes: int) -> None:
    answer = bytes(answer_bytes)

    async def echo(requests: AsyncIterator[bytes], context: Any) -> None:
        await context.send_initial_metadata(())
        async for message in requests:
            if message[0]:
                await context.write(answer)

    _, service, method = ECHO.split("/")
    handlers = {method: grpc.stream_stream_rpc_method_handler(echo)}
    target = grpc_util.server(TOKEN)
    target.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    address = grpc_util.bind(target, "127.0.0.1:0")
    await target.start()
    await _listening(address)


async def _listening(address: str) -> None:
    print(json.dumps({"event": "listening", "address": address}), flush=True)
    await asyncio.Event().wait()


class Prompts:
    def __init__(self, blocks: int) -> None:
        self._rng = random.Random(1)
        self._new = max(1, blocks // 8)
        self._chains = [self._hashes(blocks - self._new) for _ in range(CONVERSATIONS)]
        self._numbers = count(1)

    def ask(self) -> Ask:
        hashes = [*self._rng.choice(self._chains), *self._hashes(self._new)]
        number = next(self._numbers)
        return Ask(
            request_id=f"0190b6f0-0000-7000-8000-{number:012x}",
            model=MODEL,
            tenant_id=f"tenant-{number % 16}",
            priority=5,
            prompt_tokens=len(hashes) * BLOCK + 7,
            expected_tokens=256,
            block_hashes=hashes,
            num_choices=1,
            queue_deadline=time.monotonic() + 60,
            prompt_hash=self._rng.getrandbits(64),
        )

    def _hashes(self, number: int) -> list[int]:
        return [self._rng.getrandbits(64) for _ in range(number)]


class RawStream:
    """Bytes down, bytes up; nothing is made or read while the clock runs."""

    def __init__(self, channel: grpc.aio.Channel, method: str) -> None:
        self._call = channel.stream_stream(method)()

    async def ask(self, message: bytes) -> tuple[float, bytes]:
        before = time.perf_counter()
        await self._call.write(message)
        answer = await self._call.read()
        return time.perf_counter() - before, answer

    async def tell(self, message: bytes) -> None:
        await self._call.write(message)

    async def close(self) -> None:
        self._call.cancel()


async def echo_s(stream: RawStream, ask_bytes: int, tell_bytes: int, requests: int) -> float:
    """Median seconds from a message to its answer."""
    spent = []
    for _ in range(requests):
        spent.append((await stream.ask(b"\1" * ask_bytes))[0])
        await stream.tell(b"\0" * tell_bytes)
    return statistics.median(spent)


async def stream_s(stream: RawStream, prompts: Prompts, tickets: Iterator[int], requests: int) -> float:
    """Median seconds from the bytes of a submission to those of its lease."""
    spent = []
    for _ in range(requests):
        seconds, answer = await stream.ask(submission(prompts.ask(), next(tickets)))
        (lease,) = router_pb2.DispatchReply.FromString(answer).leases
        spent.append(seconds)
        await stream.tell(end_of(lease.lease_id))
    return statistics.median(spent)


def submission(ask: Ask, ticket: int) -> bytes:
    submit = router_pb2.Submit(
        ticket=ticket,
        request_id=ask.request_id,
        model=ask.model,
        tenant_id=ask.tenant_id,
        tenant_weight=1.0,
        priority=ask.priority,
        prompt_tokens=ask.prompt_tokens,
        expected_tokens=ask.expected_tokens,
        block_hashes=ask.block_hashes,
        queue_timeout_ms=60_000,
        prompt_hash=ask.prompt_hash,
        num_choices=1,
    )
    return router_pb2.DispatchRequest(submits=[submit]).SerializeToString()


def end_of(lease_id: int) -> bytes:
    return router_pb2.DispatchRequest(
        first_tokens=[router_pb2.FirstToken(lease_id=lease_id, cached_tokens=1_024)],
        releases=[router_pb2.Release(lease_id=lease_id, outcome=router_pb2.RELEASE_OUTCOME_OK, completion_tokens=100)],
    ).SerializeToString()


class Load:
    """Requests of one gateway, with the seconds that each waited for its grant."""

    def __init__(self, client: RouterClient, prompts: Prompts) -> None:
        self._client = client
        self._prompts = prompts
        self._held: list[tuple[float, Grant]] = []
        self.waits: list[float] = []
        self.on_their_way = 0

    def submit(self) -> asyncio.Future[Grant]:
        granted: asyncio.Future[Grant] = asyncio.get_running_loop().create_future()
        before = time.perf_counter()
        self.on_their_way += 1

        def on_grant(grant: Grant) -> None:
            self.waits.append(time.perf_counter() - before)
            self.on_their_way -= 1
            self._held.append((time.monotonic() + HELD_S, grant))
            granted.set_result(grant)

        def on_reject(error: ApiError) -> None:
            raise error

        self._client.submit(Ticket(self._prompts.ask(), (), on_grant, on_reject), now=time.monotonic())
        return granted

    def end(self, now: float) -> None:
        """Give back what has been held for long enough."""
        over = [grant for until_, grant in self._held if until_ <= now]
        del self._held[: len(over)]
        for grant in over:
            self._client.first_token(grant.lease_id, 1_024)
            self._client.release(grant.lease_id, ReleaseOutcome.OK, 100)

    async def one_after_another(self, requests: int) -> float:
        """Median seconds from a ticket to its grant."""
        self.waits.clear()
        for _ in range(requests):
            await self.submit()
            self.end(float("inf"))
        return statistics.median(self.waits)

    async def steady(self, rate: float, seconds: float) -> float:
        """Returns the seconds that it took."""
        self.waits = []
        began = time.monotonic()
        submitted = 0
        while (now := time.monotonic()) < began + seconds:
            wanted = (now - began) * rate if rate else submitted + ON_THEIR_WAY - self.on_their_way
            while submitted < wanted:
                self.submit()
                submitted += 1
            self.end(now)
            await asyncio.sleep(TICK_S if rate else 0)
        took = time.monotonic() - began
        decided = len(self.waits)
        while self.on_their_way:
            self.end(float("inf"))
            await asyncio.sleep(TICK_S)
        del self.waits[decided:]
        self.end(float("inf"))
        return took


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[RouterClient]:
    client = RouterClient(address, "bench", TOKEN, lambda *_: None, lambda *_: None)
    running = asyncio.create_task(client.run())
    try:
        await until(lambda: client.connected)
        yield client
    finally:
        running.cancel()
        await asyncio.wait({running})


async def latency(router: Process, echo: Process, prompts: Prompts, rounds: int, requests: int) -> list[Row]:
    ask_bytes, tell_bytes = len(submission(prompts.ask(), 1_000)), len(end_of(1 << 62))
    tickets = count(1)
    waits: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    async with (
        grpc_util.channel(router.address) as router_channel,
        grpc_util.channel(echo.address) as echo_channel,
        connected(router.address) as client,
    ):
        load = Load(client, prompts)
        asked, echoed = RawStream(router_channel, DISPATCH), RawStream(echo_channel, ECHO)
        for round_ in range(-1, rounds):
            for name, process, measured in (
                ("echo", echo, echo_s(echoed, ask_bytes, tell_bytes, requests)),
                ("stream", router, stream_s(asked, prompts, tickets, requests)),
                ("gateway", router, load.one_after_another(requests)),
            ):
                cpu_s = process_cpu_s(process.pid)
                wait = await measured
                cpu_s = process_cpu_s(process.pid) - cpu_s
                if round_ >= 0:  # the first one warms up
                    waits.setdefault(name, []).append(wait)
                    spent.setdefault(name, []).append(cpu_s / requests)
        await asked.close()
        await echoed.close()
    return [
        {
            "asked": name,
            "bytes": ask_bytes,
            "median_us": round(statistics.median(waits[name]) * 1e6),
            "over_echo": f"{_median_ratio(waits[name], waits['echo']):.2f}",
            "cpu_us": round(statistics.median(spent[name]) * 1e6),
            "cpu_over_echo": f"{_median_ratio(spent[name], spent['echo']):.2f}",
        }
        for name in waits
    ]


async def load(router: Process, prompts: Prompts, rates: Sequence[float], seconds: float) -> list[Row]:
    rows = []
    async with connected(router.address) as client:
        traffic = Load(client, prompts)
        await traffic.steady(100, 1.0)
        for rate in rates:
            cpu_s = process_cpu_s(router.pid)
            took = await traffic.steady(rate, seconds)
            cpu_s = process_cpu_s(router.pid) - cpu_s
            waits, decided = sorted(traffic.waits), len(traffic.waits)
            rows.append(
                {
                    "rate": rate,
                    "decided_per_s": round(decided / took),
                    "router_busy": f"{cpu_s / took:.0%}",
                    "decisions_per_cpu_s": round(decided / cpu_s),
                    "p50_us": round(waits[decided // 2] * 1e6),
                    "p99_us": round(waits[decided * 99 // 100] * 1e6),
                }
            )
    return rows


def _median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--blocks", type=int, default=32, help="of a prompt, 64 tokens each")
    parser.add_argument("--reports", type=float, default=20, help="of each worker in a second")
    parser.add_argument("--rates", type=float, nargs="+", default=[500, 2_000, 0], help="requests in a second")
    parser.add_argument("--serve", choices=("workers", "echo"), help=argparse.SUPPRESS)
    parser.add_argument("--answer-bytes", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve == "workers":
        uvloop.run(serve_workers(options.reports))
    elif options.serve == "echo":
        uvloop.run(serve_echo(options.answer_bytes))
    else:
        measure(options)


def measure(options: argparse.Namespace) -> None:
    lease = router_pb2.Lease(
        ticket=1_000, lease_id=1 << 62, worker_id="w10", worker_address="127.0.0.1:40000", predicted_cached_tokens=1_024
    )
    answer_bytes = router_pb2.DispatchReply(leases=[lease]).ByteSize()
    listen = ("--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0")
    with (
        Process("benchmarks.hop", "--serve", "workers", "--reports", str(options.reports)) as workers,
        Process("benchmarks.hop", "--serve", "echo", "--answer-bytes", str(answer_bytes)) as echo,
        Process("router", *listen, "--workers", workers.address) as router,
    ):
        router.wait_for_event("ready")
        rows, load_rows = uvloop.run(_measure(router, echo, options))
    write_report("hop", rows)
    write_report("hop_load", load_rows)


async def _measure(router: Process, echo: Process, options: argparse.Namespace) -> tuple[list[Row], list[Row]]:
    prompts = Prompts(options.blocks)
    rows = await latency(router, echo, prompts, options.rounds, options.requests)
    return rows, await load(router, prompts, options.rates, options.seconds)


if __name__ == "__main__":
    main()
