"""From an engine step to a client's socket: how late tokens arrive, and how fast leaving clients free their slots.

    python -m benchmarks.delivery [--streams 64] [--front envoy|nginx|none]

Scripted engine at 20 ms steps, which records the time of each step; clients note each arrival. Then half of the
clients leave, and the record says when their aborts reached the engine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from contextlib import nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from benchmarks.report import write_report
from tests.support.fronts import PROXIES, Front
from tests.support.processes import Mesh
from tests.support.raw_client import EventStream

STEP_S = 0.02
TOKENS = 400
BODY = {"model": "m-text", "messages": [{"role": "user", "content": "hi"}], "stream": True}


async def _run(address: str, streams: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Arrival of each content delta by request id, and when each leaving client closed."""
    wall_minus_monotonic = time.time() - time.monotonic()
    clients = {
        f"tokens.{index}": await EventStream.open(address, BODY, headers={"X-Request-Id": f"tokens.{index}"})
        for index in range(streams)
    }
    while any(len(client.events) < TOKENS // 2 for client in clients.values()):
        await asyncio.sleep(0.05)
    closed = {}
    for name, client in list(clients.items())[::2]:
        client.close()
        closed[name] = time.time()
    await asyncio.gather(*(client.done for client in clients.values()))
    arrivals = {
        name: [at + wall_minus_monotonic for at, payload in client.events if b'"content":" t' in payload]
        for name, client in clients.items()
    }
    return arrivals, closed


def measure(streams: int, proxy: str) -> list[dict[str, Any]]:
    with TemporaryDirectory() as directory:
        script, record = Path(directory) / "scripts.json", Path(directory) / "record.jsonl"
        script.write_text(json.dumps({"tokens": [{"text": " t", "repeat": TOKENS}, {"finish": "stop"}]}))
        worker = ["--engine", "scripted", "--scripts", str(script), "--record", str(record), "--record-steps"]
        worker += ["--step-ms", str(STEP_S * 1000), "--max-running", str(streams)]
        with Mesh(workers=[worker]) as mesh:
            before = Front(proxy, Path(directory), [mesh.gateway.address]) if proxy in PROXIES else None
            with before or nullcontext():
                address = before.address if before else mesh.gateway.address
                arrivals, closed = uvloop.run(_run(address, streams))
        lines = [json.loads(line) for line in record.read_text().splitlines()]
    names = {line["key"]: line["request_id"] for line in lines if line["event"] == "generate"}
    made: dict[str, list[float]] = {name: [] for name in arrivals}
    for line in lines:
        if line["event"] == "step":
            for key in line["keys"]:
                made[names[key]].append(line["time"])
    delays = sorted(
        arrived - step for name in arrivals for arrived, step in zip(arrivals[name], made[name], strict=False)
    )
    aborts = {line["request_id"]: line["time"] for line in lines if line["event"] == "abort"}
    abort_delays = sorted(aborts[name] - at for name, at in closed.items())
    after_abort = max(sum(1 for step in made[name] if step > aborts[name]) for name in closed)
    within = sum(delay <= STEP_S for delay in delays) / len(delays)
    return [
        {
            "front": proxy,
            "streams": streams,
            "tokens": len(delays),
            "within_one_step": f"{within:.4%}",
            "p50_ms": _ms(delays, 0.5),
            "p99_ms": _ms(delays, 0.99),
            "max_ms": _ms(delays, 1.0),
            "aborts": len(abort_delays),
            "abort_p50_ms": _ms(abort_delays, 0.5),
            "abort_max_ms": _ms(abort_delays, 1.0),
            "steps_after_abort": after_abort,
        }
    ]


def _ms(ordered: list[float], quantile: float) -> float:
    return round(ordered[min(len(ordered) - 1, int(len(ordered) * quantile))] * 1000, 2)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--front", choices=("none", *PROXIES), default="none")
    arguments = parser.parse_args()
    write_report("delivery", measure(arguments.streams, arguments.front))


if __name__ == "__main__":
    main()
