"""What others do to everybody else: the gaps between tokens of 64 ordinary streams.

    python -m benchmarks.interference [--idle 10000] [--slow 1000] [--long 200000] [--only long]

Runs on one gateway: alone, beside idle connections, beside clients that open a stream and never read it, and beside a
client that sends a prompt of 200,000 tokens again and again, each never seen before, with a second between them. Each
row has been measured in turn with streams alone, since a shared machine changes its pace; the ratio is the median of
the rounds'. Who disturbs lives in a process of its own, and long prompts go to a worker of their own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import resource
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import uvloop

from benchmarks.conversations import prose
from benchmarks.report import write_report
from gateway.core.tokenizer import Tokenizer
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream
from worker.engines.scripted.models import build_model

STREAMS = 64
STEP_MS = 20
LONG_MODEL = "m-chatml"
LONG_PAUSE_S = 1.0
SETTLE_S = 3.0  # the arrival of a crowd is not what is measured
SCRIPTS = {
    "ordinary": [{"text": " token", "repeat": 400}, {"finish": "stop"}],
    # 10 kB a second for each slow reader: its buffers fill while it is watched.
    "one": [{"text": " token"}, {"finish": "stop"}],
    "slow": [{"text": "y" * 1000, "repeat": 100_000, "gap_ms": 100}, {"finish": "stop"}],
}
BODY = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def crowd(kind: str, count: int, address: str) -> None:
    """Disturb until standard input closes, with `count` connections or prompts of `count` tokens."""
    if kind == "long":
        await send_long_prompts(count, address)
    else:
        await hold_connections(kind, count, address)


async def send_long_prompts(tokens: int, address: str) -> None:
    """One after the other, no two alike."""
    info = build_model(LONG_MODEL, context_length=1 << 22, capabilities=())
    tokenizer = Tokenizer(info.tokenizer_json)
    text = prose(random.Random(1), tokens, lambda piece: len(tokenizer.encode(piece)))
    closed = asyncio.ensure_future(asyncio.to_thread(sys.stdin.read))
    number = 0
    while not closed.done():
        number += 1
        content = f"{number} {text}"
        body = {"model": LONG_MODEL, "messages": [{"role": "user", "content": content}], "stream": True}
        stream = await EventStream.open(address, body, headers={"X-Request-Id": f"one.{number}"})
        await stream.done
        assert stream.payloads()[-1] == b"[DONE]", (stream.status, stream.body[:500])
        if number == 1:
            print("ready", flush=True)
        await asyncio.wait([closed], timeout=LONG_PAUSE_S)


async def hold_connections(kind: str, count: int, address: str) -> None:
    """A slow reader asks for a stream and reads nothing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    host, _, port = address.rpartition(":")
    peers: list[EventStream | socket.socket] = []
    for index in range(count):
        if kind == "slow":
            headers = {"X-Request-Id": f"slow.{index}"}
            reader = await EventStream.open(address, BODY, headers=headers, receive_buffer_bytes=4096)
            reader.pause()
            peers.append(reader)
        else:
            peers.append(socket.create_connection((host, int(port))))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for peer in peers:
        peer.close()


async def _ordinary(address: str) -> list[float]:
    streams = [
        await EventStream.open(address, BODY, headers={"X-Request-Id": f"ordinary.{index}"}) for index in range(STREAMS)
    ]
    await asyncio.gather(*(stream.done for stream in streams))
    gaps = []
    for stream in streams:
        assert stream.payloads()[-1] == b"[DONE]"
        times = [at for at, payload in stream.events if b'"content":" token"' in payload]
        gaps += [later - earlier for earlier, later in itertools.pairwise(times)]
    return sorted(gaps)


def p99_ms(gaps: Sequence[float]) -> float:
    return gaps[int(len(gaps) * 0.99)] * 1000


@contextmanager
def beside(kind: str, count: int, address: str) -> Iterator[None]:
    """While the crowd is there."""
    argv = [sys.executable, "-m", "benchmarks.interference", "--crowd", kind, str(count), address]
    others = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert others.stdout is not None
    assert others.stdin is not None
    others.stdout.readline()
    time.sleep(SETTLE_S)
    yield
    others.stdin.close()
    others.wait()
    others.stdout.close()


def measure(crowds: Mapping[str, int], rounds: int) -> list[dict[str, Any]]:
    with TemporaryDirectory() as directory:
        scripts = Path(directory) / "scripts.json"
        scripts.write_text(json.dumps(SCRIPTS))
        worker = ["--engine", "scripted", "--scripts", str(scripts), "--step-ms", str(STEP_MS)]
        ordinary = [*worker, "--model-name", "m-text", "--max-running", str(STREAMS + crowds.get("slow", 0))]
        rows: list[dict[str, Any]] = []
        with Mesh(workers=[ordinary, [*worker, "--model-name", LONG_MODEL]]) as mesh:
            address = mesh.gateway.address
            gateway = psutil.Process(mesh.gateway.pid)
            uvloop.run(_ordinary(address))  # warm
            for kind, count in crowds.items():
                alone, disturbed = [], []
                for _ in range(rounds):
                    alone.append(p99_ms(uvloop.run(_ordinary(address))))
                    with beside(kind, count, address):
                        disturbed.append(p99_ms(uvloop.run(_ordinary(address))))
                ratios = sorted(there / before for before, there in zip(alone, disturbed, strict=True))
                row = {"beside": kind, "count": count, "alone_p99_gap_ms": round(statistics.median(alone), 2)}
                row |= {"p99_gap_ms": round(statistics.median(disturbed), 2)}
                row |= {"ratio": round(statistics.median(ratios), 2)}
                row |= {"least": round(ratios[0], 2), "most": round(ratios[-1], 2)}
                row["gateway_rss_mib"] = gateway.memory_info().rss >> 20
                rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=1_000)
    parser.add_argument("--long", type=int, default=200_000)
    parser.add_argument("--only", choices=("idle", "slow", "long"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--crowd", nargs=3, metavar=("KIND", "COUNT", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crowd:
        kind, count, address = options.crowd
        asyncio.run(crowd(kind, int(count), address))
    else:
        crowds = {kind: getattr(options, kind) for kind in ("idle", "slow", "long")}
        if options.only:
            crowds = {options.only: crowds[options.only]}
        write_report("interference", measure(crowds, options.rounds))


if __name__ == "__main__":
    main()
