"""What idle connections and slow readers do to everybody else: the gaps between tokens of 64 ordinary streams.

    python -m benchmarks.interference [--idle 10000] [--slow 1000]

Three runs on one gateway: alone, beside idle connections, beside clients that open a stream and never read it. The
crowd lives in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import uvloop

from benchmarks.report import write_report
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream

STREAMS = 64
STEP_MS = 20
SETTLE_S = 3.0  # the arrival of a crowd is not what is measured
SCRIPTS = {
    "ordinary": [{"text": " token", "repeat": 400}, {"finish": "stop"}],
    # 10 kB a second for each slow reader: its buffers fill while it is watched.
    "slow": [{"text": "y" * 1000, "repeat": 100_000, "gap_ms": 100}, {"finish": "stop"}],
}
BODY = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def crowd(kind: str, count: int, address: str) -> None:
    """Hold `count` connections until standard input closes; a slow reader asks for a stream and reads nothing."""
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


def measure(idle: int, slow: int, rounds: int) -> list[dict[str, Any]]:
    with TemporaryDirectory() as directory:
        scripts = Path(directory) / "scripts.json"
        scripts.write_text(json.dumps(SCRIPTS))
        worker = ["--engine", "scripted", "--scripts", str(scripts), "--step-ms", str(STEP_MS)]
        worker += ["--max-running", str(STREAMS + slow)]
        rows: list[dict[str, Any]] = []
        with Mesh(workers=[worker]) as mesh:
            gateway = psutil.Process(mesh.gateway.pid)
            uvloop.run(_ordinary(mesh.gateway.address))  # warm
            for name, kind, count in (("alone", "idle", 0), ("idle", "idle", idle), ("slow", "slow", slow)):
                argv = [sys.executable, "-m", "benchmarks.interference", "--crowd", kind, str(count)]
                others = subprocess.Popen(
                    [*argv, mesh.gateway.address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
                assert others.stdout is not None
                assert others.stdin is not None
                others.stdout.readline()
                time.sleep(SETTLE_S)
                p99s = []
                for _ in range(rounds):
                    gaps = uvloop.run(_ordinary(mesh.gateway.address))
                    p99s.append(gaps[int(len(gaps) * 0.99)])
                p99 = sorted(p99s)[len(p99s) // 2] * 1000
                row = {"beside": name, "connections": count, "p99_gap_ms": round(p99, 2)}
                row["ratio"] = round(p99 / rows[0]["p99_gap_ms"], 2) if rows else 1.0
                row["gateway_rss_mib"] = gateway.memory_info().rss >> 20
                rows.append(row)
                others.stdin.close()
                others.wait()
                others.stdout.close()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--idle", type=int, default=10_000)
    parser.add_argument("--slow", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--crowd", nargs=3, metavar=("KIND", "COUNT", "ADDRESS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.crowd:
        kind, count, address = options.crowd
        asyncio.run(crowd(kind, int(count), address))
    else:
        write_report("interference", measure(options.idle, options.slow, options.rounds))


if __name__ == "__main__":
    main()
