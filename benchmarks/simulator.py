"""How near the simulator comes to real time: one piece of a trace, computed and then played.

    python -m benchmarks.simulator --trace FILE [--requests 300] [--workers 3] [--seconds 150]

The piece is made of the conversations of the trace's start that have several turns, so that there is something to find
in caches. The played half is a real router process and real workers with the scripted engine; this process stands in
for the gateway, so that no chat template and no tokenizer is between the trace and the router. The computed half has
workers with the same parameters, and with steps as long as those that were played turned out to be: the engine begins
a step when the one before has ended, so that a busy machine stretches them. It is the mean over several seeds. Both use
the router's default policy.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from benchmarks.report import write_report
from inferway.api.v1 import router_pb2, router_pb2_grpc, worker_pb2, worker_pb2_grpc
from inferway.blocks import block_hashes
from inferway.grpc_util import channel
from router.core.placement.policies import policy_named
from router.simulate.engine import EngineSettings
from router.simulate.figures import Figures, figures
from router.simulate.replay import FleetSettings, Outcome, replay
from router.simulate.trace import TraceRequest, read_trace
from tests.support.processes import Process, start_worker

MODEL = "m-text"
BLOCK_SIZE = 64
# Letters and signs of the model's vocabulary: one character each, none of them special.
VOCABULARY = range(33, 127)
QUEUE_TIMEOUT_S = 600.0
# Of so many times as many requests the piece is chosen.
SOUGHT_SHARE = 8
LEAST_TURNS = 3
# Conversations of a Mooncake trace share their first block of 512 tokens, and differ behind it.
CONVERSATION_BLOCK = 8
COMPARED = ("ttft_mean_s", "ttft_p50_s", "ttft_p99_s", "e2e_mean_s", "e2e_p99_s", "hit_ratio")


def piece_of(requests: Sequence[TraceRequest], size: int) -> list[TraceRequest]:
    """The first requests of conversations, told apart by what follows their common start, that have several turns."""
    start = [request for request in requests[: size * SOUGHT_SHARE] if len(request.block_hashes) > CONVERSATION_BLOCK]
    turns = Counter(request.block_hashes[CONVERSATION_BLOCK] for request in start)
    return [request for request in start if turns[request.block_hashes[CONVERSATION_BLOCK]] >= LEAST_TURNS][:size]


def prompt_of(request: TraceRequest) -> list[int]:
    """Token ids that are equal where the trace's blocks are, and nowhere else."""
    ids: list[int] = []
    for block in request.block_hashes:
        ids += Random(block).choices(VOCABULARY, k=BLOCK_SIZE)
    tail = Random(f"tail of {request.block_hashes[-1] if request.block_hashes else request.at_s}")
    return ids + tail.choices(VOCABULARY, k=request.prompt_tokens - len(ids))


@dataclass(slots=True, eq=False)
class Played:
    """One request on its way, and where its figures go."""

    outcome: Outcome
    prompt: list[int]
    lease_id: int = 0
    has_first_token: bool = False


class Player:
    """Speaks to the router and the workers as a gateway does."""

    def __init__(self, router: str, workers: Sequence[str], requests: Sequence[TraceRequest], expected: int) -> None:
        self._requests = requests
        self._expected = expected
        self._router_address = router
        self._worker_addresses = workers
        self._played: dict[int, Played] = {}
        self._left = len(requests)
        # What the router is told next: a stream takes one message at a time.
        self._outbox = router_pb2.DispatchRequest(gateway_id="player")
        self._filled = asyncio.Event()
        self._done = asyncio.Event()
        self.outcomes: list[Outcome] = []
        self._late_s = 0.0

    async def play(self) -> float:
        """Returns how late the latest request was sent, in seconds."""
        prompts = [prompt_of(request) for request in self._requests]
        router = channel(self._router_address)
        self._router = router_pb2_grpc.RouterStub(router).Dispatch()
        channels = {address: channel(address) for address in self._worker_addresses}
        self._sessions = {address: worker_pb2_grpc.WorkerStub(one).Session() for address, one in channels.items()}
        for session in self._sessions.values():
            await session.write(worker_pb2.SessionRequest(gateway_id="player"))
        self._filled.set()
        tasks = [asyncio.create_task(self._read_router()), asyncio.create_task(self._write_router())]
        tasks += [asyncio.create_task(self._read_worker(session)) for session in self._sessions.values()]
        start = time.monotonic()
        for number, (request, prompt) in enumerate(zip(self._requests, prompts, strict=True), 1):
            at = start + request.at_s
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            self._submit(number, request, prompt, at)
        done = asyncio.create_task(self._done.wait())
        finished, _ = await asyncio.wait([done, *tasks], return_when=asyncio.FIRST_COMPLETED)
        for task in finished:
            task.result()
        for task in tasks:
            task.cancel()
        for one in (router, *channels.values()):
            await one.close()
        return self._late_s

    def _submit(self, number: int, request: TraceRequest, prompt: list[int], at: float) -> None:
        outcome = Outcome(request, at)
        self._late_s = max(self._late_s, time.monotonic() - at)
        self._played[number] = Played(outcome, prompt)
        self.outcomes.append(outcome)
        self._outbox.submits.add(
            ticket=number,
            request_id=f"play.{number}",
            model=MODEL,
            tenant_id="player",
            priority=request.priority,
            prompt_tokens=len(prompt),
            expected_tokens=self._expected,
            block_hashes=block_hashes(prompt, BLOCK_SIZE),
            queue_timeout_ms=round(QUEUE_TIMEOUT_S * 1000),
            num_choices=1,
        )
        self._filled.set()

    async def _write_router(self) -> None:
        while True:
            await self._filled.wait()
            self._filled.clear()
            message, self._outbox = self._outbox, router_pb2.DispatchRequest()
            await self._router.write(message)

    async def _read_router(self) -> None:
        async for reply in self._router:
            for rejected in reply.rejections:
                self._end(rejected.ticket, error=rejected.error.message)
            for lease in reply.leases:
                played = self._played[lease.ticket]
                played.lease_id = lease.lease_id
                played.outcome.queue_s = time.monotonic() - played.outcome.arrived_at
                played.outcome.predicted_cached_tokens = lease.predicted_cached_tokens
                played.outcome.worker = self._worker_addresses.index(lease.worker_address)
                generate = worker_pb2.Generate(
                    key=lease.ticket,
                    request_id=f"play.{lease.ticket}",
                    model=MODEL,
                    prompt_token_ids=played.prompt,
                    priority=played.outcome.request.priority,
                    lease_id=lease.lease_id,
                )
                generate.sampling.max_tokens = played.outcome.request.completion_tokens
                generate.sampling.ignore_eos = True
                request = worker_pb2.SessionRequest(generates=[generate])
                await self._sessions[lease.worker_address].write(request)

    async def _read_worker(self, session: Any) -> None:
        async for batch in session:
            now = time.monotonic()
            for delta in batch.deltas:
                played = self._played[delta.key]
                outcome = played.outcome
                if delta.HasField("error"):
                    self._end(delta.key, error=delta.error.message)
                    continue
                if not played.has_first_token and delta.completion_tokens:
                    played.has_first_token = True
                    outcome.ttft_s = now - outcome.arrived_at
                    outcome.cached_tokens = delta.usage.cached_tokens
                    self._outbox.first_tokens.add(lease_id=played.lease_id, cached_tokens=outcome.cached_tokens)
                    self._filled.set()
                if delta.finish_reason:
                    outcome.e2e_s = now - outcome.arrived_at
                    ended = router_pb2.RELEASE_OUTCOME_OK
                    self._outbox.releases.add(
                        lease_id=played.lease_id, outcome=ended, completion_tokens=delta.completion_tokens
                    )
                    self._filled.set()
                    self._end(delta.key)

    def _end(self, number: int, error: str = "") -> None:
        self._played.pop(number).outcome.error = error
        self._left -= 1
        if not self._left:
            self._done.set()


def play(options: argparse.Namespace, requests: Sequence[TraceRequest], expected: int) -> list[Outcome]:
    flags = [
        *("--engine", "scripted", "--model-name", MODEL, "--step-ms", str(options.step_ms)),
        *("--prefill-tokens-per-s", str(options.prefill_tokens_per_s), "--kv-tokens", str(options.kv_tokens)),
        *("--max-running", str(options.max_running)),
    ]
    workers: list[Process] = []
    router: Process | None = None
    try:
        workers += [start_worker(*flags, "--name", f"w{number:03}") for number in range(options.workers)]
        addresses = [worker.address for worker in workers]
        router = Process(
            "router", "--listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0", "--workers", ",".join(addresses)
        )
        for _ in workers:
            router.wait_for_event("worker_ready")
        time.sleep(options.warm_s)
        player = Player(router.address, addresses, requests, expected)
        late_s = uvloop.run(player.play())
    finally:
        for process in (*workers, *([router] if router is not None else [])):
            process.__exit__()
    print(f"played: the latest request was sent {late_s * 1000:.0f} ms late")
    failed = {outcome.error for outcome in player.outcomes if outcome.error}
    assert not failed, failed
    return player.outcomes


def step_of(outcomes: Sequence[Outcome]) -> float:
    """Seconds from one token of an answer to its next, which is a step, on average."""
    decoding_s = sum(outcome.e2e_s - outcome.ttft_s for outcome in outcomes)
    return decoding_s / sum(outcome.request.completion_tokens - 1 for outcome in outcomes)


def compute(
    options: argparse.Namespace, requests: Sequence[TraceRequest], expected: int, step_s: float, seed: int
) -> Figures:
    # A scripted step takes the same time whatever is in it, and computes this much of prompts beside the answers.
    chunk_tokens = round(options.prefill_tokens_per_s * options.step_ms / 1000)
    engine = EngineSettings(
        prefill_tokens_per_s=chunk_tokens / step_s,
        step_s=step_s,
        step_s_per_request=0.0,
        prefill_overlap=1.0,
        chunk_tokens=chunk_tokens,
        max_running=options.max_running,
        kv_tokens=options.kv_tokens,
        block_size=BLOCK_SIZE,
    )
    settings = FleetSettings(
        options.workers, engine, expected, hop_s=0.001, report_s=max(0.002, step_s), kv_events=True
    )
    policy, rng = policy_named("default"), Random(seed)
    return figures(replay(requests, speed=1.0, policy=policy, rng=rng, settings=settings))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", required=True)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=150.0, help="time in which the requests come")
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--prefill-tokens-per-s", type=float, default=14_000.0)
    parser.add_argument("--kv-tokens", type=int, default=600_000)
    parser.add_argument("--max-running", type=int, default=64)
    parser.add_argument("--warm-s", type=float, default=12.0, help="pause in which routers come to trust new workers")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    if not Path(options.trace).is_file():
        sys.exit(f"there is no trace at {options.trace}")
    with Path(options.trace).open(encoding="utf-8") as lines:
        requests = piece_of(read_trace(lines, block_size=BLOCK_SIZE).requests, options.requests)
    speed = (requests[-1].at_s - requests[0].at_s) / options.seconds
    requests = [replace(request, at_s=(request.at_s - requests[0].at_s) / speed) for request in requests]
    expected = sorted(request.completion_tokens for request in requests)[len(requests) * 9 // 10]
    outcomes = play(options, requests, expected)
    step_s, played = step_of(outcomes), figures(outcomes)
    print(f"played: steps of {options.step_ms:g} ms took {step_s * 1000:.2f} ms")
    computed = [compute(options, requests, expected, step_s, seed) for seed in range(1, options.seeds + 1)]
    rows: list[dict[str, Any]] = []
    for name in COMPARED:
        values, there = [getattr(one, name) for one in computed], getattr(played, name)
        here = sum(values) / len(values)
        row = {"figure": name, "computed": here, "least": min(values), "most": max(values), "played": there}
        rows.append({column: round(value, 3) if column != "figure" else value for column, value in row.items()})
        rows[-1]["ratio"] = round(here / there, 3) if there else "-"
    write_report("simulator", rows)


if __name__ == "__main__":
    main()
