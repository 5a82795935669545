"""What a request costs the gateway besides its tokens: a 2,000-token prompt, one token of answer, and on what it goes.

    python -m benchmarks.request_path [--requests 300] [--rounds 5] [--tokens 2000]

`cold` prompts have never been seen; `growing` ones continue a conversation whose earlier turns have just passed;
`short` ones have ten tokens, which shows what a request costs whatever its prompt. The
whole is the CPU clock of the running gateway process, all threads, at 16 kept-alive connections; the parts are the
gateway's own functions, timed on the same bodies in this process, and `rest` is what is left: HTTP server, event loop,
gRPC, metrics, request log. Then the gateway alone has a core, everything else the other one: the rate, how busy that
core was, and what 500 requests a second would need. Last, the parts of a prompt of 200,000 tokens, most of which are
worked on beside the event loop.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import psutil
import uvloop

from benchmarks.conversations import chat_body, prose, turns
from benchmarks.report import process_cpu_s, write_report
from gateway.core.body import decode_object
from gateway.core.chat_request import parse_chat
from gateway.core.chat_template import ChatTemplate
from gateway.core.prompt import PromptBuilder
from gateway.core.sse import DONE, Answer, ChunkEncoder
from gateway.core.tokenizer import Tokenizer
from gateway.router_client import Ask, ReleaseOutcome, RouterClient, Ticket
from gateway.worker_messages import RequestSpec, prompt_wire
from gateway.worker_sessions import WorkerSession
from inferway import grpc_util
from inferway.api.v1 import router_pb2, worker_pb2
from inferway.blocks import block_hashes
from inferway.config import Secret
from tests.support.processes import Mesh, Process
from worker.engines.scripted.models import build_model

MODEL = "m-text"
CONNECTIONS = 16
TURNS = 10
SHORT_TOKENS = 10
TARGET_RPS = 500
PARTS = ("parse", "validate", "template", "tokenize", "hash", "wire", "route", "encode", "write")
# Of a long prompt, what is done in a thread beside the event loop.
BESIDE = ("template", "tokenize", "hash", "wire")


class Load(NamedTuple):
    """`before` are requests that come first and are not measured."""

    before: Sequence[bytes]
    measured: Sequence[bytes]


def make_load(kind: str, seed: int, requests: int, tokens: int, count: Callable[[str], int]) -> Load:
    rng = random.Random(f"{kind}-{seed}")
    options = {"stream": True, "max_tokens": 1}
    if kind != "growing":
        tokens = tokens if kind == "cold" else SHORT_TOKENS
        return Load((), [chat_body(MODEL, turns(rng, 1, tokens, count), **options) for _ in range(requests)])
    before, measured = [], []
    for _ in range(requests):
        messages = turns(rng, TURNS, tokens // (2 * TURNS - 1), count)
        before.append(chat_body(MODEL, messages[:-2], **options))
        measured.append(chat_body(MODEL, messages, **options))
    return Load(before, measured)


async def send_all(address: str, bodies: Sequence[bytes]) -> float:
    """Over kept-alive connections, each sending as soon as it has its answer; the seconds that took."""
    host, _, port = address.rpartition(":")
    numbered = iter(enumerate(bodies))

    async def client() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for number, body in numbered:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\n"
            head += f"X-Request-Id: one.{number}\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            status = await reader.readline()
            assert b" 200 " in status, status
            answer = await reader.readuntil(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            assert b'"content":" token"' in answer, answer[-2000:]
        writer.close()

    started = time.monotonic()
    await asyncio.gather(*(client() for _ in range(CONNECTIONS)))
    return time.monotonic() - started


class Parts:
    """The gateway's own functions on one body after the other, with the CPU microseconds of each."""

    def __init__(self) -> None:
        """Needs a running event loop."""
        info = build_model(MODEL, context_length=1 << 20, capabilities=())
        self.tokenizer = Tokenizer(info.tokenizer_json)
        self.block_size = info.block_size
        template = ChatTemplate(info.chat_template, bos_token=info.bos_token, eos_token=info.eos_token)
        self._prompts = PromptBuilder(template, self.tokenizer, info.structural_marks)
        token = grpc_util.InternalToken(Secret(""), "")
        self._router = RouterClient("127.0.0.1:1", "bench", token, lambda *_: None, lambda *_: None)
        self._session = WorkerSession("127.0.0.1:1", "bench", token, lambda: None)
        self._router.connected = self._session.connected = True
        delta = worker_pb2.Delta(key=1, text=" token", completion_tokens=1)
        self._batch = worker_pb2.StepBatch(deltas=[delta]).SerializeToString()
        lease = router_pb2.Lease(ticket=1, lease_id=1, worker_id="w", worker_address="127.0.0.1:1")
        self._reply = router_pb2.DispatchReply(leases=[lease]).SerializeToString()
        listener = socket.create_server(("127.0.0.1", 0))
        self._socket = socket.create_connection(listener.getsockname())
        self._peer, _ = listener.accept()
        listener.close()
        self.cost_us: dict[str, list[float]] = {name: [] for name in PARTS}

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    def run(self, body: bytes, *, counts: bool, long: bool = False) -> None:
        marks = [time.thread_time_ns()]
        decode_object(body)
        marks.append(time.thread_time_ns())
        chat = parse_chat(body)
        marks.append(time.thread_time_ns())
        rendered = self._prompts.render(
            chat.messages, tools=list(chat.tool_use.tools) or None, template_kwargs=chat.template_kwargs
        )
        marks.append(time.thread_time_ns())
        ids = self._prompts.encode(rendered)
        marks.append(time.thread_time_ns())
        hashes = block_hashes(ids, self.block_size, b"s" * 16)
        marks.append(time.thread_time_ns())
        wire = prompt_wire(ids) if long else b""
        marks.append(time.thread_time_ns())
        self._route(len(ids), hashes)
        marks.append(time.thread_time_ns())
        self._encode(ids, chat.sampling, wire)
        marks.append(time.thread_time_ns())
        self._write()
        marks.append(time.thread_time_ns())
        self._peer.recv(1 << 16)
        if counts:
            spent = [(end - start) / 1000 for start, end in itertools.pairwise(marks)]
            spent[1] -= spent[0]  # parse_chat parses, too
            for name, cost in zip(PARTS, spent, strict=True):
                self.cost_us[name].append(cost)

    def _route(self, tokens: int, hashes: Sequence[int]) -> None:
        """Ask, lease, first token, release."""
        ask = Ask("one.1", MODEL, "anonymous", 5, tokens, 1, hashes, 1, time.monotonic() + 10)
        ticket = Ticket(ask, (), lambda grant: None, lambda error: None)
        self._router.submit(ticket, now=time.monotonic())
        self._router._outbox.SerializeToString()
        router_pb2.DispatchReply.FromString(self._reply)
        self._router.cancel(ticket)
        self._router._outbox = router_pb2.DispatchRequest()
        self._router.first_token(1, 0)
        self._router.release(1, ReleaseOutcome.OK, 1)
        self._router._outbox.SerializeToString()
        self._router._outbox = router_pb2.DispatchRequest()

    def _encode(self, ids: Sequence[int], sampling: Any, wire: bytes) -> None:
        spec = RequestSpec("one.1", MODEL, ids, sampling, 5, b"s" * 16, 1, "", None, False, wire)
        self._session.generate(spec, [_Nobody()])
        for message in self._session._outbox:
            message.SerializeToString()
        self._session._outbox, self._session._outbox_tokens = [worker_pb2.SessionRequest()], 0

    def _write(self) -> None:
        """The step batch to frames, and these to a socket, in the two writes that they leave in."""
        (delta,) = worker_pb2.StepBatch.FromString(self._batch).deltas
        encoder = ChunkEncoder(Answer("chatcmpl-1", 1, MODEL, "fp_1"))
        self._socket.send(encoder.opening(0) + encoder.content(0, delta.text))
        self._socket.send(encoder.finish(0, "length") + DONE)


class _Nobody:
    wants_scores = False

    def on_scores(self, *_: Any) -> None: ...
    def on_text(self, *_: Any) -> None: ...
    def on_first(self, *_: Any) -> None: ...
    def on_finish(self, *_: Any) -> None: ...
    def on_error(self, *_: Any) -> None: ...
    def on_lost(self, *_: Any) -> None: ...


async def measure_parts(loads: Sequence[Load], parts: Parts) -> dict[str, float]:
    """Medians over all bodies; in another process than the whole, but with the same caches filled."""
    for load in loads:
        for body in load.before:
            parts.run(body, counts=False)
        for body in load.measured:
            parts.run(body, counts=True)
    return {name: statistics.median(costs) for name, costs in parts.cost_us.items()}


async def measure_long(tokens: int, rounds: int) -> dict[str, Any]:
    """Milliseconds of CPU of a prompt that is worked on beside the event loop, and what of them is left to the loop."""
    parts = Parts()
    rng = random.Random(tokens)
    text = prose(rng, tokens, parts.count)
    for number in range(rounds):
        body = chat_body(MODEL, [{"role": "user", "content": f"{number} {text}"}], stream=True, max_tokens=1)
        parts.run(body, counts=True, long=True)
    spent = {name: statistics.median(costs) / 1000 for name, costs in parts.cost_us.items()}
    on_loop = sum(cost for name, cost in spent.items() if name not in BESIDE)
    row = {"tokens": tokens, "body_kb": len(body) // 1000} | {name: round(cost, 2) for name, cost in spent.items()}
    return row | {"beside_the_loop_ms": round(sum(spent.values()) - on_loop, 1), "on_the_loop_ms": round(on_loop, 1)}


def thread_cpu_s(pid: int) -> float:
    """Of the process's first thread, which runs the event loop; in steps of 10 ms."""
    times = next(thread for thread in psutil.Process(pid).threads() if thread.id == pid)
    return float(times.user_time + times.system_time)


def scripted_mesh(directory: str) -> Mesh:
    scripts = Path(directory) / "scripts.json"
    scripts.write_text(json.dumps({"one": [{"text": " token"}, {"finish": "length"}]}))
    return Mesh(workers=[["--engine", "scripted", "--scripts", str(scripts), "--model-name", MODEL]])


def measure(kind: str, requests: int, rounds: int, tokens: int) -> tuple[dict[str, Any], dict[str, Any]]:
    async def with_parts(loads: Sequence[Load] | None) -> Any:
        parts = Parts()
        if loads is None:
            return [make_load(kind, seed, requests, tokens, parts.count) for seed in range(rounds + 2)]
        return await measure_parts(loads, parts)

    warm, *loads, last = uvloop.run(with_parts(None))
    with TemporaryDirectory() as directory, scripted_mesh(directory) as mesh:
        gateway = mesh.gateway
        uvloop.run(send_all(gateway.address, [*warm.before, *warm.measured]))
        wholes, of_loop = [], []
        for load in loads:
            uvloop.run(send_all(gateway.address, load.before))
            before, loop_before = process_cpu_s(gateway.pid), thread_cpu_s(gateway.pid)
            uvloop.run(send_all(gateway.address, load.measured))
            wholes.append((process_cpu_s(gateway.pid) - before) / requests * 1e6)
            of_loop.append((thread_cpu_s(gateway.pid) - loop_before) / requests * 1e6)
        core = saturated(mesh, last)
    whole = statistics.median(wholes)
    spent = uvloop.run(with_parts(loads))
    spent["rest"] = whole - sum(spent.values())
    row = {"prompts": kind, "cpu_us": round(whole), "least": round(min(wholes)), "most": round(max(wholes))}
    row |= {name: round(cost) for name, cost in spent.items()}
    core |= {
        "loop_thread_us": round(statistics.median(of_loop)),
        "cores_for_500_rps": round(TARGET_RPS * whole / 1e6, 2),
    }
    return row, {"prompts": kind, **core}


def saturated(mesh: Mesh, load: Load) -> dict[str, Any]:
    """The gateway has the first core for itself, all else the second."""
    cores = sorted(psutil.Process().cpu_affinity())
    with pinned([mesh.gateway], cores[:1]), pinned([*mesh.workers, mesh.router], cores[1:2]):
        psutil.Process().cpu_affinity(cores[1:2])
        try:
            uvloop.run(send_all(mesh.gateway.address, load.before))
            before = process_cpu_s(mesh.gateway.pid)
            seconds = uvloop.run(send_all(mesh.gateway.address, load.measured))
            busy = (process_cpu_s(mesh.gateway.pid) - before) / seconds
        finally:
            psutil.Process().cpu_affinity(cores)
    rate = len(load.measured) / seconds
    return {"rps_on_one_core": round(rate), "core_busy": round(busy, 2), "rps_of_a_full_core": round(rate / busy)}


class pinned:
    """These processes, with all their threads, on these cores."""

    def __init__(self, processes: Sequence[Process | None], cores: Sequence[int]) -> None:
        self._threads = [
            psutil.Process(thread.id)
            for process in processes
            if process is not None
            for thread in psutil.Process(process.pid).threads()
        ]
        self._cores = cores

    def __enter__(self) -> None:
        self._before = [thread.cpu_affinity() for thread in self._threads]
        for thread in self._threads:
            thread.cpu_affinity(self._cores)

    def __exit__(self, *_exc: object) -> None:
        for thread, cores in zip(self._threads, self._before, strict=True):
            if thread.is_running():
                thread.cpu_affinity(cores)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=2000)
    parser.add_argument("--long-tokens", type=int, default=200_000)
    options = parser.parse_args()
    rows, cores = [], []
    for kind in ("cold", "growing", "short"):
        row, core = measure(kind, options.requests, options.rounds, options.tokens)
        rows.append(row)
        cores.append(core)
    write_report("request_path", rows)
    write_report("request_path_rate", cores)
    write_report("request_path_long", [uvloop.run(measure_long(options.long_tokens, options.rounds))])


if __name__ == "__main__":
    main()
