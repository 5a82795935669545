"""What a streamed token costs the gateway: CPU time of its process, against a bare socket write in the same run.

    python -m benchmarks.token_path [--streams 256 32] [--tokens 128]

One gateway process, one router, one scripted worker at 20 ms steps; stop strings, usage, metrics and the request
log are on. The floor is `socket.send` of one frame to a socket that another process reads. Both are measured in each
round, since a shared machine changes its pace; the ratio is the median of the rounds'.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from benchmarks.report import process_cpu_s, write_report
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream

_DRAIN = """
import selectors, socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
wanted = int(sys.argv[1])
sockets = selectors.DefaultSelector()
for _ in range(wanted):
    peer, _ = listener.accept()
    sockets.register(peer, selectors.EVENT_READ)
while sockets.get_map():
    for key, _ in sockets.select():
        if not key.fileobj.recv(1 << 20):
            sockets.unregister(key.fileobj)
"""


def socket_write_us(connections: int, frame_bytes: int, rounds: int = 60) -> float:
    """CPU microseconds of one `send` of a frame, round robin over sockets that another process reads."""
    reader = subprocess.Popen([sys.executable, "-c", _DRAIN, str(connections)], stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    port = int(reader.stdout.readline())
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(connections)]
    for peer in sockets:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = b"x" * frame_bytes
    spent = 0.0
    for _ in range(rounds):
        before = time.process_time()
        for peer in sockets:
            peer.send(frame)
        spent += time.process_time() - before
        time.sleep(0.02)  # as the gateway between two steps
    for peer in sockets:
        peer.close()
    reader.wait()
    reader.stdout.close()
    return spent / (rounds * connections) * 1e6


def body(tokens: int) -> dict[str, Any]:
    return {
        "model": "m-text",
        "messages": [{"role": "user", "content": "Tell me about the sea and the ships that sail on it, please."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": ["never to be seen", "\n\n\n\n"],
        "max_tokens": tokens,
    }


async def _one(address: str, tokens: int, index: int, script: str) -> int:
    stream = await EventStream.open(address, body(tokens), headers={"X-Request-Id": f"{script}.{index}"})
    await stream.done
    contents = [
        chunk for chunk in stream.chunks() if chunk.get("choices") and "content" in chunk["choices"][0]["delta"]
    ]
    assert stream.payloads()[-1] == b"[DONE]", stream.payloads()[-2:]
    return len(contents) - 1  # less the role chunk


async def _load(address: str, streams: int, tokens: int, script: str) -> int:
    counts = await asyncio.gather(*(_one(address, tokens, index, script) for index in range(streams)))
    return sum(counts)


def measure(streams: int, tokens: int, rounds: int) -> dict[str, float]:
    """Gateway CPU per streamed token, the whole of each request included."""
    with TemporaryDirectory() as directory:
        scripts = Path(directory) / "scripts.json"
        scripts.write_text(json.dumps({"tokens": [{"text": " token", "repeat": tokens}, {"finish": "stop"}]}))
        worker = ["--engine", "scripted", "--scripts", str(scripts), "--step-ms", "20"]
        worker += ["--max-running", str(streams + 64)]
        with Mesh(workers=[worker]) as mesh:
            uvloop.run(_load(mesh.gateway.address, streams, tokens, "tokens"))  # warm
            costs, floors, frames = [], [], 0
            for _ in range(rounds):
                before = process_cpu_s(mesh.gateway.pid)
                frames = uvloop.run(_load(mesh.gateway.address, streams, tokens, "tokens"))
                costs.append((process_cpu_s(mesh.gateway.pid) - before) / (streams * tokens) * 1e6)
                floors.append(socket_write_us(streams, 230))
    return {
        "streams": streams,
        "tokens": tokens,
        "writes_a_token": frames / (streams * tokens),
        "gateway_cpu_us_a_token": round(statistics.median(costs), 2),
        "socket_write_us": round(statistics.median(floors), 2),
        "ratio": round(statistics.median(cost / floor for cost, floor in zip(costs, floors, strict=True)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, nargs="+", default=[256, 32])
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = [measure(streams, options.tokens, options.rounds) for streams in options.streams]
    write_report("token_path", rows)


if __name__ == "__main__":
    main()
