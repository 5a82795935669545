"""What a streamed token costs a worker whose engine is SGLang: CPU time of the worker's own process.

    python -m benchmarks.sglang_worker [--streams 64] [--tokens 256]

One gateway, one router, one worker with the random model of two layers that the tests use. SGLang's share in the
worker's process counts; its scheduler and its detokenizer are other processes and do not. A bare socket write is
measured in each round too, as in token_path, because a shared machine changes its pace.

The worker runs in .venv-sglang; without it this measures nothing and says so.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import time
from typing import Any

import uvloop

from benchmarks.report import process_cpu_s, write_report
from benchmarks.token_path import socket_write_us
from tests.support.probes import metric
from tests.support.processes import ROOT, Mesh
from tests.support.raw_client import EventStream

ENVIRONMENT = ROOT / ".venv-sglang"
PYTHON = ENVIRONMENT / "bin" / "python"
MODEL = ROOT / ".cache" / "sglang" / "tiny"
# SGLang's imports on a busy machine.
START_TIMEOUT_S = 300.0
# For the prompts beside the completions; in SGLang's cache no place is left over otherwise.
PROMPT_TOKENS = 128


async def _one(address: str, tokens: int, index: int) -> None:
    body = {
        "model": MODEL.name,
        "messages": [{"role": "user", "content": f"Tell ship {index} about the sea, please."}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        "max_tokens": tokens,
        "ignore_eos": True,
    }
    stream = await EventStream.open(address, body)
    await stream.done
    *_, last = stream.chunks()
    assert last["usage"]["completion_tokens"] == tokens, stream.payloads()[-2:]


async def _load(address: str, streams: int, tokens: int) -> None:
    await asyncio.gather(*(_one(address, tokens, index) for index in range(streams)))


def measure(streams: int, tokens: int, rounds: int) -> dict[str, Any]:
    """Worker CPU per streamed token, the whole of each request included."""
    worker = ["--engine", "sglang", "--model-path", str(MODEL), "--max-running", str(streams)]
    worker += ["--", "--max-total-tokens", str(streams * (tokens + PROMPT_TOKENS))]
    costs, floors, speeds, batches = [], [], [], []
    with Mesh(workers=[worker], worker_python=PYTHON, start_timeout_s=START_TIMEOUT_S) as mesh:
        pid, page = mesh.workers[0].pid, f"http://{mesh.workers[0].ops_address}/metrics"
        uvloop.run(_load(mesh.gateway.address, streams, tokens))  # warm
        for _ in range(rounds):
            steps = metric(page, "inferway_worker_step_seconds_count")
            cpu_s, began = process_cpu_s(pid), time.perf_counter()
            uvloop.run(_load(mesh.gateway.address, streams, tokens))
            cpu_s, seconds = process_cpu_s(pid) - cpu_s, time.perf_counter() - began
            steps = metric(page, "inferway_worker_step_seconds_count") - steps
            costs.append(cpu_s / (streams * tokens) * 1e6)
            floors.append(socket_write_us(streams, 230))
            speeds.append(streams * tokens / seconds)
            batches.append(streams * tokens / steps)
    return {
        "streams": streams,
        "tokens": tokens,
        "rounds": rounds,
        "tokens_a_step": round(statistics.median(batches), 1),
        "tokens_a_second": round(statistics.median(speeds)),
        "worker_cpu_us_a_token": round(statistics.median(costs), 2),
        "socket_write_us": round(statistics.median(floors), 2),
        "ratio": round(statistics.median(cost / floor for cost, floor in zip(costs, floors, strict=True)), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--streams", type=int, nargs="+", default=[64])
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    # SGLang is installed last.
    if not any(ENVIRONMENT.glob("lib/python*/site-packages/sglang")):
        print(f"sglang_worker: not measured, SGLang is not in {ENVIRONMENT.name}: scripts/setup_sglang.sh installs it")
        return
    subprocess.run([PYTHON, "-m", "scripts.prepare_sglang_models"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    # More threads than one wait for each other on a busy machine.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    write_report("sglang_worker", [measure(streams, options.tokens, options.rounds) for streams in options.streams])


if __name__ == "__main__":
    main()
